"""A decoder with random weights built from a ModelSpec: paged KV cache, prefill, decode, mixed steps, CUDA graphs.

It runs the kernels that the step model predicts: merged QKV and gate-up projections, rope with the cache write, paged
attention, and one LM head for the sampled tokens. In a step, decode tokens precede prefill tokens. Pure decode steps
replay CUDA graphs, as in engines.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from capacity.base.errors import UnsupportedModel
from capacity.model import ModelSpec
from capacity.model.feed_forward import DenseFeedForward, MoEFeedForward
from capacity.model.layers import Attention, LatentAttention, LayerGroup, LinearAttention
from capacity_validate.capture import GraphCapturer
from capacity_validate.cases import Finding
from capacity_validate.kernels.fused import add_norm, rope_tables
from capacity_validate.kernels.paged import FLASH
from capacity_validate.model_blocks import DenseMlp, ExpertMlp, GroupedMixer, LatentMixer
from capacity_validate.step_inputs import EPSILON, InputRow, StepInputs

HALF_DTYPES = ("bf16", "fp16")  # dtypes that FlashAttention supports
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def require_supported(model: ModelSpec) -> None:
    """Raise UnsupportedModel if the harness lacks kernels for the model. Call it before any allocation."""
    for group in model.layer_groups:
        if (reason := _missing_kernels(group)) is not None:
            raise UnsupportedModel(model.model_type, f"the harness has {reason}")
    if model.norms_per_layer not in (2, 4):
        raise UnsupportedModel(model.model_type, "the harness supports only layers with two or four norms")
    if model.dtype not in _DTYPES:
        raise UnsupportedModel(model.model_type, f"the harness does not support weights in {model.dtype}")


def _missing_kernels(group: LayerGroup) -> str | None:
    """Return a description of the missing kernels for these layers; None if the harness has all."""
    mixer, dense = group.mixer, group.feed_forward
    if isinstance(mixer, LinearAttention):
        return "no linear attention"
    if not isinstance(mixer, (Attention, LatentAttention)):
        return f"no kernels of {type(mixer).__name__}"
    if isinstance(mixer, LatentAttention) and mixer.indexer is not None:
        return "no sparse indexer"
    if not isinstance(dense, (DenseFeedForward, MoEFeedForward)):
        return "no support for layers without a feed-forward"
    if group.products or (isinstance(dense, DenseFeedForward) and (not dense.gated or dense.bias)):
        return "no support for feed-forward layers without gates or with biases"
    if isinstance(mixer, Attention) and (mixer.shares_kv or mixer.keys_are_values or mixer.cross):
        return "no support for attention with shared keys and values, or for cross-attention"
    return None


class Transformer:
    """Weights and KV cache of `model` on one device. Raises UnsupportedModel if the harness lacks a kernel."""

    def __init__(
        self, model: ModelSpec, *, device: str, num_blocks: int, block_size: int = 16, seed: int = 0
    ) -> None:
        require_supported(model)
        self.model = model
        self.device = device
        self.dtype = _DTYPES[model.dtype]
        self.block_size = block_size
        self.num_blocks = num_blocks
        # decode is split as for contexts of at least this many tokens, so that no kernel compiles during a run
        self.split_context = 0
        # calls by kernel in prefill, chunked prefill and verification
        self.attention_kernels: Counter[str] = Counter()
        self.allocated_blocks = num_blocks + (device != "cpu")  # one extra, for the padding rows of graphs
        self._generator = torch.Generator(device=device).manual_seed(seed)
        longest = min(model.max_position_embeddings, num_blocks * block_size)
        self.embedding = self.random(model.vocab_size, model.hidden_size, scale=1.0)
        self.head = (
            self.embedding
            if model.tie_word_embeddings
            else self.random(model.vocab_size, model.hidden_size, scale=model.hidden_size**-0.5)
        )
        self.final_norm = self.ones_like_weights(model.hidden_size)
        self._tables: dict[int, tuple[Any, Any]] = {}
        self.layers = [
            self._layer(group, longest) for group in model.layer_groups for _ in range(group.num_layers)
        ]

    def random(self, *shape: int, scale: float) -> Any:
        values = torch.empty(*shape, device=self.device, dtype=self.dtype)
        return values.normal_(generator=self._generator).mul_(scale)

    def ones_like_weights(self, *shape: int) -> Any:
        return torch.ones(*shape, device=self.device, dtype=self.dtype)

    def _layer(self, group: LayerGroup, longest: int) -> "Layer":
        hidden = self.model.hidden_size
        mixer: GroupedMixer | LatentMixer
        if isinstance(group.mixer, Attention):
            mixer = GroupedMixer(self, group.mixer, self._rope_tables_of_width(group.mixer.head_dim, longest))
        else:
            assert isinstance(group.mixer, LatentAttention)
            mixer = LatentMixer(
                self, group.mixer, self._rope_tables_of_width(group.mixer.qk_rope_head_dim, longest)
            )
        feed_forward: DenseMlp | ExpertMlp
        if isinstance(group.feed_forward, DenseFeedForward):
            feed_forward = DenseMlp(self, group.feed_forward.intermediate_size)
        else:
            assert isinstance(group.feed_forward, MoEFeedForward)
            feed_forward = ExpertMlp(self, group.feed_forward)
        norms = [self.ones_like_weights(hidden) for _ in range(self.model.norms_per_layer)]
        return Layer(norms, mixer, feed_forward)

    def _rope_tables_of_width(self, dim: int, longest: int) -> tuple[Any, Any]:
        if dim not in self._tables:
            self._tables[dim] = rope_tables(dim, longest, base=10_000.0, device=self.device, dtype=self.dtype)
        return self._tables[dim]

    @property
    def capturable(self) -> bool:
        """Return whether a CUDA graph can capture a decode step: not on a CPU, nor if experts run one at a time."""
        return self.device != "cpu" and all(layer.feed_forward.capturable for layer in self.layers)

    def release(self) -> None:
        """Release weights and caches; the model cannot run afterwards."""
        self.layers = []
        self.embedding = self.head = self.final_norm = None
        self._tables.clear()

    @property
    def weight_tensors(self) -> list[Any]:
        """Return every parameter tensor; a tensor shared by embedding and head occurs once."""
        weights = [self.embedding, self.final_norm]
        if self.head is not self.embedding:
            weights.append(self.head)
        for layer in self.layers:
            weights += [*layer.norms, *layer.mixer.weights, *layer.feed_forward.weights]
        return weights

    @property
    def cache_tensors(self) -> list[Any]:
        return [cache for layer in self.layers for cache in layer.mixer.caches]

    def fill_caches(self) -> None:
        """Fill the KV caches with random values, so that decode steps can be timed without a prefill."""
        for cache in self.cache_tensors:
            cache.normal_(generator=self._generator)

    def inputs(self, rows: Sequence[InputRow]) -> StepInputs:
        """Return the tensors of a step. Sequences with one new token are decodes, at any position in `rows`.

        The tensors, including block tables, are built on the host and sent in one copy from pinned memory, as in vLLM.
        """
        ordered = sorted(rows, key=lambda row: len(row.tokens) > 1)
        decode = [row for row in ordered if len(row.tokens) == 1]
        prefills = ordered[len(decode) :]
        size = self.block_size
        spans = [np.arange(row.computed, row.computed + len(row.tokens)) for row in ordered]
        blocks = [np.asarray(row.blocks, dtype=np.int64) for row in ordered]
        slots = [held[span // size] * size + span % size for held, span in zip(blocks, spans, strict=True)]
        ends = np.cumsum([len(row.tokens) for row in ordered])
        sampled = [np.arange(end - row.samples, end) for end, row in zip(ends, ordered, strict=True)]
        contexts = tuple(row.computed + 1 for row in decode)
        sent = self._send(
            [
                np.concatenate([np.asarray(row.tokens, dtype=np.int64) for row in ordered]),
                np.concatenate(spans),
                np.concatenate(slots),
                _pad_block_tables(blocks[: len(decode)]),
                np.array(contexts, dtype=np.int64),
                np.concatenate(sampled),
                *blocks[len(decode) :],
            ]
        )
        firsts = ends[len(decode) :] - [len(row.tokens) for row in prefills]
        return StepInputs(
            tokens=sent[0],
            positions=sent[1],
            slots=sent[2],
            decode_rows=len(decode),
            tables=sent[3],
            contexts=sent[4],
            contexts_cpu=contexts,
            max_context=max((self.split_context, *contexts)),
            prefills=tuple(
                (int(first), len(row.tokens), row.computed, held)
                for first, row, held in zip(firsts, prefills, sent[6:], strict=True)
            ),
            sampled=sent[5],
        )

    def _send(self, arrays: Sequence[Any]) -> list[Any]:
        """Copy integer arrays to the device in one transfer, and return them as tensors."""
        whole = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
        if self.device != "cpu":
            whole = whole.pin_memory().to(self.device, non_blocking=True)
        parts = whole.split([array.size for array in arrays])
        return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]

    @torch.inference_mode()  # type: ignore[untyped-decorator,unused-ignore]
    def logits(self, step: StepInputs) -> Any:
        """Return the logits of the sampled tokens [tokens, vocabulary]: decode sequences first, then prefills."""
        x = functional.embedding(step.tokens, self.embedding)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x, residual = add_norm(x, residual, layer.norms[0], EPSILON)
            x = layer.apply_norm(layer.mixer(x, step), 2)
            x, residual = add_norm(x, residual, layer.norms[1], EPSILON)
            x = layer.apply_norm(layer.feed_forward(x), 3)
        rows = (x + residual).index_select(0, step.sampled)
        return functional.linear(
            functional.rms_norm(rows, (rows.shape[-1],), self.final_norm, EPSILON), self.head
        )

    def next_tokens(self, step: StepInputs) -> list[int]:
        """Return the most likely next token at every sampled position; waits for the device."""
        chosen: list[int] = self.logits(step).argmax(dim=-1).tolist()
        return chosen


def _pad_block_tables(blocks: Sequence[Any]) -> Any:
    """Return the block ids of decode rows as one array [rows, blocks], padded with block 0."""
    width = max(map(len, blocks), default=0)
    tables = np.zeros((len(blocks), width), dtype=np.int64)
    for table, held in zip(tables, blocks, strict=True):
        table[: len(held)] = held
    return tables


@dataclass
class Layer:
    """One layer: a norm before the mixer and the feed-forward; with four norms (Gemma, GLM-4) also after each."""

    norms: Sequence[Any]
    mixer: Any
    feed_forward: Any

    def apply_norm(self, x: Any, index: int) -> Any:
        """Return `x` normalised by norm `index`, or unchanged if the layer has no such norm."""
        if index >= len(self.norms):
            return x
        return functional.rms_norm(x, (x.shape[-1],), self.norms[index], EPSILON)


def attention_findings(model: Transformer, during: str) -> tuple[Finding, ...]:
    """Check that prefill on a GPU ran FlashAttention; layers that need a mask (windows, sinks) are only counted."""
    counts = model.attention_kernels
    if model.device == "cpu" or model.model.dtype not in HALF_DTYPES or not counts:
        return ()
    ran = ", ".join(f"{count} by {name}" for name, count in sorted(counts.items()))
    return (
        Finding(
            name=f"{during}: prefill, chunks and verification run FlashAttention",
            value=float(counts["masked"]),
            limit=0.0,
            detail=f"number of layer calls with an explicit mask, which a kernel other than {FLASH} runs; {ran}",
            exact=True,
        ),
    )


class DecodeGraph:
    """A decode step captured as a CUDA graph; smaller batches are padded with rows that write to an unused block."""

    def __init__(self, model: Transformer, captures: GraphCapturer, *, batch: int, max_context: int) -> None:
        self.model = model
        self.batch = batch
        blocks = -(-max_context // model.block_size)
        like: dict[str, Any] = {"device": model.device, "dtype": torch.int64}
        scratch = model.num_blocks * model.block_size
        self.step = StepInputs(
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
        captures.run_on_side_stream(lambda: [self._decode() for _ in range(3)])
        self.graph, self.chosen = captures.capture(self._decode, pool=captures.shared_pool)

    def _decode(self) -> Any:
        return self.model.logits(self.step).argmax(dim=-1)

    def next_tokens(self, step: StepInputs) -> list[int]:
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
    """A Transformer whose decode steps replay CUDA graphs from one pool. Raises RuntimeError if a capture fails."""

    def __init__(
        self, model: Transformer, captures: GraphCapturer, *, sizes: Sequence[int], max_context: int
    ) -> None:
        self.model = model.model
        self.device, self.num_blocks = model.device, model.num_blocks
        self.inputs = model.inputs
        self._eager = model
        model.split_context = max_context
        self._graphs = [
            DecodeGraph(model, captures, batch=size, max_context=max_context)
            for size in sorted(sizes, reverse=True)
        ]

    def next_tokens(self, step: StepInputs) -> list[int]:
        fitting = [graph for graph in self._graphs if graph.batch >= step.decode_rows]
        if step.prefills or not fitting:
            return self._eager.next_tokens(step)
        return fitting[-1].next_tokens(step)
