"""A `model_type` that is not known, read by the names of its fields; what was taken for granted is said.

A field's name means the same in nearly every decoder: heads, widths, experts, windows. What a name cannot say (a gate
in the feed-forward, norms of queries and keys, one more matrix somewhere) is assumed to be as in most decoders of the
day; fields that would change the layers and are not read here are named.
"""

from collections.abc import Iterable
from dataclasses import replace

from capacity.base.fields import Fields
from capacity.model.feed_forward import DenseFeedForward, FeedForward, MoEFeedForward, NoFeedForward
from capacity.model.hf_config import feed_forwards, windows
from capacity.model.hf_config.families import find_family, find_rule
from capacity.model.hf_config.family import Family, Flag
from capacity.model.hf_config.feed_forwards import FeedForwardRule
from capacity.model.hf_config.mixers import HEAD_DIM, HEADS, HIDDEN, KV_HEADS
from capacity.model.latent import LatentAttention
from capacity.model.layers import Attention, LayerGroup
from capacity.model.spec import ModelSpec

GATE_FLAGS = ("is_gated_act", "gated_mlp", "use_gated_mlp", "mlp_gated", "use_glu", "use_swiglu")
LAYER_NORM = ("layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon", "norm_epsilon")
MOST_NAMED = 6  # fields that are not read, in a note
MIXERS = (  # by the first of which one of these fields is there
    (("linear_attn_config", "linear_num_heads"), "hybrids.kimi_hybrid"),
    (("linear_num_value_heads",), "mixers.delta_hybrid"),
    (("layer_group_size",), "hybrids.grouped_lightning"),
    (("kv_lora_rank",), "mixers.latent"),
    (("conv_L_cache",), "hybrids.convolution_hybrid"),
    (("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"), "hybrids.mamba2_hybrid"),
    (("mamba_d_state", "state_size"), "hybrids.mamba1_hybrid"),
)
_READ = {
    *HEADS, *KV_HEADS, *HEAD_DIM, *HIDDEN, *windows.NUM_LAYERS, *feed_forwards.WIDTH, *feed_forwards.EXPERTS,
    *feed_forwards.EXPERTS_PER_TOKEN, *feed_forwards.SHARED_EXPERTS,
    "moe_intermediate_size", "layer_types", "vocab_size", "padded_vocab_size", "sliding_window",
    "sliding_window_pattern", "max_window_layers", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "qk_head_dim", "index_n_heads", "index_head_dim", "index_topk",
    "first_k_dense_replace", "moe_layer_freq", "mlp_only_layers", "decoder_sparse_step", "mlp_layer_types",
    "shared_expert_intermediate_size", "shared_intermediate_size", "full_attention_interval",
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_sequence_length", "num_nextn_predict_layers", "mtp_num_hidden_layers", "linear_num_key_heads",
    "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
    "linear_attn_config", "linear_num_heads", "linear_head_dim", "conv_L_cache", "expert_ffn_hidden_size",
    "expert_hidden_size",
    "hybrid_override_pattern", "intermediate_size_mlp", "interleave_moe_layer_step", "moe_layers",
    "expert_layer_period", "expert_layer_offset", "attn_layer_period", "attn_layer_offset", "mamba_d_state",
    "state_size", "mamba_d_conv", "mamba_expand", "mamba_dt_rank", "mamba_n_heads", "mamba_num_heads",
    "layer_group_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
    "n_mamba_heads", "mamba_d_head", "mamba_head_dim", "ssm_state_size", "conv_kernel", "mamba_n_groups",
    "mamba_chunk_size", "layers_block_type", "no_rope_layers", "no_rope_layer_interval",
}  # fmt: skip
# sizes that say nothing of the layers' parameters or work
_HARMLESS = (
    "token_id", "token_index", "rope", "rotary", "dropout", "n_group", "topk_group", "expert_group",
    "group_norm", "pretraining_tp", "seed", "chunk_size", "beam", "length", "original_max", "eps", "scal", "init",
    "window_layers", "logit", "version", "id2label", "label2id",
    "auto_map", "architectures", "quantization_config", "compression_config", "router_topk", "mup", "multiplier",
    "generation", "_name_or_path", "max_batch", "return_", "output_", "num_labels", "tokenizer", "yarn",
)  # fmt: skip


def assumed_family(text: Fields, gated: bool | None = None) -> Family:
    """The family that the fields' names describe; `gated`: the feed-forward, where the weights say it."""
    if text.has("hybrid_override_pattern") and (hybrid := find_family("nemotron_h")):
        return hybrid
    mixer = next((rule for keys, rule in MIXERS if text.has(*keys)), "mixers.grouped_query")
    return Family(
        mixer=find_rule(mixer),
        feed_forward=_feed_forward(text, has_gate(text) if gated is None else gated),
        qkv_bias=_first(
            text, "attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias", "use_bias", "bias"
        ),
        output_bias=_first(text, "attention_bias", "use_bias", "bias"),
        qk_norm="per_head",
        qk_norm_if=_first(text, "use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm"),
        window=_window,
        mtp_keys=("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    )


def with_known_kinds(text: Fields) -> Fields:
    """The fields with every kind of layer that is not known as full attention."""
    kinds = text.items("layer_types")
    if not kinds:
        return text
    known = [str(kind) if kind in windows.LAYER_TYPES else "full_attention" for kind in kinds]
    return Fields({**text.values, "layer_types": known}, text.origin, prefix=text.prefix)


def _first(text: Fields, *keys: str) -> Flag:
    """The first of these that is there as true or false."""
    return next((key for key in keys if isinstance(text.values.get(key), bool)), False)


def _window(text: Fields, layer: int) -> int | None:
    """`layer_types` where it is there, every kind that is not known as full; else by `sliding_window` in all layers."""
    if not text.has("sliding_window") or not text.flag("use_sliding_window", default=True):
        return None
    kinds = text.items("layer_types")
    if kinds:
        sliding = layer < len(kinds) and kinds[layer] in (
            "sliding_attention",
            "chunked_attention",
            "hybrid_sliding",
        )
        return text.optional_count("sliding_window", minimum=0) or None if sliding else None
    if text.has("sliding_window_pattern"):
        return windows.interleaved_window(6)(text, layer)
    return windows.uniform_window(text, layer)


def has_gate(text: Fields) -> bool:
    """Whether the feed-forward is gated: a flag of its own, else the activation's name.

    SiLU and the names of gated units are; ReLU, GELU, their kin and tanh are not, but for "gelu_pytorch_tanh", which
    Gemma has with a gate and StarCoder2 without: gated where the norms are not LayerNorm.
    """
    for key in GATE_FLAGS:
        if isinstance(text.values.get(key), bool):
            return text.flag(key)
    activation = _activation(text)
    if "glu" in activation or not any(part in activation for part in ("elu", "tanh", "linear")):
        return True
    return _either_way(activation) and not text.has(*LAYER_NORM)


def _activation(text: Fields) -> str:
    return text.text("hidden_act", "activation_function", "hidden_activation", "activation", "mlp_hidden_act")


def _either_way(activation: str) -> bool:
    return "gelu" in activation and "tanh" in activation


def _feed_forward(text: Fields, gated: bool) -> FeedForwardRule:
    """Routed where the config has experts, dense elsewhere."""
    if text.has("intermediate_size_mlp"):
        return feed_forwards.llama4
    if text.has("expert_layer_period"):
        found: FeedForwardRule = find_rule("hybrids.jamba_feed_forward")
        return found
    if not any(_positive(text.values.get(key)) for key in feed_forwards.EXPERTS):
        return feed_forwards.dense_biased if gated else feed_forwards.plain(bias=("mlp_bias", False))

    def routed(text: Fields, layer: int) -> FeedForward:
        listed = text.has("mlp_layer_types") or isinstance(text.values.get("moe_layer_freq"), list)
        found = feed_forwards.by_list(text, layer) if listed else _by_first(text, layer)
        return found if gated or isinstance(found, NoFeedForward) else replace(found, gated=False)

    return routed


def _by_first(text: Fields, layer: int) -> FeedForward:
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
        shared = width * (feed_forwards.of_layer(text, layer, *feed_forwards.SHARED_EXPERTS, minimum=0) or 0)
    return feed_forwards.routed(text, layer, width=width, shared=shared)


def _positive(value: object) -> bool:
    return bool(value) and (isinstance(value, list) or (isinstance(value, int) and value > 1))


# what is said

RECURRENT_FIELDS = (
    "mamba_d_state",
    "ssm_state_size",
    "linear_num_value_heads",
    "linear_attn_config",
    "linear_num_heads",
    "layer_group_size",
)


def strange_fields(model: ModelSpec, text: Fields) -> list[str]:
    """Fields of another kind of layer in the config of a known type, whose code does not look at them either."""
    mixers = [group.mixer for group in model.layer_groups]
    kinds = (
        (feed_forwards.EXPERTS, model.is_moe),
        (("kv_lora_rank",), any(mixer.latent for mixer in mixers)),
        (RECURRENT_FIELDS, any(not isinstance(mixer, Attention | LatentAttention) for mixer in mixers)),
    )
    return [
        key
        for keys, has in kinds
        if not has
        for key in keys
        if _positive(text.values.get(key)) or isinstance(text.values.get(key), dict)
    ]


def reading_of(model: ModelSpec, text: Fields) -> str:
    """As what the config was read, in one line: kinds of layers, shapes, parameters, and what was left out."""
    called = f"model_type {model.model_type!r}" if text.has("model_type") else "a config without model_type"
    kinds = " and ".join(
        dict.fromkeys(_WORDS.get(group.mixer.kind, group.mixer.kind) for group in model.layer_groups)
    )
    forms = " and ".join(
        dict.fromkeys(_feed_forward_words(group.feed_forward) for group in model.layer_groups)
    )
    tied = "tied" if model.tie_word_embeddings else "untied"
    said = (
        f"{called} is not known here: read by its fields' names as a decoder of {model.num_layers} layers with {kinds} "
        f"and {forms}, {tied} embeddings, {model.total_params / 1e9:,.4g} B parameters (assumed)"
    )
    if _either_way(_activation(text)) and not text.has(*GATE_FLAGS):
        said += f"; {_activation(text)} says nothing of a gate, the kind of norm was taken for a sign"
    unread = unread_fields(text)
    if not unread:
        return said
    more = f" and {len(unread) - MOST_NAMED} more" if len(unread) > MOST_NAMED else ""
    return f"{said}; fields not read: {', '.join(unread[:MOST_NAMED])}{more}"


def unread_fields(text: Fields) -> list[str]:
    """Fields that may change the layers and are not read: sizes, lists and objects; unknown kinds of layers."""
    names = [
        key
        for key, value in text.values.items()
        if key not in _READ
        and (not isinstance(value, bool | str | float) or "pattern" in key)
        and value not in (None, 0, [], {})
        and not any(part in key.lower() for part in _HARMLESS)
    ]
    kinds = {str(kind) for kind in text.items("layer_types") or []}
    unknown = sorted(kinds.difference(windows.LAYER_TYPES))
    return sorted(names) + [f"layer_types {kind!r} (as full attention)" for kind in unknown]


_WORDS = {
    "gqa": "grouped-query attention",
    "mha": "multi-head attention",
    "mqa": "multi-query attention",
    "mla": "multi-head latent attention",
    "linear": "linear attention",
    "kda": "Kimi delta attention",
    "lightning": "lightning attention",
    "conv": "short convolutions",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
}


def _feed_forward_words(part: FeedForward) -> str:
    if isinstance(part, MoEFeedForward):
        return f"{part.num_experts} experts, {part.experts_per_token} a token"
    gated = isinstance(part, DenseFeedForward) and part.gated
    return f"a{' gated' if gated else 'n ungated'} feed-forward"


MAX_ROPE_FACTOR = 1e6  # real ones are 2 to 64


def stretches_its_tables_alone(text: Fields) -> bool:
    """Whether `rope_scaling` is of the tables and `max_position_embeddings` has it already: Gemma 3.

    Source: vLLM 0.33.0, transformers_utils/model_arch_config_convertor.py, derive_max_model_len; 2026-11.
    """
    return "gemma3" in text.text("model_type")


def rotary_values(text: Fields, groups: Iterable[LayerGroup], positions: int) -> int:
    """Values of the tables of all distinct ropes: every position that the config allows, times the dimensions turned.

    An engine makes one for each rope at the start, however short `max_model_len` is: 2.5 GiB of Llama 4 Scout, made for
    10,485,760 positions of 128 dimensions, which is what a start-up log has beside its weights. Gemma 3 turns its full
    layers by a table stretched by `rope_scaling` and its windows by another. Source: vLLM
    model_executor/layers/rotary_embedding, _compute_cos_sin_cache; models that turn nothing count a little too much.
    """
    sizes = {size for group in groups if (size := _turned(text, group.mixer))}
    values = positions * sum(sizes)
    scaling = text.section("rope_scaling", "rope_parameters")
    if not stretches_its_tables_alone(text):
        return values
    factor = 1.0
    if scaling is not None and scaling.text("rope_type", "type") == "linear":
        factor = scaling.number("factor", default=1.0, minimum=1.0, maximum=MAX_ROPE_FACTOR)
    return round(values * (factor + 1))


def _turned(text: Fields, mixer: object) -> int:
    """Dimensions of a head that rotary positions turn; 0 where there are none."""
    if isinstance(mixer, LatentAttention):
        return mixer.qk_rope_head_dim
    if not isinstance(mixer, Attention) or mixer.cross:
        return 0
    part = text.number("partial_rotary_factor", default=1.0, minimum=0.0, maximum=1.0)
    said = text.optional_count("rotary_dim", minimum=0)
    return round(mixer.head_dim * part) if said is None else said
