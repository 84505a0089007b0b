"""Every `model_type` that is read: what its code fixes and its config does not say, and how its mixers are written.

Sources: transformers 5.23 configuration and modelling files, vLLM 0.33 `model_arch_config_convertor.py`, read 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from capacity.base.fields import Fields
from capacity.model.hf_config import feed_forwards, windows
from capacity.model.hf_config.feed_forwards import FeedForwardRule
from capacity.model.hf_config.windows import WindowRule
from capacity.model.layers import Attention, LatentAttention, LinearAttention, Mixer, SparseIndexer

_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "multi_query_group_num",
    "num_attention_groups",
)
BiasRule: TypeAlias = Literal[
    "none", "qkv", "qkvo", "attention_bias", "attention_bias_qkv", "qkv_bias", "add_qkv_bias"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the code of a model type fixes and its config does not say."""

    mixer: Callable[[Fields, Family, int], Mixer]
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


# mixers


def _grouped_query(text: Fields, family: Family, layer: int) -> Attention:
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
    stated = text.optional_count("head_dim", "hidden_size_per_head", "kv_channels")
    if stated is not None:
        return stated
    hidden = text.count("hidden_size", "n_embd", "d_model")
    if hidden % num_heads:
        raise text.problem(
            "num_attention_heads", f"{num_heads} does not divide hidden_size {hidden}, and no head_dim"
        )
    return hidden // num_heads


def _has_bias(text: Fields, family: Family, where: Literal["qkv", "output"]) -> bool:
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


def _qk_norm(text: Fields, family: Family) -> Literal["none", "per_head", "full"]:
    if family.qk_norm == "use_qk_norm":
        return "per_head" if text.flag("use_qk_norm") else "none"
    return family.qk_norm


def _latent(text: Fields, family: Family, _layer: int) -> LatentAttention:
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


def _hybrid(text: Fields, family: Family, layer: int) -> Mixer:
    """Qwen3-Next and 3.5: gated DeltaNet, with full attention in every `full_attention_interval`-th layer."""
    kind = windows.layer_type(text, layer)
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


# families

_LLAMA = Family(mixer=_grouped_query, feed_forward=feed_forwards.dense, biases="attention_bias")
_MISTRAL = Family(
    mixer=_grouped_query,
    feed_forward=feed_forwards.dense,
    window=windows.uniform_window,
    defaults={"sliding_window": 4096},
)
_QWEN2 = Family(
    mixer=_grouped_query, feed_forward=feed_forwards.dense, biases="qkv", window=windows.qwen_window
)
_QWEN3 = replace(_QWEN2, biases="attention_bias", qk_norm="per_head")
_QWEN3_MOE = replace(_QWEN3, feed_forward=feed_forwards.qwen)
_QWEN3_NEXT = replace(
    _QWEN3_MOE,
    mixer=_hybrid,
    output_gate=True,
    mtp_keys=("mtp_num_hidden_layers", "num_nextn_predict_layers"),
)
_DEEPSEEK = Family(mixer=_latent, feed_forward=feed_forwards.deepseek, mtp_keys=("num_nextn_predict_layers",))
_DEEPSEEK_V3 = replace(_DEEPSEEK, feed_forward=feed_forwards.deepseek_balanced)
_GEMMA = Family(mixer=_grouped_query, feed_forward=feed_forwards.dense, biases="attention_bias", tied=True)
_GEMMA3 = replace(
    _GEMMA,
    qk_norm="per_head",
    norms_per_layer=4,
    window=windows.interleaved_window(6),
    # transformers 5.23 Gemma3TextConfig: the published files leave these out
    defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
)
_LLAMA4 = replace(_LLAMA, feed_forward=feed_forwards.llama4, window=windows.llama4_window, chunked=True)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "mixtral": replace(_MISTRAL, feed_forward=feed_forwards.all_routed, defaults={}),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": replace(_QWEN2, biases="qkv_bias", qk_norm="use_qk_norm", feed_forward=feed_forwards.qwen),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": replace(_QWEN3_NEXT, feed_forward=feed_forwards.dense),
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": replace(_DEEPSEEK_V3, indexer=True),
    "kimi_k2": _DEEPSEEK_V3,
    "glm_moe_dsa": replace(_DEEPSEEK_V3, indexer=True),
    "glm4_moe_lite": _DEEPSEEK_V3,
    "glm4_moe": Family(
        mixer=_grouped_query,
        feed_forward=feed_forwards.deepseek_balanced,
        biases="attention_bias_qkv",
        qk_norm="use_qk_norm",
        mtp_keys=("num_nextn_predict_layers",),
    ),
    "glm4": replace(_LLAMA, biases="attention_bias_qkv", norms_per_layer=4),
    "chatglm": replace(_LLAMA, biases="add_qkv_bias"),
    "gpt_oss": Family(
        mixer=_grouped_query,
        feed_forward=feed_forwards.gpt_oss,
        biases="qkvo",
        sinks=True,
        window=windows.interleaved_window(2),
    ),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms_per_layer=4, window=windows.interleaved_window(2)),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "minimax_m2": Family(mixer=_grouped_query, feed_forward=feed_forwards.minimax, qk_norm="full"),
    "phi3": Family(mixer=_grouped_query, feed_forward=feed_forwards.dense, window=windows.uniform_window),
}

MISSING = {
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
