"""Every `model_type` of a decoder with softmax attention: what its code fixes and its config does not say.

Sources: transformers 5.23 configuration and modelling files, vLLM 0.33 `model_arch_config_convertor.py`, read 2026-11;
`others` and `hybrids` hold those with mixers or layers of their own kind.
"""

from __future__ import annotations

from dataclasses import replace

from capacity.base.fields import Fields
from capacity.model.hf_config import encoders, feed_forwards, hybrids, others, windows
from capacity.model.hf_config.family import Family
from capacity.model.hf_config.mixers import delta_hybrid, grouped_query, latent, multi_query

_LLAMA = Family(
    mixer=grouped_query,
    feed_forward=feed_forwards.dense_biased,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
)
_MISTRAL = Family(
    mixer=grouped_query,
    feed_forward=feed_forwards.dense,
    window=windows.uniform_window,
    defaults={"sliding_window": 4096},
)
_MIXTRAL = replace(_MISTRAL, feed_forward=feed_forwards.all_routed, defaults={})
_QWEN2 = Family(
    mixer=grouped_query, feed_forward=feed_forwards.dense, qkv_bias=True, window=windows.qwen_window
)
_QWEN3 = replace(_QWEN2, qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="per_head")
_QWEN3_MOE = replace(_QWEN3, feed_forward=feed_forwards.qwen)
_QWEN3_NEXT = replace(
    _QWEN3_MOE,
    mixer=delta_hybrid,
    output_gate=True,
    mtp_keys=("mtp_num_hidden_layers", "num_nextn_predict_layers"),
)
_QWEN3_5 = replace(_QWEN3_NEXT, feed_forward=feed_forwards.dense)
_DEEPSEEK = Family(mixer=latent, feed_forward=feed_forwards.deepseek, mtp_keys=("num_nextn_predict_layers",))
_DEEPSEEK_V3 = replace(_DEEPSEEK, feed_forward=feed_forwards.deepseek_balanced)
_DEEPSEEK_DSA = replace(_DEEPSEEK_V3, indexer=True)
_GLM4_MOE = Family(
    mixer=grouped_query,
    feed_forward=feed_forwards.deepseek_balanced,
    qkv_bias="attention_bias",
    qk_norm="per_head",
    qk_norm_if="use_qk_norm",
    mtp_keys=("num_nextn_predict_layers",),
)
_GEMMA = replace(_LLAMA, feed_forward=feed_forwards.dense, tied=True)
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
_COHERE = replace(
    _LLAMA,
    feed_forward=feed_forwards.dense,
    norms_per_layer=1,
    tied=True,
    qk_norm="full",
    qk_norm_if="use_qk_norm",
)
_OLMO2 = replace(
    _LLAMA, feed_forward=feed_forwards.dense, qk_norm="full", window=windows.interleaved_window(4)
)
_HUNYUAN = replace(
    _LLAMA, qk_norm="per_head", qk_norm_if=("use_qk_norm", True), feed_forward=feed_forwards.dense
)
_BY_LIST = replace(
    _LLAMA,
    feed_forward=feed_forwards.by_list,
    qk_norm="per_head",
    window=windows.uniform_window,
    mtp_keys=("num_nextn_predict_layers",),
)
_MINIMAX_M3 = Family(
    mixer=others.indexed_mixer,
    feed_forward=feed_forwards.by_list_scored_in_fp32,
    qk_norm="per_head",
    beside=others.block_indexer,
    mtp_keys=("num_mtp_modules",),
    notes=(
        "attention to chosen blocks is timed as attention to all (assumed: an upper bound for long contexts)",
    ),
)

# decoders of the first years: layer norms with biases, two matrices in the feed-forward


def _falcon_norms(text: Fields) -> int:
    """Two where attention and feed-forward stand one after the other, or side by side with a norm each."""
    stated = text.optional_count("num_ln_in_parallel_attn")
    if stated is not None:
        return stated
    return 2 if text.flag("new_decoder_architecture") or not text.flag("parallel_attn", default=True) else 1


_GPT2 = Family(
    mixer=grouped_query,
    feed_forward=feed_forwards.plain(bias=True),
    qkv_bias=True,
    output_bias=True,
    norm_values=2,
    tied=True,
    outside=others.positions("n_positions", "n_ctx"),
)
_FALCON = Family(
    mixer=multi_query,
    feed_forward=feed_forwards.plain(bias=("bias", False)),
    qkv_bias="bias",
    output_bias="bias",
    norms_per_layer=_falcon_norms,
    norm_values=2,
    tied=True,
    defaults={"max_position_embeddings": 2048},
)
_STABLELM = Family(
    mixer=grouped_query,
    feed_forward=feed_forwards.dense,
    qkv_bias="use_qkv_bias",
    qk_norm="full",
    qk_norm_if="qk_layernorm",
    norms_per_layer=lambda text: 1 if text.flag("use_parallel_residual") else 2,
    norm_values=2,
)
_PHI3 = Family(mixer=grouped_query, feed_forward=feed_forwards.dense, window=windows.uniform_window)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": replace(_MISTRAL, defaults={}),
    "mistral4": _DEEPSEEK_V3,
    "mixtral": _MIXTRAL,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_5_omni_text": _QWEN2,
    "qwen2_moe": replace(
        _QWEN2,
        qkv_bias=("qkv_bias", True),
        qk_norm="per_head",
        qk_norm_if="use_qk_norm",
        feed_forward=feed_forwards.qwen,
    ),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_omni_moe_text": _QWEN3_MOE,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "deepseek": replace(_LLAMA, feed_forward=feed_forwards.deepseek),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_DSA,
    "kimi_k2": _DEEPSEEK_V3,
    "youtu": replace(_DEEPSEEK, feed_forward=feed_forwards.dense, tied=True, mtp_keys=()),
    "minicpm3": replace(_DEEPSEEK, feed_forward=feed_forwards.dense, tied=True, mtp_keys=()),
    "glm_moe_dsa": _DEEPSEEK_DSA,
    "glm4_moe_lite": _DEEPSEEK_V3,
    "glm4_moe": _GLM4_MOE,
    "glm4v_moe_text": _GLM4_MOE,
    "sarvam_moe": replace(_GLM4_MOE, qkv_bias="use_qkv_bias"),
    "sarvam_mla": _DEEPSEEK_V3,
    "glm": replace(_LLAMA, output_bias=False, feed_forward=feed_forwards.dense),
    "glm4": replace(_LLAMA, output_bias=False, norms_per_layer=4, feed_forward=feed_forwards.dense),
    "glm4v_text": replace(_LLAMA, output_bias=False, norms_per_layer=4, feed_forward=feed_forwards.dense),
    "chatglm": replace(_LLAMA, qkv_bias="add_qkv_bias", output_bias=False),
    "solar_open": replace(_GLM4_MOE, qk_norm="none"),
    "gpt_oss": Family(
        mixer=grouped_query,
        feed_forward=feed_forwards.gpt_oss,
        qkv_bias=True,
        output_bias=True,
        sinks=True,
        window=windows.interleaved_window(2),
    ),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms_per_layer=4, window=windows.interleaved_window(2)),
    "vaultgemma": replace(_GEMMA, window=windows.interleaved_window(2)),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "minimax_m2": Family(mixer=grouped_query, feed_forward=feed_forwards.minimax, qk_norm="full"),
    "phi3": _PHI3,
    "phi4_multimodal": _PHI3,
    "phimoe": replace(
        _LLAMA, feed_forward=feed_forwards.all_routed, norm_values=2, outside=others.head_bias("lm_head_bias")
    ),
    # gated decoders of one kind
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, window=windows.interleaved_window(4)),
    "granite": _LLAMA,
    "granitemoe": replace(_LLAMA, feed_forward=feed_forwards.all_routed),
    "granitemoeshared": replace(_LLAMA, feed_forward=feed_forwards.all_routed),
    "olmo": replace(_LLAMA, norm_values=0, feed_forward=feed_forwards.dense),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "olmoe": replace(_OLMO2, feed_forward=feed_forwards.all_routed),
    "flex_olmo": replace(_OLMO2, feed_forward=feed_forwards.all_routed),
    "exaone": replace(_LLAMA, feed_forward=feed_forwards.dense),
    "exaone4": replace(_QWEN3, qkv_bias=False, output_bias=False, window=windows.interleaved_window(4)),
    "exaone_moe": replace(_BY_LIST, qkv_bias=False, output_bias=False, window=windows.interleaved_window(4)),
    "ernie4_5": replace(
        _LLAMA,
        qkv_bias="use_bias",
        output_bias="use_bias",
        feed_forward=feed_forwards.with_biases("use_bias"),
        tied=True,
    ),
    "ernie4_5_moe": replace(
        _LLAMA,
        qkv_bias="use_bias",
        output_bias="use_bias",
        feed_forward=feed_forwards.ernie,
        beside=others.expert_scores("moe_layer_start_index"),
        tied=True,
        mtp_keys=("num_nextn_predict_layers",),
    ),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": replace(_HUNYUAN, feed_forward=feed_forwards.hunyuan),
    "hunyuan": replace(_HUNYUAN, feed_forward=feed_forwards.hunyuan),
    "hy_v3": replace(_BY_LIST, feed_forward=feed_forwards.by_list_scored_in_fp32),
    "seed_oss": replace(_LLAMA, output_bias="attention_out_bias"),
    "smollm3": replace(_LLAMA, window=windows.uniform_window, tied=True),
    "internlm2": replace(_LLAMA, qkv_bias="bias", output_bias="bias"),
    "internlm3": replace(
        _LLAMA, qkv_bias="qkv_bias", output_bias="bias", feed_forward=feed_forwards.with_biases("bias")
    ),
    "baichuan": replace(_LLAMA, feed_forward=feed_forwards.dense),
    "minicpm": _LLAMA,
    "helium": _LLAMA,
    "cwm": replace(_LLAMA, window=windows.uniform_window),
    "dots1": replace(
        _LLAMA,
        feed_forward=feed_forwards.deepseek_balanced,
        qk_norm="per_head",
        window=windows.uniform_window,
    ),
    "bitnet": replace(_LLAMA, feed_forward=others.bitnet_feed_forward, beside=others.bitnet_beside),
    "afmoe": replace(
        _LLAMA,
        feed_forward=feed_forwards.afmoe,
        qk_norm="per_head",
        norms_per_layer=4,
        output_gate=True,
        window=windows.interleaved_window(4),
        beside=others.expert_scores("num_dense_layers"),
    ),
    "mimo": replace(_QWEN2, mtp_keys=("num_nextn_predict_layers",)),
    "mimo_v2_flash": others.MIMO_V2,
    "step3p5": others.STEP_3P5,
    "step3p7": others.STEP_3P5,
    "step3_text": others.STEP_3,
    "nemotron-nas": others.NEMOTRON_NAS,
    "longcat_flash": others.LONGCAT,
    "gemma3n_text": others.GEMMA3N,
    "gemma4_text": others.GEMMA4,
    "mllama_text_model": others.MLLAMA,
    "deepseek_v4": others.DEEPSEEK_V4,
    "deepseek_ref": others.DEEPSEEK_V4,
    "minimax_m3": _MINIMAX_M3,
    "minimax_m3_vl": _MINIMAX_M3,
    "minimax_m3_vl_text": _MINIMAX_M3,
    "laguna": replace(_BY_LIST, beside=others.laguna_beside),
    # without a gate
    "nemotron": Family(
        mixer=grouped_query,
        feed_forward=feed_forwards.plain(bias=("mlp_bias", False)),
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        norm_values=2,
    ),
    "arcee": replace(_LLAMA, feed_forward=feed_forwards.plain(bias=("mlp_bias", False))),
    "apertus": replace(
        _LLAMA,
        feed_forward=feed_forwards.plain(bias=("mlp_bias", False)),
        qk_norm="per_head",
        beside=others.values_beside(2),
    ),
    "nanochat": replace(_LLAMA, feed_forward=feed_forwards.plain(), norm_values=0),
    "starcoder2": Family(
        mixer=grouped_query,
        feed_forward=feed_forwards.plain(bias=("use_bias", True)),
        qkv_bias=("use_bias", True),
        output_bias=("use_bias", True),
        norm_values=2,
        tied=True,
        window=windows.uniform_window,
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, mixer=multi_query),
    "gpt_neox": replace(
        _GPT2,
        qkv_bias=("attention_bias", True),
        output_bias=("attention_bias", True),
        tied=False,
        outside=lambda _text: (),
    ),
    "gptj": replace(
        _GPT2,
        qkv_bias=False,
        output_bias=False,
        norms_per_layer=1,
        tied=False,
        outside=others.head_bias(True),
    ),
    "falcon": _FALCON,
    "RefinedWebModel": _FALCON,
    "bloom": replace(_GPT2, outside=others.embedding_norm, defaults={"max_position_embeddings": 2048}),
    "mpt": replace(
        _GPT2,
        qkv_bias=False,
        output_bias=False,
        feed_forward=feed_forwards.plain(),
        norm_values=1,
        outside=lambda _text: (),
    ),
    "opt": replace(
        _GPT2,
        qkv_bias=("enable_bias", True),
        output_bias=("enable_bias", True),
        feed_forward=feed_forwards.plain(bias=("enable_bias", True)),
        outside=others.positions("max_position_embeddings", added=2),
    ),
    "phi": replace(
        _GPT2,
        norms_per_layer=1,
        tied=False,
        qk_norm="none",
        outside=others.head_bias(True),
    ),
    "stablelm": _STABLELM,
    **hybrids.FAMILIES,
    **encoders.FAMILIES,
}
