"""A whole decoder with random weights, made from a ModelSpec: paged KV cache, prefill, decode, mixed steps, graphs.

It runs what the step model prices: merged QKV and gate-up products, rope with the cache write, paged attention, one
LM head for the rows that sample. Decode rows go first in a step, prefill rows after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from capacity.base.errors import UnsupportedModel
from capacity.model import ModelSpec
from capacity.model.spec import (
    Attention,
    DenseFeedForward,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    MoEFeedForward,
)
from capacity_validate.kernels.attention import absorbed_decode
from capacity_validate.kernels.experts import ExpertWeights, grouped_experts, looped_experts
from capacity_validate.kernels.fused import add_norm, gated, rope_and_cache
from capacity_validate.kernels.paged import gather_context, paged_decode_attention, with_sink
from capacity_validate.layers import rope_tables, rotate

EPSILON = 1e-6
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence's share of a step: new tokens after `computed` ones, its block ids, whether it samples."""

    tokens: Sequence[int]
    computed: int
    blocks: Sequence[int]
    samples: int = 1  # logits wanted: of the last so many tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A step as tensors. The first `decode_rows` rows have one token each."""

    tokens: Any
    positions: Any
    slots: Any
    decode_rows: int
    tables: Any  # block ids of the decode rows, padded
    contexts: Any
    contexts_cpu: tuple[int, ...] | None
    max_context: int
    prefills: tuple[tuple[int, int, int, Any], ...]  # first row of the step, tokens, computed, block ids
    sampled: Any


def require_supported(model: ModelSpec) -> None:
    """Raises UnsupportedModel for what this loop has no kernels for, before anything is allocated."""
    mixers = [group.mixer for group in model.layer_groups]
    if any(isinstance(mixer, LinearAttention) for mixer in mixers):
        raise UnsupportedModel(model.model_type, "the harness has no linear attention")
    if any(isinstance(mixer, LatentAttention) and mixer.indexer is not None for mixer in mixers):
        raise UnsupportedModel(model.model_type, "the harness has no sparse indexer")
    if model.norms_per_layer not in (2, 4):
        raise UnsupportedModel(model.model_type, "the harness has layers of two or four norms only")
    if model.dtype not in _DTYPES:
        raise UnsupportedModel(model.model_type, f"the harness has no weights in {model.dtype}")


class Transformer:
    """Weights and KV cache of `model` on one device. Raises UnsupportedModel for linear and sparse attention."""

    def __init__(
        self, model: ModelSpec, *, device: str, num_blocks: int, block_size: int = 16, seed: int = 0
    ) -> None:
        require_supported(model)
        self.model = model
        self.device = device
        self.dtype = _DTYPES[model.dtype]
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.split_context = (
            0  # decode is cut as for contexts of at least so many tokens: no kernel compiled midway
        )
        self.allocated_blocks = num_blocks + (device != "cpu")  # one more, for the padding rows of graphs
        self._generator = torch.Generator(device=device).manual_seed(seed)
        longest = min(model.max_position_embeddings, num_blocks * block_size)
        self.embedding = self._random(model.vocab_size, model.hidden_size, scale=1.0)
        self.head = (
            self.embedding
            if model.tie_word_embeddings
            else self._random(model.vocab_size, model.hidden_size, scale=model.hidden_size**-0.5)
        )
        self.final_norm = self._ones(model.hidden_size)
        self._tables: dict[int, tuple[Any, Any]] = {}
        self.layers = [
            self._layer(group, longest) for group in model.layer_groups for _ in range(group.num_layers)
        ]

    def _random(self, *shape: int, scale: float) -> Any:
        values = torch.empty(*shape, device=self.device, dtype=self.dtype)
        return values.normal_(generator=self._generator).mul_(scale)

    def _ones(self, *shape: int) -> Any:
        return torch.ones(*shape, device=self.device, dtype=self.dtype)

    def _layer(self, group: LayerGroup, longest: int) -> Layer:
        hidden = self.model.hidden_size
        mixer: GroupedMixer | LatentMixer
        if isinstance(group.mixer, Attention):
            mixer = GroupedMixer(self, group.mixer, self._rope(group.mixer.head_dim, longest))
        else:
            assert isinstance(group.mixer, LatentAttention)
            mixer = LatentMixer(self, group.mixer, self._rope(group.mixer.qk_rope_head_dim, longest))
        feed_forward: DenseMlp | ExpertMlp
        if isinstance(group.feed_forward, DenseFeedForward):
            feed_forward = DenseMlp(self, group.feed_forward.intermediate_size)
        else:
            feed_forward = ExpertMlp(self, group.feed_forward)
        norms = [self._ones(hidden) for _ in range(self.model.norms_per_layer)]
        return Layer(norms, mixer, feed_forward)

    def _rope(self, dim: int, longest: int) -> tuple[Any, Any]:
        if dim not in self._tables:
            self._tables[dim] = rope_tables(dim, longest, base=10_000.0, device=self.device, dtype=self.dtype)
        return self._tables[dim]

    @property
    def weight_tensors(self) -> list[Any]:
        """Every parameter, each storage once."""
        found = [self.embedding, self.final_norm]
        if self.head is not self.embedding:
            found.append(self.head)
        for layer in self.layers:
            found += [*layer.norms, *layer.mixer.weights, *layer.feed_forward.weights]
        return found

    @property
    def cache_tensors(self) -> list[Any]:
        return [cache for layer in self.layers for cache in layer.mixer.caches]

    @property
    def cache_slots(self) -> int:
        return self.allocated_blocks * self.block_size

    def fill_caches(self) -> None:
        """Random keys and values everywhere, for decode steps that nobody prefilled."""
        for cache in self.cache_tensors:
            cache.normal_(generator=self._generator)

    # step

    def inputs(self, rows: Sequence[Row]) -> Inputs:
        """Tensors of a step; rows of one token that sample are decoded, wherever they stand in `rows`."""
        ordered = sorted(rows, key=lambda row: len(row.tokens) > 1)
        decode = [row for row in ordered if len(row.tokens) == 1]
        size = self.block_size
        positions = [self._ints([row.computed for row in decode])]
        slots = [
            self._ints([row.blocks[row.computed // size] * size + row.computed % size for row in decode])
        ]
        prefills = []
        sampled: list[int] = []
        first = 0
        for row in ordered:
            count = len(row.tokens)
            if count > 1:
                blocks = self._ints(row.blocks)
                span = torch.arange(row.computed, row.computed + count, device=self.device)
                prefills.append((first, count, row.computed, blocks))
                positions.append(span)
                slots.append(blocks[span // size] * size + span % size)
            first += count
            sampled += range(first - row.samples, first)
        contexts = tuple(row.computed + 1 for row in decode)
        width = max((len(row.blocks) for row in decode), default=0)
        return Inputs(
            tokens=self._ints([token for row in ordered for token in row.tokens]),
            positions=torch.cat(positions),
            slots=torch.cat(slots),
            decode_rows=len(decode),
            tables=self._ints([[*row.blocks, *[0] * (width - len(row.blocks))] for row in decode]),
            contexts=self._ints(contexts),
            contexts_cpu=contexts,
            max_context=max((self.split_context, *contexts)),
            prefills=tuple(prefills),
            sampled=self._ints(sampled),
        )

    def _ints(self, values: Sequence[Any]) -> Any:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    @torch.inference_mode()  # type: ignore[untyped-decorator,unused-ignore]
    def logits(self, step: Inputs) -> Any:
        """Logits of the rows that sample, in the order of the sorted rows."""
        x = functional.embedding(step.tokens, self.embedding)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x, residual = add_norm(x, residual, layer.norms[0], EPSILON)
            x = layer.after(layer.mixer(x, step), 2)
            x, residual = add_norm(x, residual, layer.norms[1], EPSILON)
            x = layer.after(layer.feed_forward(x), 3)
        rows = (x + residual).index_select(0, step.sampled)
        return functional.linear(
            functional.rms_norm(rows, (rows.shape[-1],), self.final_norm, EPSILON), self.head
        )

    def next_tokens(self, step: Inputs) -> list[int]:
        """The likeliest token of every row that samples; waits for the device."""
        chosen: list[int] = self.logits(step).argmax(dim=-1).tolist()
        return chosen


class Layer:
    """Norms before mixer and feed-forward; with four of them (Gemma, GLM-4) also after each."""

    def __init__(self, norms: Sequence[Any], mixer: Any, feed_forward: Any) -> None:
        self.norms = norms
        self.mixer, self.feed_forward = mixer, feed_forward

    def after(self, x: Any, index: int) -> Any:
        """`x` through norm `index`, where there is one."""
        if index >= len(self.norms):
            return x
        return functional.rms_norm(x, (x.shape[-1],), self.norms[index], EPSILON)


class GroupedMixer:
    """Multi-head, grouped-query or multi-query attention over a paged cache.

    With a sliding or chunked window, learned sinks, biases, query and key norms, and an output gate where the model
    has them.
    """

    def __init__(self, owner: Transformer, spec: Attention, tables: tuple[Any, Any]) -> None:
        self.spec, self.tables = spec, tables
        hidden, d = owner.model.hidden_size, spec.head_dim
        self.width, kv_width = spec.num_heads * d, spec.num_kv_heads * d
        self.widths = (self.width * (2 if spec.output_gate else 1), kv_width, kv_width)
        self.qkv = owner._random(sum(self.widths), hidden, scale=hidden**-0.5)
        self.bias = owner._random(sum(self.widths), scale=0.1) if spec.qkv_bias else None
        self.qk_norms = _qk_norms(owner, spec)
        self.output = owner._random(hidden, self.width, scale=self.width**-0.5)
        self.output_bias = owner._random(hidden, scale=0.1) if spec.output_bias else None
        self.sinks: Any = owner._random(spec.num_heads, scale=1.0) if spec.sinks else None
        shape = (owner.allocated_blocks, owner.block_size, spec.num_kv_heads, d)
        self.caches = [torch.zeros(shape, device=owner.device, dtype=owner.dtype) for _ in range(2)]

    @property
    def weights(self) -> list[Any]:
        optional = (self.bias, self.output_bias, self.sinks)
        return [self.qkv, self.output, *self.qk_norms, *(part for part in optional if part is not None)]

    def __call__(self, x: Any, step: Inputs) -> Any:
        spec, d = self.spec, self.spec.head_dim
        q, k, v = functional.linear(x, self.qkv, self.bias).split(self.widths, dim=-1)
        gate = None
        if spec.output_gate:
            q, gate = q.chunk(2, dim=-1)
        q, k = self._normed(q, k)
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

    def _normed(self, q: Any, k: Any) -> tuple[Any, Any]:
        """Queries and keys normalised: head by head, or over all heads at once, as the weights' length says."""
        if not self.qk_norms:
            return q, k
        q, k = (
            functional.rms_norm(
                part.reshape(part.shape[0], -1, weight.shape[0]), weight.shape, weight, EPSILON
            )
            for part, weight in zip((q, k), self.qk_norms, strict=True)
        )
        return q, k

    def _prefill(self, q: Any, computed: int, blocks: Any) -> Any:
        count = q.shape[0]
        k, v = (gather_context(cache, blocks, computed + count) for cache in self.caches)
        groups = self.spec.num_heads // self.spec.num_kv_heads
        repeated = groups > 1 and (not q.is_cuda or self.sinks is not None)
        if repeated:
            k, v = k.repeat_interleave(groups, dim=0), v.repeat_interleave(groups, dim=0)
        mask = causal_mask(count, computed, self.spec.window_tokens, q.device, chunked=self.spec.chunked)
        if self.sinks is not None:
            return self._prefill_with_sinks(q, k, v, mask)
        with prefill_backends(q):
            attended = functional.scaled_dot_product_attention(
                q.transpose(0, 1)[None], k[None], v[None],
                attn_mask=mask, is_causal=mask is None, enable_gqa=groups > 1 and not repeated,
            )  # fmt: skip
        return attended[0].transpose(0, 1)

    def _prefill_with_sinks(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        if mask is None:
            mask = torch.ones(q.shape[0], k.shape[1], dtype=torch.bool, device=q.device).tril()
        k, v, bias = with_sink(k, v, self.sinks[:, None], mask)
        attended = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k[None], v[None], attn_mask=bias[None]
        )
        return attended[0].transpose(0, 1)


def prefill_backends(query: Any) -> AbstractContextManager[Any]:
    """On a GPU the kernels that cases calibrate: FlashAttention, or what takes a mask where there is one."""
    if not query.is_cuda:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen: AbstractContextManager[Any] = sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
    return chosen


def _qk_norms(owner: Transformer, spec: Attention) -> tuple[Any, ...]:
    d = spec.head_dim
    lengths = {"none": (), "per_head": (d, d), "full": (spec.num_heads * d, spec.num_kv_heads * d)}
    return tuple(owner._ones(length) for length in lengths[spec.qk_norm])


def causal_mask(
    new_tokens: int, computed: int, window_tokens: int | None, device: Any, *, chunked: bool = False
) -> Any:
    """True where a query may look; None where SDPA's own causal mask says the same."""
    if computed == 0 and (window_tokens is None or new_tokens <= window_tokens):
        return None
    query = torch.arange(computed, computed + new_tokens, device=device)[:, None]
    key = torch.arange(computed + new_tokens, device=device)[None, :]
    seen = key <= query
    if window_tokens is None:
        return seen
    first = query // window_tokens * window_tokens if chunked else query - window_tokens + 1
    return seen & (key >= first)


class LatentMixer:
    """Multi-head latent attention: prefill expands the latent to heads, decode absorbs the expansion."""

    def __init__(self, owner: Transformer, spec: LatentAttention, tables: tuple[Any, Any]) -> None:
        self.spec, self.tables = spec, tables
        hidden, heads, latent = owner.model.hidden_size, spec.num_heads, spec.kv_lora_rank
        self.scale = spec.qk_head_dim**-0.5
        self.q_a = None
        query_width = hidden
        if spec.q_lora_rank is not None:
            self.q_a = owner._random(spec.q_lora_rank, hidden, scale=hidden**-0.5)
            self.q_norm = owner._ones(spec.q_lora_rank)
            query_width = spec.q_lora_rank
        self.q_b = owner._random(heads * spec.qk_head_dim, query_width, scale=query_width**-0.5)
        self.kv_a = owner._random(latent + spec.qk_rope_head_dim, hidden, scale=hidden**-0.5)
        self.kv_norm = owner._ones(latent)
        width = spec.qk_nope_head_dim + spec.v_head_dim
        self.kv_b = owner._random(heads * width, latent, scale=latent**-0.5)
        self.output = owner._random(hidden, heads * spec.v_head_dim, scale=(heads * spec.v_head_dim) ** -0.5)
        shape = (owner.allocated_blocks, owner.block_size, 1, latent + spec.qk_rope_head_dim)
        self.caches = [torch.zeros(shape, device=owner.device, dtype=owner.dtype)]

    @property
    def weights(self) -> list[Any]:
        query = [self.q_b] if self.q_a is None else [self.q_a, self.q_norm, self.q_b]
        return [*query, self.kv_a, self.kv_norm, self.kv_b, self.output]

    def __call__(self, x: Any, step: Inputs) -> Any:
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
        """Keys' and values' halves of kv_b, [heads, width, latent]."""
        spec = self.spec
        by_head = self.kv_b.view(spec.num_heads, -1, spec.kv_lora_rank)
        keys, values = by_head.split((spec.qk_nope_head_dim, spec.v_head_dim), dim=1)
        return keys, values

    def _decode(self, nope: Any, rope: Any, step: Inputs) -> Any:
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

    def _padded_decode(self, query: Any, step: Inputs) -> Any:
        """All rows at once over tables padded to one length: no look at the host, so that a graph can hold it."""
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
        mask = causal_mask(nope.shape[0], computed, None, nope.device)
        attended = functional.scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None, scale=self.scale
        )
        return attended[0].transpose(0, 1)


class DenseMlp:
    def __init__(self, owner: Transformer, width: int) -> None:
        hidden = owner.model.hidden_size
        self.gate_up = owner._random(2 * width, hidden, scale=hidden**-0.5)
        self.down = owner._random(hidden, width, scale=width**-0.5)

    @property
    def weights(self) -> list[Any]:
        return [self.gate_up, self.down]

    def __call__(self, x: Any) -> Any:
        return functional.linear(gated(functional.linear(x, self.gate_up)), self.down)


class ExpertMlp:
    """Routed experts with softmax over the chosen, and a dense shared expert where the model has one."""

    def __init__(self, owner: Transformer, spec: MoEFeedForward) -> None:
        hidden, width = owner.model.hidden_size, spec.expert_intermediate_size
        self.spec = spec
        self.router = owner._random(spec.num_experts, hidden, scale=hidden**-0.5)
        self.router_bias = owner._random(spec.num_experts, scale=0.1) if spec.router_bias else None
        biased = spec.expert_bias
        self.experts = ExpertWeights(
            gate_up=owner._random(spec.num_experts, 2 * width, hidden, scale=hidden**-0.5),
            down=owner._random(spec.num_experts, hidden, width, scale=width**-0.5),
            gate_up_bias=owner._random(spec.num_experts, 2 * width, scale=0.1) if biased else None,
            down_bias=owner._random(spec.num_experts, hidden, scale=0.1) if biased else None,
        )
        self.shared = (
            DenseMlp(owner, spec.shared_intermediate_size) if spec.shared_intermediate_size else None
        )
        self.shared_gate = owner._random(1, hidden, scale=hidden**-0.5) if spec.shared_gate else None
        self.run = grouped_experts if owner.device != "cpu" else looped_experts

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


class DecodeGraph:
    """A decode step of one batch size as a CUDA graph: static inputs are overwritten, then replayed.

    Smaller batches are padded with rows that write to a block of nobody's.
    """

    def __init__(self, model: Transformer, *, batch: int, max_context: int) -> None:
        self.model = model
        self.batch = batch
        blocks = -(-max_context // model.block_size)
        like: dict[str, Any] = {"device": model.device, "dtype": torch.int64}
        scratch = model.num_blocks * model.block_size
        self.step = Inputs(
            tokens=torch.zeros(batch, **like),
            positions=torch.zeros(batch, **like),
            slots=torch.full((batch,), scratch, **like),
            decode_rows=batch,
            tables=torch.full((batch, blocks), model.num_blocks, **like),
            contexts=torch.ones(batch, **like),
            contexts_cpu=None,
            max_context=max_context,
            prefills=(),
            sampled=torch.arange(batch, **like),
        )
        self._idle = {
            name: getattr(self.step, name).clone() for name in ("tokens", "positions", "slots", "contexts")
        }
        stream = torch.cuda.Stream(model.device)
        stream.wait_stream(torch.cuda.current_stream(model.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                model.logits(self.step)
        torch.cuda.current_stream(model.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.chosen = model.logits(self.step).argmax(dim=-1)

    def next_tokens(self, step: Inputs) -> list[int]:
        rows = step.decode_rows
        for name, idle in self._idle.items():
            static = getattr(self.step, name)
            static[:rows].copy_(getattr(step, name))
            static[rows:].copy_(idle[rows:])
        self.step.tables[:rows, : step.tables.shape[1]].copy_(step.tables)
        self.graph.replay()
        chosen: list[int] = self.chosen[:rows].tolist()
        return chosen


class GraphedTransformer:
    """A Transformer whose pure decode steps replay graphs of the next larger batch size, as engines do."""

    def __init__(self, model: Transformer, *, sizes: Sequence[int], max_context: int) -> None:
        self.model = model.model
        self.device, self.num_blocks = model.device, model.num_blocks
        self.inputs = model.inputs
        self._eager = model
        model.split_context = max_context
        self._graphs = [
            DecodeGraph(model, batch=size, max_context=max_context) for size in sorted(sizes, reverse=True)
        ]

    def next_tokens(self, step: Inputs) -> list[int]:
        fitting = [graph for graph in self._graphs if graph.batch >= step.decode_rows]
        if step.prefills or not fitting:
            return self._eager.next_tokens(step)
        return fitting[-1].next_tokens(step)
