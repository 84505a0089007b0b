"""DeepSeek-V4's compressed attention: over a window of tokens, and over entries that each compress several tokens."""

from capacity.model.compressed import CompressedAttention
from capacity.model.layers import LayerGroup
from capacity.step.layers import grouped, latent
from capacity.step.layers.builder import AttentionWork, Builder, MixerOperators
from capacity.step.layers.linear import ROOFLINE_ERROR
from capacity.step.operators import ACTIVATION_BYTES, Operator

KERNELS_OF_COMPRESSION = 6.0  # gates, softmax over an entry's tokens, norm, rope, writes; assumed, 2026-11


def operators(mixer: CompressedAttention, group: LayerGroup, build: Builder) -> MixerOperators:
    """Build projections, the compressor, and attention over the window and over the compressed entries."""
    build.assume(
        "times of compressed attention are assumed to be those of latent attention over the same number of entries, "
        "because no kernel of it was measured",
        ROOFLINE_ERROR,
    )
    heads = grouped.shard(mixer.num_heads, build.setting.tensor_parallel_size)
    hidden, width = build.model.hidden_size, heads * mixer.head_dim
    groups = mixer.output_groups * heads / mixer.num_heads
    rank = groups * mixer.output_lora_rank
    rows = [
        ("qkv_a", hidden, mixer.q_lora_rank + mixer.head_dim, ("q_a_proj", "kv_proj")),
        ("q_b", mixer.q_lora_rank, width, ("q_b_proj",)),
        ("o_a", width / groups, rank, ("o_a_proj",)),
        ("o_b", rank, hidden, ("o_b_proj",)),
    ]
    beyond: list[tuple[str, float, float, tuple[str, ...]]] = []
    if mixer.compress_rate:
        entries = 2 * mixer.compressor_copies * mixer.head_dim
        beyond.append(("compressor", hidden, entries, ("compressor.kv_proj", "compressor.gate_proj")))
    if (indexer := mixer.indexer) is not None:
        keys = 2 * mixer.compressor_copies * indexer.head_dim + indexer.num_heads
        queries = indexer.num_heads * indexer.head_dim
        beyond.append(("indexer q", mixer.q_lora_rank, queries, ("indexer.wq_b",)))
        beyond.append(("indexer k", hidden, keys, ("indexer.kv_proj", "indexer.gate_proj")))
    products: list[Operator] = [
        *build.projections(group, "attention", "self_attn", *rows),
        build.elementwise(
            group,
            rope_values=width + mixer.head_dim,
            cache_bytes=mixer.entry_bytes(build.kv_cache),
            kernels=KERNELS_OF_COMPRESSION,
        ),
        *build.projections(group, "attention", "self_attn", *beyond),
    ]
    return MixerOperators(products=products, attention=_attention(mixer, group, build, heads))


def _attention(mixer: CompressedAttention, group: LayerGroup, build: Builder, heads: float) -> list[Operator]:
    """Build attention over the window (one KV head) and over entries (latents that each cover some tokens)."""
    flops, entry = 4.0 * heads * mixer.head_dim, mixer.entry_bytes(build.kv_cache)
    row_bytes = 2 * heads * mixer.head_dim * ACTIVATION_BYTES
    count, rate = group.num_layers, mixer.compress_rate

    def window_work(work: type[grouped.PrefillWork] | type[grouped.DecodeWork]) -> AttentionWork:
        return work(windowed=True, heads=1.0, flops_per_pair=flops, context_bytes=entry, row_bytes=row_bytes)

    def compressed_work(work: type[latent.PrefillWork] | type[latent.DecodeWork]) -> AttentionWork:
        top_k = None if mixer.indexer is None else mixer.indexer.top_k * rate
        return work(flops_per_pair=flops / rate, context_bytes=entry / rate, row_bytes=0.0, top_k=top_k)

    prefill, decode = window_work(grouped.PrefillWork), window_work(grouped.DecodeWork)
    found: list[Operator] = [
        build.attention("attention prefill (window)", "mla_prefill", prefill, count=count),
        build.attention("attention decode (window)", "mla_decode", decode, count=count),
    ]
    if not rate:
        return found
    entries = compressed_work(latent.DecodeWork)
    found += [
        build.attention("attention prefill", "mla_prefill", compressed_work(latent.PrefillWork), count=count),
        build.attention("attention decode", "mla_decode", entries, count=count),
    ]
    if mixer.indexer is not None:
        assert isinstance(entries, latent.DecodeWork)
        found.append(latent.sparse_prefill(entries, heads, group, build))
        found.append(latent.indexer_operator(mixer.indexer, group, build, rate=rate))
    return found
