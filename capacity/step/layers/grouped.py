"""Softmax attention with KV heads: multi-head, grouped-query, multi-query; full or windowed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from capacity.model.layers import Attention, LayerGroup
from capacity.step import StepShape
from capacity.step.layers import eager
from capacity.step.layers.builder import NO_WORK, Builder, MixerOperators
from capacity.step.operators import ACTIVATION_BYTES, Operator
from capacity.step.row_counts import prompt_tokens

# full: the variances of both, then the scaling of both
KERNELS_OF_QK_NORM = {"none": 0.0, "per_head": 1.0, "full": 4.0}
# two FP32 variances, in 16-bit values; source: vLLM 0.1x MiniMaxText01RMSNormTP.forward_qk
VALUES_OF_FULL_QK_NORM = 4.0


def operators(mixer: Attention, group: LayerGroup, build: Builder) -> MixerOperators:
    """Build QKV and output GEMMs, RoPE and norms, and the attention of prefill and decode."""
    hidden, ranks, layers = build.model.hidden_size, build.setting.tensor_parallel_size, group.num_layers
    heads, kv_heads = shard(mixer.num_heads, ranks), shard(mixer.num_kv_heads, ranks)
    width, value_width = heads * mixer.head_dim, heads * mixer.value_head_dim
    keys, values = kv_heads * mixer.head_dim, kv_heads * mixer.value_head_dim
    own = mixer.projected_parts
    kv_width = (keys if "k" in own else 0.0) + (values if "v" in own else 0.0)
    query_width = width * (2 if mixer.output_gate else 1)
    into = ("qkv", hidden, query_width + kv_width, [f"{name}_proj" for name in own])
    output = ("attention output", value_width, hidden, ("o_proj",))
    prefill, decode = _attention(mixer, layers, build)
    exchange = build.context_exchange(layers, query_values=width, output_values=value_width)
    phases: dict[str, list[Operator]] = {
        "all": [prefill, decode, *exchange],
        "prompt": [prefill],
        "output": [decode],
    }
    products: list[Operator] = [
        *(_cross_products(mixer, group, build) if mixer.crossed else ()),
        *build.projections(group, "attention", "self_attn", into, output),
        build.elementwise(
            group,
            rope_values=width + (keys if "k" in own else 0.0),
            cache_bytes=0.0 if mixer.shares_kv else (keys + values) * build.kv_cache.value_bits / 8,
            kernels=KERNELS_OF_QK_NORM[mixer.qk_norm],
        ),
    ]
    if mixer.qk_norm == "full" and ranks > 1:  # a norm over all heads needs the sum of squares of all ranks
        values_per_row = VALUES_OF_FULL_QK_NORM
        products.append(build.all_reduce("all-reduce of norms", count=layers, values_per_row=values_per_row))
    return MixerOperators(products, phases[group.phase if mixer.causal else "prompt"])


def _attention(mixer: Attention, layers: int, build: Builder) -> tuple[Operator, Operator]:
    """Build the attention of prefill and of decode, with the kernel that the user named or the fitted one."""
    ranks, shared = build.setting.tensor_parallel_size, build.setting.decode_context_parallel_size
    heads, kv_heads = shard(mixer.num_heads, ranks), shard(mixer.num_kv_heads, ranks)
    width, value_width = heads * mixer.head_dim, heads * mixer.value_head_dim
    windowed = mixer.window_tokens is not None
    suffix = " (window)" if windowed and mixer.eviction == "none" else ""
    work = {
        "heads": kv_heads,
        "flops_per_pair": 2.0 * (width + value_width) * (1.0 if mixer.causal else 2.0),
        "context_bytes": mixer.kv_bytes_per_token(build.kv_cache) * kv_heads / mixer.num_kv_heads,
        "row_bytes": (width + value_width) * ACTIVATION_BYTES,
    }
    per_rank = {"context_bytes": work["context_bytes"] / shared, "row_bytes": work["row_bytes"] * shared}
    # all scores a second time
    scored = width / (width + value_width) if mixer.eviction == "after scoring" else 0.0
    of_prefill = work | {"flops_per_pair": work["flops_per_pair"] * (1.0 + scored)}
    prefill_work = PrefillWork(windowed=not mixer.sees_whole_prompt, **of_prefill)
    decode_work = DecodeWork(windowed=windowed, **work | per_rank)
    return eager.select_attention_kernel(
        build.attention("attention prefill" + suffix, "prefill_attention", prefill_work, count=layers),
        build.attention("attention decode" + suffix, "decode_attention", decode_work, count=layers),
        build,
        mixer=mixer,
        heads=heads,
        kv_heads=kv_heads,
    )


def _cross_products(mixer: Attention, group: LayerGroup, build: Builder) -> Iterator[Operator]:
    """Build cross-attention GEMMs: queries and output for decoder rows, keys and values for prompt rows."""
    hidden, ranks = build.model.hidden_size, build.setting.tensor_parallel_size
    width = shard(mixer.num_heads, ranks) * mixer.head_dim
    query, output = ("cross query", hidden, width, ("q_proj",)), ("cross output", width, hidden, ("o_proj",))
    yield from build.projections(group, "attention", "cross_attn", query, output)
    kept = ("cross_attn.k_proj", "cross_attn.v_proj")
    name = "cross keys and values"
    yield from build.gemm(
        name, "attention", k=hidden, n=2 * width, parts=kept, group=group, rows=prompt_tokens
    )


def shard(count: float, ranks: int) -> float:
    """Return the heads on the busiest rank; at least one, because engines do not split a head."""
    return max(1.0, math.ceil(count / ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    windowed: bool
    heads: float  # KV heads
    flops_per_pair: float
    context_bytes: float  # KV of one token
    row_bytes: float


class PrefillWork(_Work):
    """FLOPs and bytes of prefill attention (see `AttentionWork`). Bytes: queries, outputs, the context's KV once."""

    __slots__ = ()

    def __call__(self, shape: StepShape) -> tuple[float, float, float, float]:
        pairs, context = (shape[4], shape[5]) if self.windowed else (shape[2], shape[3])
        moved = context * self.context_bytes + shape[1] * self.row_bytes
        return pairs * self.flops_per_pair, moved, shape[0] * self.heads, 0.0


class DecodeWork(_Work):
    """FLOPs and bytes of decode attention (see `AttentionWork`); KV is read once, for any number of drafts."""

    __slots__ = ()

    def __call__(self, shape: StepShape) -> tuple[float, float, float, float]:
        sequences, drafts = shape[7], shape[8]
        if sequences <= 0:
            return NO_WORK
        context = shape[10] if self.windowed else shape[9]
        queries = 1.0 + drafts / sequences
        moved = context * self.context_bytes + (sequences + drafts) * self.row_bytes
        return context * queries * self.flops_per_pair, moved, sequences * self.heads, context / sequences
