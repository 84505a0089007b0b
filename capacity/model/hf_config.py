"""Hugging Face's `config.json` as a `ModelSpec`: parsed as plain JSON; no code of the repository is ever run.

One entry of `_FAMILIES` for each `model_type`. A type without one is refused, saying what is missing: it is
never guessed to be a Llama. Sources: transformers 5.23 configuration and modelling files, vLLM 0.33
`model_arch_config_convertor.py`, read 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from capacity.base.errors import MalformedFile, UnsupportedModel
from capacity.base.fields import Fields
from capacity.model.layers import (
    Attention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    Mixer,
    MoEFeedForward,
    SparseIndexer,
)
from capacity.model.quantization import find_format, uniform_scheme
from capacity.model.quantization.config import parse_quantization_config
from capacity.model.spec import ModelSpec
from capacity.model.vision import vision_tower

_MAX_LAYERS = 2_000

_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "multi_query_group_num",
    "num_attention_groups",
)
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "top_k",
)
_MAX_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
_DTYPES: dict[str, Literal["bf16", "fp16", "fp32"]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "bf16",  # vLLM's --dtype auto serves 32-bit checkpoints at 16 bit
    "float": "bf16",
}

BiasRule: TypeAlias = Literal[
    "none", "qkv", "qkvo", "attention_bias", "attention_bias_qkv", "qkv_bias", "add_qkv_bias"
]
FeedForwardRule: TypeAlias = Callable[[Fields, int], FeedForward]
WindowRule: TypeAlias = Callable[[Fields, int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What the code of a model type fixes and its config does not say."""

    mixer: Callable[[Fields, _Family, int], Mixer]
    feed_forward: FeedForwardRule
    biases: BiasRule = "none"
    qk_norm: Literal["none", "per_head", "full", "use_qk_norm"] = "none"
    norms_per_layer: int = 2
    tied: bool = False  # where the config does not say
    sinks: bool = False
    window: WindowRule = lambda _fields, _layer: None
    chunked: bool = False
    output_gate: bool = False
    indexer: bool = False  # sparse attention: its fields must be there
    mtp_keys: tuple[str, ...] = ()
    defaults: Mapping[str, int] = field(
        default_factory=dict
    )  # of transformers, for keys that are absent, not null


def from_hf_config(
    config: Mapping[str, Any],
    *,
    name: str,
    hf_id: str | None = None,
    hf_quant_config: Mapping[str, Any] | None = None,
    source: str = "",
    origin: str | None = None,
) -> ModelSpec:
    """The model that the object of a `config.json` describes.

    `hf_quant_config` is the object of ModelOpt's file of that name beside it; `origin` (a path) is named in
    errors. Raises UnsupportedModel for a `model_type` without an entry here, MalformedFile for a bad field.
    """
    if not isinstance(config, Mapping):
        raise MalformedFile(origin or name, f"a JSON object is needed, not a {type(config).__name__}")
    outer = Fields(config, origin or name)
    text = _text_fields(outer)
    family, model_type = _family(outer, text)
    text = Fields({**family.defaults, **text.values}, text.origin, prefix=text.prefix)
    num_layers = text.count("num_hidden_layers", "num_layers", "n_layer", maximum=_MAX_LAYERS)
    groups = _layer_groups(text, family, num_layers)
    dtype = _dtype(outer, text)
    base = uniform_scheme(dtype, find_format(dtype), base=find_format(dtype))
    quantization = _quantization_fields(outer, text, hf_quant_config)
    vision_params, uncounted = vision_tower(outer)
    spec = ModelSpec(
        name=name,
        hf_id=hf_id,
        model_type=model_type,
        hidden_size=text.count("hidden_size", "n_embd", "d_model"),
        vocab_size=text.count("vocab_size", "padded_vocab_size"),
        layer_groups=groups,
        tie_word_embeddings=outer.flag(
            "tie_word_embeddings", default=text.flag("tie_word_embeddings", default=family.tied)
        ),
        norms_per_layer=family.norms_per_layer,
        max_position_embeddings=_max_length(text),
        dtype=dtype,
        checkpoint=base,
        mtp=_mtp_group(text, family, groups, num_layers),
        vision_params=vision_params,
        uncounted=uncounted,
        source=source,
    )
    if quantization is None:
        return spec
    return replace(
        spec,
        checkpoint=parse_quantization_config(quantization.values, model=spec, origin=quantization.origin),
    )


def supported_model_types() -> tuple[str, ...]:
    """Every `model_type` that is read."""
    return tuple(sorted(_FAMILIES))


def _text_fields(outer: Fields) -> Fields:
    """The language model's own object: `text_config` and its kin where the model is multimodal."""
    inner = outer.section("text_config", "llm_config", "language_config", "thinker_config")
    return outer if inner is None else _text_fields(inner)


def _family(outer: Fields, text: Fields) -> tuple[_Family, str]:
    model_type = text.text("model_type") or outer.text("model_type")
    if not model_type:
        architectures = outer.items("architectures")
        hint = f" (architectures: {architectures[0]})" if architectures else ""
        raise outer.problem("model_type", f"missing{hint}; without it the architecture is not known")
    if model_type in _FAMILIES:
        return _FAMILIES[model_type], model_type
    missing = _MISSING.get(model_type, "no formula for its layers")
    raise UnsupportedModel(model_type, f"{missing}. Supported: {', '.join(supported_model_types())}")


def _dtype(outer: Fields, text: Fields) -> Literal["bf16", "fp16", "fp32"]:
    for fields in (text, outer):
        named = fields.text("dtype", "torch_dtype").removeprefix("torch.")
        if named in _DTYPES:
            return _DTYPES[named]
        if named and named != "auto":
            raise fields.problem("torch_dtype", f"{named!r} is not one of {', '.join(_DTYPES)}")
    return "bf16"


def _max_length(text: Fields) -> int:
    """The smallest stated length, stretched by `rope_scaling` as vLLM 0.33 does.

    llama3, longrope and su state the stretched length already; YaRN stretches the original one.
    """
    lengths = [length for key in _MAX_LENGTHS if (length := text.optional_count(key)) is not None]
    if not lengths:
        raise text.problem("max_position_embeddings", "missing; it must be a whole number")
    scaling = text.section("rope_scaling", "rope_parameters")
    if scaling is None or scaling.text("rope_type", "type") not in ("yarn", "linear", "dynamic"):
        return min(lengths)
    original = scaling.optional_count("original_max_position_embeddings")
    if scaling.text("rope_type", "type") == "yarn" and original is None:
        return min(lengths)
    return int((original or min(lengths)) * scaling.number("factor", default=1.0))


def _quantization_fields(
    outer: Fields, text: Fields, hf_quant_config: Mapping[str, Any] | None
) -> Fields | None:
    for fields in (outer, text):
        found = fields.section("quantization_config", "compression_config")
        if found is not None and found.values:
            return found
    if hf_quant_config:
        return Fields(hf_quant_config, f"{outer.origin} (hf_quant_config.json)")
    return None


def _layer_groups(text: Fields, family: _Family, num_layers: int) -> tuple[LayerGroup, ...]:
    grouped: dict[tuple[Mixer, FeedForward], list[int]] = {}
    for layer in range(num_layers):
        key = (family.mixer(text, family, layer), family.feed_forward(text, layer))
        grouped.setdefault(key, []).append(layer)
    return tuple(
        LayerGroup(layers=tuple(layers), mixer=mixer, feed_forward=feed_forward)
        for (mixer, feed_forward), layers in grouped.items()
    )


def _mtp_group(
    text: Fields, family: _Family, groups: tuple[LayerGroup, ...], num_layers: int
) -> LayerGroup | None:
    """Multi-token-prediction layers repeat the model's last softmax-attention layer."""
    count = text.optional_count(*family.mtp_keys, minimum=0, maximum=_MAX_LAYERS) if family.mtp_keys else None
    if not count:
        return None
    softmax = [group for group in groups if group.mixer.softmax]
    last = max(softmax, key=lambda group: group.layers[-1])
    return replace(last, layers=tuple(range(num_layers, num_layers + count)))


# mixers


def _grouped_query(text: Fields, family: _Family, layer: int) -> Attention:
    num_heads = text.count("num_attention_heads", "n_head")
    num_kv_heads = text.count(*_KV_HEADS, default=num_heads)
    if num_heads % num_kv_heads:
        raise text.problem(
            "num_key_value_heads", f"{num_kv_heads} does not divide {num_heads} attention heads"
        )
    window = family.window(text, layer)
    return Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(text, num_heads),
        window_tokens=window,
        chunked=family.chunked and window is not None,
        qkv_bias=_has_bias(text, family, "qkv"),
        output_bias=_has_bias(text, family, "output"),
        qk_norm=_qk_norm(text, family),
        output_gate=family.output_gate and text.flag("attn_output_gate", default=True),
        sinks=family.sinks,
    )


def _head_dim(text: Fields, num_heads: int) -> int:
    stated = text.optional_count("head_dim", "hidden_size_per_head", "kv_channels", minimum=0)
    if stated:
        return stated
    hidden = text.count("hidden_size", "n_embd", "d_model")
    if hidden % num_heads:
        raise text.problem(
            "num_attention_heads", f"{num_heads} does not divide hidden_size {hidden}, and no head_dim"
        )
    return hidden // num_heads


def _has_bias(text: Fields, family: _Family, where: Literal["qkv", "output"]) -> bool:
    match family.biases:
        case "none":
            return False
        case "qkv":
            return where == "qkv"
        case "qkvo":
            return True
        case "attention_bias":
            return text.flag("attention_bias")
        case "attention_bias_qkv":
            return where == "qkv" and text.flag("attention_bias")
        case "qkv_bias":
            return where == "qkv" and text.flag("qkv_bias", default=True)
        case "add_qkv_bias":
            return where == "qkv" and text.flag("add_qkv_bias")


def _qk_norm(text: Fields, family: _Family) -> Literal["none", "per_head", "full"]:
    if family.qk_norm == "use_qk_norm":
        return "per_head" if text.flag("use_qk_norm") else "none"
    return family.qk_norm


def _latent(text: Fields, family: _Family, _layer: int) -> LatentAttention:
    indexer = None
    if family.indexer or text.has("index_topk"):
        indexer = SparseIndexer(
            num_heads=text.count("index_n_heads"),
            head_dim=text.count("index_head_dim"),
            top_k=text.count("index_topk"),
        )
    return LatentAttention(
        num_heads=text.count("num_attention_heads"),
        kv_lora_rank=text.count("kv_lora_rank"),
        q_lora_rank=text.optional_count("q_lora_rank"),
        qk_nope_head_dim=text.count("qk_nope_head_dim"),
        qk_rope_head_dim=text.count("qk_rope_head_dim"),
        v_head_dim=text.count("v_head_dim"),
        indexer=indexer,
    )


def _hybrid(text: Fields, family: _Family, layer: int) -> Mixer:
    """Qwen3-Next and 3.5: gated DeltaNet, with full attention in every `full_attention_interval`-th layer."""
    kind = _layer_type(text, layer)
    if kind is None:
        kind = (
            "linear_attention"
            if (layer + 1) % text.count("full_attention_interval", default=4)
            else "full_attention"
        )
    if kind != "linear_attention":
        return _grouped_query(text, family, layer)
    return LinearAttention(
        num_key_heads=text.count("linear_num_key_heads"),
        num_value_heads=text.count("linear_num_value_heads"),
        key_head_dim=text.count("linear_key_head_dim"),
        value_head_dim=text.count("linear_value_head_dim"),
        conv_kernel=text.count("linear_conv_kernel_dim"),
        state_bytes_per_value=2 if text.text("mamba_ssm_dtype") in ("bfloat16", "float16") else 4,
    )


# windows

_LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")


def _layer_type(text: Fields, layer: int) -> str | None:
    """Of this layer by `layer_types`, or None where the config has no such list."""
    kinds = text.items("layer_types")
    if not kinds:
        return None
    num_layers = text.count("num_hidden_layers", "num_layers", "n_layer", maximum=_MAX_LAYERS)
    if len(kinds) != num_layers:
        raise text.problem("layer_types", f"{len(kinds)} entries for {num_layers} layers")
    kind = kinds[layer]
    if kind not in _LAYER_TYPES:
        raise text.problem("layer_types", f"{kind!r} is not one of {', '.join(_LAYER_TYPES)}")
    return str(kind)


def _window_tokens(text: Fields) -> int | None:
    return text.optional_count("sliding_window", minimum=0) or None


def _uniform_window(text: Fields, layer: int) -> int | None:
    """`sliding_window` in all layers (Mistral 7B v0.1, Phi-3), or in those that `layer_types` names."""
    return _window_tokens(text) if _layer_type(text, layer) in (None, "sliding_attention") else None


def _qwen_window(text: Fields, layer: int) -> int | None:
    """`sliding_window` with `use_sliding_window`, from layer `max_window_layers` on."""
    if not text.flag("use_sliding_window"):
        return None
    kind = _layer_type(text, layer)
    windowed = (
        kind == "sliding_attention"
        if kind
        else layer >= text.count("max_window_layers", default=28, minimum=0)
    )
    return _window_tokens(text) if windowed else None


def _interleaved_window(pattern: int) -> WindowRule:
    """Every `sliding_window_pattern`-th layer is full, by default every `pattern`-th."""

    def rule(text: Fields, layer: int) -> int | None:
        kind = _layer_type(text, layer)
        every = text.count("sliding_window_pattern", default=pattern)
        windowed = kind == "sliding_attention" if kind else bool((layer + 1) % every)
        return _window_tokens(text) if windowed else None

    return rule


def _llama4_window(text: Fields, layer: int) -> int | None:
    """Chunks of `attention_chunk_size` in the layers with rotary embedding: 3 of 4 unless the config lists them."""
    kind = _layer_type(text, layer)
    rotary = text.items("no_rope_layers")
    if kind is None and rotary:
        num_layers = text.count("num_hidden_layers", maximum=_MAX_LAYERS)
        if len(rotary) != num_layers:
            raise text.problem("no_rope_layers", f"{len(rotary)} entries for {num_layers} layers")
        windowed = bool(rotary[layer])
    else:
        every = text.count("no_rope_layer_interval", default=4)
        windowed = kind == "chunked_attention" if kind else bool((layer + 1) % every)
    return text.optional_count("attention_chunk_size") if windowed else None


# feed-forwards


def _dense(text: Fields, _layer: int) -> DenseFeedForward:
    return DenseFeedForward(intermediate_size=text.count("intermediate_size", "ffn_hidden_size"))


def _routed(text: Fields, *, width: int, shared: int = 0, **traits: bool) -> MoEFeedForward:
    experts = _expert_count(text)
    chosen = text.count(*_EXPERTS_PER_TOKEN)
    if chosen > experts:
        raise text.problem("num_experts_per_tok", f"{chosen} of {experts} experts")
    return MoEFeedForward(
        num_experts=experts,
        experts_per_token=chosen,
        expert_intermediate_size=width,
        shared_intermediate_size=shared,
        **traits,
    )


def _expert_count(text: Fields) -> int:
    for key in _EXPERTS:
        listed = text.values.get(key)
        if isinstance(listed, list):
            raise text.problem(key, "a different number of experts by layer is not supported")
    return text.count("n_routed_experts", *_EXPERTS)


def _all_routed(text: Fields, _layer: int) -> MoEFeedForward:
    """Mixtral, MiniMax-M2: every layer."""
    return _routed(text, width=text.count("moe_intermediate_size", "intermediate_size"))


def _gpt_oss_ffn(text: Fields, _layer: int) -> MoEFeedForward:
    return _routed(text, width=text.count("intermediate_size"), expert_bias=True, router_bias=True)


def _deepseek_ffn(text: Fields, layer: int) -> FeedForward:
    """Dense in the first `first_k_dense_replace` layers, then routed with `n_shared_experts` shared ones."""
    frequency = text.count("moe_layer_freq", default=1)
    if layer < text.count("first_k_dense_replace", default=0, minimum=0) or layer % frequency:
        return _dense(text, layer)
    width = text.count("moe_intermediate_size")
    shared = text.count("n_shared_experts", "moe_num_shared_experts", default=0, minimum=0)
    return _routed(text, width=width, shared=shared * width)


def _qwen_ffn(text: Fields, layer: int) -> FeedForward:
    """Routed in every `decoder_sparse_step`-th layer except `mlp_only_layers`."""
    dense_layers = text.items("mlp_only_layers") or []
    if layer in dense_layers or (layer + 1) % text.count("decoder_sparse_step", default=1):
        return _dense(text, layer)
    shared = text.count("shared_expert_intermediate_size", default=0, minimum=0)
    return _routed(text, width=text.count("moe_intermediate_size"), shared=shared, shared_gate=shared > 0)


def _llama4_ffn(text: Fields, layer: int) -> FeedForward:
    """Routed in every `interleave_moe_layer_step`-th layer or those of `moe_layers`, with one shared expert."""
    listed = text.items("moe_layers")
    step = text.count("interleave_moe_layer_step", default=1)
    routed = layer in listed if listed else not (layer + 1) % step
    if not routed:
        return DenseFeedForward(intermediate_size=text.count("intermediate_size_mlp"))
    width = text.count("intermediate_size")
    return _routed(text, width=width, shared=width)


_LLAMA = _Family(mixer=_grouped_query, feed_forward=_dense, biases="attention_bias")
_MISTRAL = _Family(
    mixer=_grouped_query, feed_forward=_dense, window=_uniform_window, defaults={"sliding_window": 4096}
)
_QWEN2 = _Family(mixer=_grouped_query, feed_forward=_dense, biases="qkv", window=_qwen_window)
_QWEN3 = replace(_QWEN2, biases="attention_bias", qk_norm="per_head")
_QWEN3_MOE = replace(_QWEN3, feed_forward=_qwen_ffn)
_QWEN3_NEXT = replace(
    _QWEN3_MOE,
    mixer=_hybrid,
    output_gate=True,
    mtp_keys=("mtp_num_hidden_layers", "num_nextn_predict_layers"),
)
_DEEPSEEK = _Family(mixer=_latent, feed_forward=_deepseek_ffn, mtp_keys=("num_nextn_predict_layers",))
_GEMMA = _Family(mixer=_grouped_query, feed_forward=_dense, biases="attention_bias", tied=True)
_GEMMA3 = replace(
    _GEMMA,
    qk_norm="per_head",
    norms_per_layer=4,
    window=_interleaved_window(6),
    # transformers 5.23 Gemma3TextConfig: the published files leave these out
    defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
)
_LLAMA4 = replace(_LLAMA, feed_forward=_llama4_ffn, window=_llama4_window, chunked=True)

_FAMILIES: dict[str, _Family] = {
    "llama": _LLAMA,
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "mixtral": replace(_MISTRAL, feed_forward=_all_routed, defaults={}),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": replace(_QWEN2, biases="qkv_bias", qk_norm="use_qk_norm", feed_forward=_qwen_ffn),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": replace(_QWEN3_NEXT, feed_forward=_dense),
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": replace(_DEEPSEEK, indexer=True),
    "kimi_k2": _DEEPSEEK,
    "glm_moe_dsa": replace(_DEEPSEEK, indexer=True),
    "glm4_moe_lite": _DEEPSEEK,
    "glm4_moe": _Family(
        mixer=_grouped_query,
        feed_forward=_deepseek_ffn,
        biases="attention_bias_qkv",
        qk_norm="use_qk_norm",
        mtp_keys=("num_nextn_predict_layers",),
    ),
    "glm4": replace(_LLAMA, biases="attention_bias_qkv", norms_per_layer=4),
    "chatglm": replace(_LLAMA, biases="add_qkv_bias"),
    "gpt_oss": _Family(
        mixer=_grouped_query,
        feed_forward=_gpt_oss_ffn,
        biases="qkvo",
        sinks=True,
        window=_interleaved_window(2),
    ),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms_per_layer=4, window=_interleaved_window(2)),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "minimax_m2": _Family(mixer=_grouped_query, feed_forward=_all_routed, qk_norm="full"),
    "phi3": _Family(mixer=_grouped_query, feed_forward=_dense, window=_uniform_window),
}

_MISSING = {
    "deepseek_v4": "compressed sparse attention (compress_ratios, o_groups) and hyper-connections have no formula here",
    "kimi_linear": "Kimi Delta Attention (linear_attn_config) has no formula here",
    "nemotron_h": "Mamba-2 layers (hybrid_override_pattern) have no formula here",
    "minimax": "lightning attention (attn_type_list) has no formula here",
    "minimax_text_01": "lightning attention (attn_type_list) has no formula here",
    "jamba": "Mamba layers have no formula here",
    "bamba": "Mamba-2 layers have no formula here",
    "mamba": "state-space layers have no formula here",
    "mamba2": "state-space layers have no formula here",
    "falcon_h1": "Mamba-2 heads beside attention have no formula here",
    "gemma3n_text": "per-layer embeddings and AltUp have no formula here",
    "gemma4_text": "global heads of another width and keys shared with values have no formula here",
    "t5": "encoder-decoder models have no formula here",
    "bert": "encoders have no formula here",
}
