"""Functions that return the attention of a layer from the config, for each model family."""

from capacity.base.fields import Fields
from capacity.model.hf_config import windows
from capacity.model.hf_config.family import Family, flag_value
from capacity.model.hf_config.feed_forwards import layer_count
from capacity.model.hf_config.field_names import NAMES
from capacity.model.layers import Attention, LatentAttention, LinearAttention, Mixer, SparseIndexer

HEADS, KV_HEADS = NAMES["heads"], NAMES["kv_heads"]
HIDDEN, HEAD_DIM = NAMES["hidden"], NAMES["head_dim"]


def grouped_query(text: Fields, family: Family, layer: int) -> Attention:
    """Return multi-head, grouped-query or multi-query attention; the config may list the heads of each layer."""
    num_heads = layer_count(text, layer, "num_attention_heads_per_layer", *HEADS) or text.count(*HEADS)
    num_kv_heads = layer_count(text, layer, *KV_HEADS) or num_heads
    if num_heads % num_kv_heads:
        raise text.problem(
            "num_key_value_heads", f"{num_kv_heads} does not divide {num_heads} attention heads"
        )
    window = family.window(text, layer)
    return Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim(text, num_heads),
        window_tokens=window,
        chunked=family.chunked and window is not None,
        qkv_bias=flag_value(text, family.qkv_bias),
        output_bias=flag_value(text, family.output_bias),
        qk_norm=family.qk_norm if flag_value(text, family.qk_norm_if) else "none",
        output_gate=family.output_gate and text.flag("attn_output_gate", default=True),
        sinks=flag_value(text, family.sinks),
    )


def head_dim(text: Fields, num_heads: int) -> int:
    """Return the head size in the config; default: the hidden size divided by the number of heads."""
    stated = text.optional_count(*HEAD_DIM)
    if stated is not None:
        return stated
    hidden = text.count(*HIDDEN)
    if hidden % num_heads:
        raise text.problem(
            "num_attention_heads",
            f"{num_heads} does not divide hidden_size {hidden}, and head_dim is missing",
        )
    return hidden // num_heads


def multi_query(text: Fields, family: Family, layer: int) -> Attention:
    """Return the attention of Falcon and StarCoder: one KV head if `multi_query` is set, else one per query head.

    The config's `num_kv_heads` is used only with Falcon's `new_decoder_architecture`.
    """
    heads = text.count(*HEADS)
    if text.flag("new_decoder_architecture"):
        kv_heads = text.count(*KV_HEADS, default=heads)
    else:
        kv_heads = 1 if text.flag("multi_query", default=True) else heads
    return grouped_query(text.update({"num_key_value_heads": kv_heads}), family, layer)


def latent(text: Fields, family: Family, layer: int) -> LatentAttention:
    """Return DeepSeek's multi-head latent attention, with an indexer if the model uses sparse attention."""
    indexer = None
    if family.indexer or text.has("index_topk"):
        indexer = sparse_indexer(text, shared=text.entry_of_layer("indexer_types", layer) == "shared")
    return LatentAttention(
        num_heads=text.count("num_attention_heads"),
        kv_lora_rank=text.count("kv_lora_rank"),
        q_lora_rank=text.optional_count("q_lora_rank"),
        qk_nope_head_dim=text.count("qk_nope_head_dim"),
        qk_rope_head_dim=text.count("qk_rope_head_dim", minimum=0),
        v_head_dim=text.count("v_head_dim"),
        indexer=indexer,
    )


def sparse_indexer(text: Fields, *, shared: bool = False) -> SparseIndexer:
    return SparseIndexer(
        num_heads=text.count("index_n_heads"),
        head_dim=text.count("index_head_dim"),
        top_k=text.count("index_topk"),
        shared=shared,
    )


def delta_hybrid(text: Fields, family: Family, layer: int) -> Mixer:
    """Return full attention in every `full_attention_interval`-th layer, else gated DeltaNet (Qwen3-Next, Qwen3.5)."""
    kind = windows.layer_type(text, layer)
    full = kind != "linear_attention"
    if kind is None:
        full = (layer + 1) % text.count("full_attention_interval", default=4) == 0
    if full:
        return grouped_query(text, family, layer)
    return LinearAttention(
        num_key_heads=text.count("linear_num_key_heads"),
        num_value_heads=text.count("linear_num_value_heads"),
        key_head_dim=text.count("linear_key_head_dim"),
        value_head_dim=text.count("linear_value_head_dim"),
        conv_kernel=text.count("linear_conv_kernel_dim"),
        state_bytes_per_value=2 if text.text("mamba_ssm_dtype") in ("bfloat16", "float16") else 4,
    )
