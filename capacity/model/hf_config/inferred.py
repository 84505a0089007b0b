"""Read an unknown `model_type` by the names of its fields, and report the assumptions.

A field name means the same in nearly every decoder: heads, widths, experts, windows. Properties without a field (a
gate in the feed-forward, norms of queries and keys, an additional matrix) are assumed as in most current decoders.
Unread fields that may change the layers are listed in a note.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from capacity.base.fields import Fields
from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward, NoFeedForward
from capacity.model.hf_config import feed_forwards, windows
from capacity.model.hf_config.family import Family, Flag, find_family, find_rule
from capacity.model.hf_config.feed_forwards import FeedForwardRule
from capacity.model.hf_config.field_names import NAMES
from capacity.model.latent import LatentAttention
from capacity.model.layers import Attention, LayerGroup
from capacity.model.spec import ModelSpec

GATE_FLAGS = NAMES["gate_flags"]
MAX_LISTED_FIELDS = 6  # unread fields in a note
SIZE_KEYS = ("heads", "kv_heads", "head_dim", "hidden", "num_layers", "width")
WINDOWED_LAYER_TYPES = ("sliding_attention", "chunked_attention", "hybrid_sliding")  # kinds of layers
EXPERT_KEYS = ("experts", "experts_per_token", "shared_experts")
_READ_FIELDS = {*NAMES["read"], *(key for size in (*SIZE_KEYS, *EXPERT_KEYS) for key in NAMES[size])}


def assumed_family(text: Fields, gated: bool | None = None) -> Family:
    """Return assumed properties of an unknown model type, derived from the names of its config fields.

    `gated`: whether the feed-forward has a gate; None: derived from the config.
    """
    if text.has("hybrid_override_pattern") and (hybrid := find_family("nemotron_h")):
        return hybrid
    mixer = next((rule for rule, keys in NAMES["mixers"].items() if text.has(*keys)), "mixers.grouped_query")
    return Family(
        mixer=find_rule(mixer),
        feed_forward=_feed_forward(text, has_gate(text) if gated is None else gated),
        qkv_bias=_first_flag(
            text, "attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias", "use_bias", "bias"
        ),
        output_bias=_first_flag(text, "attention_bias", "use_bias", "bias"),
        qk_norm="per_head",
        qk_norm_if=_first_flag(text, "use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm"),
        window=_window,
        mtp_keys=("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    )


def replace_unknown_layer_types(text: Fields) -> Fields:
    """Return the fields with every unknown entry of `layer_types` replaced by full attention."""
    kinds = text.items("layer_types")
    if not kinds:
        return text
    known = [str(kind) if kind in windows.LAYER_TYPES else "full_attention" for kind in kinds]
    return text.update({"layer_types": known})


def _first_flag(text: Fields, *keys: str) -> Flag:
    """Return the name of the first key in `keys` that is a boolean field of the config; False if there is none."""
    return next((key for key in keys if isinstance(text.values.get(key), bool)), False)


def _window(text: Fields, layer: int) -> int | None:
    """Return the layer's attention window in tokens; None: full attention.

    Reads `layer_types`; if absent, `sliding_window_pattern`; if both are absent, `sliding_window`.
    """
    if not text.has("sliding_window") or not text.flag("use_sliding_window", default=True):
        return None
    if text.items("layer_types"):
        sliding = text.entry_of_layer("layer_types", layer) in WINDOWED_LAYER_TYPES
        return text.optional_count("sliding_window", minimum=0) or None if sliding else None
    if text.has("sliding_window_pattern"):
        return windows.interleaved_window(text, layer, pattern=6)
    return windows.uniform_window(text, layer)


def has_gate(text: Fields) -> bool:
    """Return whether the feed-forward is gated, by a flag of the config or else by the name of its activation.

    SiLU and the names of gated units mean a gate; ReLU, GELU, similar activations and tanh do not. "gelu_pytorch_tanh"
    is ambiguous (Gemma has a gate, StarCoder2 has none): it means a gate unless the norms are LayerNorm.
    """
    for key in GATE_FLAGS:
        if isinstance(text.values.get(key), bool):
            return text.flag(key)
    activation = _activation(text)
    if "glu" in activation or not any(part in activation for part in ("elu", "tanh", "linear")):
        return True
    return _is_ambiguous_activation(activation) and not text.has(*NAMES["layer_norm"])


def _activation(text: Fields) -> str:
    return text.text("hidden_act", "activation_function", "hidden_activation", "activation", "mlp_hidden_act")


def _is_ambiguous_activation(activation: str) -> bool:
    return "gelu" in activation and "tanh" in activation


def _feed_forward(text: Fields, gated: bool) -> FeedForwardRule:
    """Return the function that builds each layer's feed-forward: routed if the config has experts, else dense."""
    if text.has("intermediate_size_mlp"):
        return feed_forwards.llama4
    if text.has("expert_layer_period"):
        found: FeedForwardRule = find_rule("hybrids.jamba_feed_forward")
        return found
    if not any(_is_positive(text.values.get(key)) for key in feed_forwards.EXPERTS):
        return feed_forwards.dense_biased if gated else partial(feed_forwards.plain, bias=("mlp_bias", False))

    def as_declared(text: Fields, layer: int) -> FeedForward:
        listed = text.has("mlp_layer_types") or isinstance(text.values.get("moe_layer_freq"), list)
        found = feed_forwards.by_list(text, layer) if listed else _feed_forward_by_position(text, layer)
        return found if gated or isinstance(found, NoFeedForward) else replace(found, gated=False)

    return as_declared


def _feed_forward_by_position(text: Fields, layer: int) -> FeedForward:
    dense_layers = text.items("mlp_only_layers") or []
    first = text.count("first_k_dense_replace", "num_dense_layers", default=0, minimum=0)
    step = text.count("decoder_sparse_step", "moe_layer_freq", default=1)
    if layer < first or layer in dense_layers or layer % step:
        return feed_forwards.dense(text, layer)
    width = feed_forwards.expert_width(text, layer)
    shared = text.optional_count(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
        "share_expert_dim", minimum=0,
    )  # fmt: skip
    if shared is None:
        shared = width * (
            feed_forwards.layer_count(text, layer, *feed_forwards.SHARED_EXPERTS, minimum=0) or 0
        )
    return feed_forwards.routed_experts(text, layer, width=width, shared=shared)


def _is_positive(value: object) -> bool:
    return bool(value) and (isinstance(value, list) or (isinstance(value, int) and value > 1))


def ignored_fields(model: ModelSpec, text: Fields) -> list[str]:
    """Return config fields about experts, latents or recurrences, if the layers of this known model type have none."""
    mixers = [group.mixer for group in model.layer_groups]
    kinds = (
        (feed_forwards.EXPERTS, model.is_moe),
        (("kv_lora_rank",), any(mixer.latent for mixer in mixers)),
        (NAMES["recurrent"], any(not isinstance(mixer, Attention | LatentAttention) for mixer in mixers)),
    )
    return [
        key
        for keys, has in kinds
        if not has
        for key in keys
        if _is_positive(text.values.get(key)) or isinstance(text.values.get(key), dict)
    ]


def describe_assumed_model(model: ModelSpec, text: Fields) -> str:
    """Return a one-line note on how an unknown config was read: layers, parameters, and unread fields."""
    called = f"model_type {model.model_type!r}" if text.has("model_type") else "a config without model_type"
    kinds = " and ".join(
        dict.fromkeys(NAMES["words"].get(group.mixer.kind, group.mixer.kind) for group in model.layer_groups)
    )
    forms = " and ".join(
        dict.fromkeys(_feed_forward_words(group.feed_forward) for group in model.layer_groups)
    )
    tied = "tied" if model.tie_word_embeddings else "untied"
    said = (
        f"{called} is unknown: its field names indicate a decoder of {model.num_layers} layers with {kinds} and "
        f"{forms}, {tied} embeddings, {model.total_params / 1e9:,.4g} B parameters (assumed)"
    )
    if _is_ambiguous_activation(_activation(text)) and not text.has(*GATE_FLAGS):
        said += (
            f"; {_activation(text)} is used with and without a gate, so the kind of norm determines the gate"
        )
    unread = unread_fields(text)
    if not unread:
        return said
    more = f" and {len(unread) - MAX_LISTED_FIELDS} more" if len(unread) > MAX_LISTED_FIELDS else ""
    return f"{said}; fields not read: {', '.join(unread[:MAX_LISTED_FIELDS])}{more}"


def unread_fields(text: Fields) -> list[str]:
    """Return fields that were not read but may change the layers (sizes, lists, objects), and unknown kinds of layers.

    Omits fields that change no parameters or work: their names contain a string of `harmless` in `field_names.json`.
    """
    names = [
        key
        for key, value in text.values.items()
        if key not in _READ_FIELDS
        and (not isinstance(value, bool | str | float) or "pattern" in key)
        and value not in (None, 0, [], {})
        and not any(part in key.lower() for part in NAMES["harmless"])
    ]
    kinds = {str(kind) for kind in text.items("layer_types") or []}
    unknown = sorted(kinds.difference(windows.LAYER_TYPES))
    return sorted(names) + [f"layer_types {kind!r} (read as full attention)" for kind in unknown]


def _feed_forward_words(part: FeedForward) -> str:
    if isinstance(part, MoEFeedForward):
        return f"{part.num_experts} experts, {part.experts_per_token} per token"
    gated = isinstance(part, DenseFeedForward) and part.gated
    return f"a{' gated' if gated else 'n ungated'} feed-forward"


MAX_ROPE_FACTOR = 1e6  # real ones are 2 to 64


def max_length_includes_rope_scaling(text: Fields) -> bool:
    """Return whether `max_position_embeddings` already includes the extension by `rope_scaling` (Gemma 3).

    If so, `rope_scaling` changes only the rotary tables. Source: vLLM 0.33.0,
    transformers_utils/model_arch_config_convertor.py, derive_max_model_len; 2026-11.
    """
    return "gemma3" in text.text("model_type")


def rotary_values(text: Fields, groups: Iterable[LayerGroup], positions: int) -> int:
    """Return the number of values in the rotary tables: for each distinct rope, positions times rotated dimensions.

    An engine allocates a table per rope at its start, for all positions of the config even if `max_model_len` is
    short: 2.5 GiB for Llama 4 Scout (10,485,760 positions of 128 dimensions), which a start-up log shows in addition
    to the weights. Gemma 3 has one table stretched by `rope_scaling` for full layers and another for windows. Source:
    vLLM model_executor/layers/rotary_embedding, _compute_cos_sin_cache. The result is slightly too high for models
    without rotary positions.
    """
    sizes = {size for group in groups if (size := _rotary_dimensions(text, group.mixer))}
    values = positions * sum(sizes)
    scaling = text.section("rope_scaling", "rope_parameters")
    if not max_length_includes_rope_scaling(text):
        return values
    factor = 1.0
    if scaling is not None and scaling.text("rope_type", "type") == "linear":
        factor = scaling.number("factor", default=1.0, minimum=1.0, maximum=MAX_ROPE_FACTOR)
    return round(values * (factor + 1))


def _rotary_dimensions(text: Fields, mixer: object) -> int:
    """Return the number of dimensions of a head to which rotary embedding applies, or 0."""
    if isinstance(mixer, LatentAttention):
        return mixer.qk_rope_head_dim
    if not isinstance(mixer, Attention) or mixer.cross:
        return 0
    part = text.number("partial_rotary_factor", default=1.0, minimum=0.0, maximum=1.0)
    said = text.optional_count("rotary_dim", minimum=0)
    return round(mixer.head_dim * part) if said is None else said
