"""Layers of the harness's transformer: attention over a paged cache, dense feed-forward layers, and experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from capacity.model.feed_forward import MoEFeedForward
from capacity.model.layers import Attention, LatentAttention
from capacity_validate.kernels.attention import absorbed_decode
from capacity_validate.kernels.experts import (
    ExpertWeights,
    grouped_experts,
    grouped_in_one_kernel,
    looped_experts,
)
from capacity_validate.kernels.fused import rope_and_cache, rotate, silu_and_mul
from capacity_validate.kernels.paged import (
    append_sink,
    causal_attention,
    gather_context,
    paged_decode_attention,
)
from capacity_validate.step_inputs import EPSILON, StepInputs

if TYPE_CHECKING:
    from capacity_validate.transformer import Transformer


class GroupedMixer:
    """Multi-head, grouped-query or multi-query attention over a paged cache.

    Supports a sliding or chunked window, learned sinks, biases, query and key norms, and an output gate.
    """

    def __init__(self, owner: Transformer, spec: Attention, tables: tuple[Any, Any]) -> None:
        self.spec, self.tables = spec, tables
        hidden, d = owner.model.hidden_size, spec.head_dim
        self.width, kv_width = spec.num_heads * d, spec.num_kv_heads * d
        self.widths = (self.width * (2 if spec.output_gate else 1), kv_width, kv_width)
        self.qkv = owner.random(sum(self.widths), hidden, scale=hidden**-0.5)
        self.bias = owner.random(sum(self.widths), scale=0.1) if spec.qkv_bias else None
        lengths = {"none": (), "per_head": (d, d), "full": (self.width, kv_width)}
        self.qk_norms = tuple(owner.ones_like_weights(length) for length in lengths[spec.qk_norm])
        self.output = owner.random(hidden, self.width, scale=self.width**-0.5)
        self.output_bias = owner.random(hidden, scale=0.1) if spec.output_bias else None
        self.sinks: Any = owner.random(spec.num_heads, scale=1.0) if spec.sinks else None
        shape = (owner.allocated_blocks, owner.block_size, spec.num_kv_heads, d)
        self.caches = [torch.zeros(shape, device=owner.device, dtype=owner.dtype) for _ in range(2)]
        self.used = owner.attention_kernels

    @property
    def weights(self) -> list[Any]:
        optional = (self.bias, self.output_bias, self.sinks)
        return [self.qkv, self.output, *self.qk_norms, *(part for part in optional if part is not None)]

    def __call__(self, x: Any, step: StepInputs) -> Any:
        spec, d = self.spec, self.spec.head_dim
        q, k, v = functional.linear(x, self.qkv, self.bias).split(self.widths, dim=-1)
        gate = None
        if spec.output_gate:
            q, gate = q.chunk(2, dim=-1)
        if self.qk_norms:  # per head, or over all heads, depending on the weights' length
            q, k = (
                functional.rms_norm(
                    part.reshape(part.shape[0], -1, weight.shape[0]), weight.shape, weight, EPSILON
                )
                for part, weight in zip((q, k), self.qk_norms, strict=True)
            )
        q, k = q.reshape(-1, spec.num_heads, d), k.reshape(-1, spec.num_kv_heads, d)
        v = v.reshape(-1, spec.num_kv_heads, d)
        keys, values = self.caches
        q = rope_and_cache(
            q, k, v, positions=step.positions, tables=self.tables, keys=keys, values=values, slots=step.slots
        )
        parts = []
        if step.decode_rows:
            parts.append(
                paged_decode_attention(
                    q[: step.decode_rows], keys, values, step.tables, step.contexts,
                    max_context=step.max_context, contexts_cpu=step.contexts_cpu,
                    window_tokens=spec.window_tokens, chunked=spec.chunked, sinks=self.sinks,
                )
            )  # fmt: skip
        for first, count, computed, blocks in step.prefills:
            parts.append(self._prefill(q[first : first + count], computed, blocks))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        attended = attended.reshape(x.shape[0], -1)
        if gate is not None:
            attended = attended * torch.sigmoid(gate)
        return functional.linear(attended, self.output, self.output_bias)

    def _prefill(self, q: Any, computed: int, blocks: Any) -> Any:
        count = q.shape[0]
        k, v = (gather_context(cache, blocks, computed + count) for cache in self.caches)
        mask = window_mask(count, computed, self.spec.window_tokens, q.device, chunked=self.spec.chunked)
        q = q.transpose(0, 1)
        if mask is None and self.sinks is None:
            return causal_attention(q[None], k[None], v[None], used=self.used)[0].transpose(0, 1)
        groups = self.spec.num_heads // self.spec.num_kv_heads
        k, v = k.repeat_interleave(groups, dim=0), v.repeat_interleave(groups, dim=0)
        if self.sinks is not None:
            if mask is None:
                mask = torch.ones(count, k.shape[1], dtype=torch.bool, device=q.device).tril(computed)
            k, v, bias = append_sink(k, v, self.sinks[:, None], mask)
            mask = bias[None]
        self.used["windowed" if self.sinks is None else "sinks"] += 1
        attended = functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)
        return attended[0].transpose(0, 1)


def window_mask(
    new_tokens: int, computed: int, window_tokens: int | None, device: Any, *, chunked: bool = False
) -> Any:
    """Return a mask [new tokens, context], True where a query may attend; None if the window covers the context."""
    if window_tokens is None or computed + new_tokens <= window_tokens:
        return None
    query = torch.arange(computed, computed + new_tokens, device=device)[:, None]
    key = torch.arange(computed + new_tokens, device=device)[None, :]
    first = query // window_tokens * window_tokens if chunked else query - window_tokens + 1
    return (key <= query) & (key >= first)


class LatentMixer:
    """Multi-head latent attention: prefill expands latents to keys and values, decode uses absorbed matrices."""

    def __init__(self, owner: Transformer, spec: LatentAttention, tables: tuple[Any, Any]) -> None:
        self.spec, self.tables = spec, tables
        hidden, heads, latent = owner.model.hidden_size, spec.num_heads, spec.kv_lora_rank
        self.scale = spec.qk_head_dim**-0.5
        self.q_a = None
        query_width = hidden
        if spec.q_lora_rank is not None:
            self.q_a = owner.random(spec.q_lora_rank, hidden, scale=hidden**-0.5)
            self.q_norm = owner.ones_like_weights(spec.q_lora_rank)
            query_width = spec.q_lora_rank
        self.q_b = owner.random(heads * spec.qk_head_dim, query_width, scale=query_width**-0.5)
        self.kv_a = owner.random(latent + spec.qk_rope_head_dim, hidden, scale=hidden**-0.5)
        self.kv_norm = owner.ones_like_weights(latent)
        width = spec.qk_nope_head_dim + spec.v_head_dim
        self.kv_b = owner.random(heads * width, latent, scale=latent**-0.5)
        self.output = owner.random(hidden, heads * spec.v_head_dim, scale=(heads * spec.v_head_dim) ** -0.5)
        shape = (owner.allocated_blocks, owner.block_size, 1, latent + spec.qk_rope_head_dim)
        self.caches = [torch.zeros(shape, device=owner.device, dtype=owner.dtype)]
        self.used = owner.attention_kernels

    @property
    def weights(self) -> list[Any]:
        query = [self.q_b] if self.q_a is None else [self.q_a, self.q_norm, self.q_b]
        return [*query, self.kv_a, self.kv_norm, self.kv_b, self.output]

    def __call__(self, x: Any, step: StepInputs) -> Any:
        spec, latent = self.spec, self.spec.kv_lora_rank
        down = x
        if self.q_a is not None:
            down = functional.linear(x, self.q_a)
            down = functional.rms_norm(down, (down.shape[-1],), self.q_norm, EPSILON)
        q = functional.linear(down, self.q_b).view(-1, spec.num_heads, spec.qk_head_dim)
        nope, rope = q.split((spec.qk_nope_head_dim, spec.qk_rope_head_dim), dim=-1)
        rope = rotate(rope, step.positions, self.tables)
        compressed, key_rope = functional.linear(x, self.kv_a).split((latent, spec.qk_rope_head_dim), dim=-1)
        compressed = functional.rms_norm(compressed, (latent,), self.kv_norm, EPSILON)
        key_rope = rotate(key_rope.unsqueeze(1), step.positions, self.tables).squeeze(1)
        (cache,) = self.caches
        entry = torch.cat([compressed, key_rope], dim=-1).unsqueeze(1)
        cache.view(-1, *cache.shape[2:]).index_copy_(0, step.slots, entry)
        parts = []
        if step.decode_rows:
            rows = slice(0, step.decode_rows)
            parts.append(self._decode(nope[rows], rope[rows], step))
        for first, count, computed, blocks in step.prefills:
            rows = slice(first, first + count)
            parts.append(self._prefill(nope[rows], rope[rows], computed, blocks))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return functional.linear(attended.reshape(x.shape[0], -1), self.output)

    def _expansion(self) -> tuple[Any, Any]:
        """Return the parts of kv_b that expand a latent to keys and to values, each [heads, width, latent]."""
        spec = self.spec
        by_head = self.kv_b.view(spec.num_heads, -1, spec.kv_lora_rank)
        keys, values = by_head.split((spec.qk_nope_head_dim, spec.v_head_dim), dim=1)
        return keys, values

    def _decode(self, nope: Any, rope: Any, step: StepInputs) -> Any:
        key_half, value_half = self._expansion()
        absorbed = torch.einsum("bhn,hnl->bhl", nope, key_half)
        query = torch.cat([absorbed, rope], dim=-1)
        if query.is_cuda:
            return torch.einsum("bhl,hvl->bhv", self._padded_decode(query, step), value_half)
        out = []
        contexts = step.contexts_cpu or tuple(step.contexts.tolist())
        for row, context in enumerate(contexts):
            entries = gather_context(self.caches[0], step.tables[row], context)
            out.append(
                absorbed_decode(
                    torch, query[row : row + 1], entries, latent=self.spec.kv_lora_rank, scale=self.scale
                )
            )
        return torch.einsum("bhl,hvl->bhv", torch.cat(out), value_half)

    def _padded_decode(self, query: Any, step: StepInputs) -> Any:
        """Return decode attention over tables padded to one length, without host reads, so a graph can capture it."""
        entries = self.caches[0][step.tables].flatten(1, 3)
        scores = torch.bmm(query, entries.transpose(1, 2)).float() * self.scale
        beyond = torch.arange(entries.shape[1], device=query.device)[None, :] >= step.contexts[:, None]
        weights = torch.softmax(scores.masked_fill(beyond[:, None], float("-inf")), dim=-1)
        return torch.bmm(weights.to(entries.dtype), entries[..., : self.spec.kv_lora_rank])

    def _prefill(self, nope: Any, rope: Any, computed: int, blocks: Any) -> Any:
        key_half, value_half = self._expansion()
        entries = gather_context(self.caches[0], blocks, computed + nope.shape[0])[0]
        latent, key_rope = entries.split((self.spec.kv_lora_rank, self.spec.qk_rope_head_dim), dim=-1)
        keys = torch.einsum("tl,hnl->htn", latent, key_half)
        keys = torch.cat([keys, key_rope.expand(self.spec.num_heads, -1, -1)], dim=-1)
        values = torch.einsum("tl,hvl->htv", latent, value_half)
        query = torch.cat([nope, rope], dim=-1).transpose(0, 1)
        attended = causal_attention(query[None], keys[None], values[None], scale=self.scale, used=self.used)
        return attended[0].transpose(0, 1)


class DenseMlp:
    capturable = True  # a CUDA graph can capture it

    def __init__(self, owner: Transformer, width: int) -> None:
        hidden = owner.model.hidden_size
        self.gate_up = owner.random(2 * width, hidden, scale=hidden**-0.5)
        self.down = owner.random(hidden, width, scale=width**-0.5)

    @property
    def weights(self) -> list[Any]:
        return [self.gate_up, self.down]

    def __call__(self, x: Any) -> Any:
        return functional.linear(silu_and_mul(functional.linear(x, self.gate_up)), self.down)


class ExpertMlp:
    """Routed experts weighted by a softmax over the chosen ones, and a dense shared expert if the model has one."""

    def __init__(self, owner: Transformer, spec: MoEFeedForward) -> None:
        hidden, width = owner.model.hidden_size, spec.expert_intermediate_size
        self.spec = spec
        self.router = owner.random(spec.num_experts, hidden, scale=hidden**-0.5)
        self.router_bias = owner.random(spec.num_experts, scale=0.1) if spec.router_bias else None
        biased = spec.expert_bias
        self.experts = ExpertWeights(
            gate_up=owner.random(spec.num_experts, 2 * width, hidden, scale=hidden**-0.5),
            down=owner.random(spec.num_experts, hidden, width, scale=width**-0.5),
            gate_up_bias=owner.random(spec.num_experts, 2 * width, scale=0.1) if biased else None,
            down_bias=owner.random(spec.num_experts, hidden, scale=0.1) if biased else None,
        )
        self.shared = (
            DenseMlp(owner, spec.shared_intermediate_size) if spec.shared_intermediate_size else None
        )
        self.shared_gate = owner.random(1, hidden, scale=hidden**-0.5) if spec.shared_gate else None
        self.capturable = grouped_in_one_kernel(torch, owner.device, owner.dtype)
        self.run = grouped_experts if self.capturable else looped_experts

    @property
    def weights(self) -> list[Any]:
        shared = self.shared.weights if self.shared else []
        optional = (self.router_bias, self.shared_gate)
        return [self.router, *self.experts.tensors, *shared, *(part for part in optional if part is not None)]

    def __call__(self, x: Any) -> Any:
        routed = functional.linear(x, self.router, self.router_bias).float()
        scores, chosen = torch.topk(routed, self.spec.experts_per_token)
        out = self.run(torch, self.experts, x, torch.softmax(scores, dim=-1).to(x.dtype), chosen)
        if self.shared is None:
            return out
        shared = self.shared(x)
        if self.shared_gate is not None:
            shared = shared * torch.sigmoid(functional.linear(x, self.shared_gate))
        return out + shared
