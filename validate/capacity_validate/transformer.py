"""A whole decoder with random weights, made from a ModelSpec: paged KV cache, prefill, decode, mixed steps, graphs.

It runs what the step model prices: merged QKV and gate-up products, rope with the cache write, paged attention, one
LM head for the rows that sample. Decode rows go first in a step, prefill rows after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from capacity.base.errors import UnsupportedModel
from capacity.model import ModelSpec
from capacity.model.feed_forward import DenseFeedForward
from capacity.model.layers import Attention, LatentAttention, LayerGroup, LinearAttention
from capacity_validate.feed_forwards import DenseMlp, ExpertMlp
from capacity_validate.kernels.fused import add_norm
from capacity_validate.layers import rope_tables
from capacity_validate.mixers import GroupedMixer, LatentMixer
from capacity_validate.step_inputs import EPSILON, Inputs, Row

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
        self.embedding = self.random(model.vocab_size, model.hidden_size, scale=1.0)
        self.head = (
            self.embedding
            if model.tie_word_embeddings
            else self.random(model.vocab_size, model.hidden_size, scale=model.hidden_size**-0.5)
        )
        self.final_norm = self.ones(model.hidden_size)
        self._tables: dict[int, tuple[Any, Any]] = {}
        self.layers = [
            self._layer(group, longest) for group in model.layer_groups for _ in range(group.num_layers)
        ]

    def random(self, *shape: int, scale: float) -> Any:
        values = torch.empty(*shape, device=self.device, dtype=self.dtype)
        return values.normal_(generator=self._generator).mul_(scale)

    def ones(self, *shape: int) -> Any:
        return torch.ones(*shape, device=self.device, dtype=self.dtype)

    def _layer(self, group: LayerGroup, longest: int) -> Layer:
        hidden = self.model.hidden_size
        mixer: GroupedMixer | LatentMixer
        if isinstance(group.mixer, Attention):
            mixer = GroupedMixer(self, group.mixer, self._rope(group.mixer.head_dim, longest))
        elif isinstance(group.mixer, LatentAttention):
            mixer = LatentMixer(self, group.mixer, self._rope(group.mixer.qk_rope_head_dim, longest))
        else:
            raise UnsupportedModel(
                self.model.model_type, f"the harness has no kernels of {type(group.mixer).__name__}"
            )
        feed_forward: DenseMlp | ExpertMlp
        if isinstance(group.feed_forward, DenseFeedForward):
            feed_forward = DenseMlp(self, group.feed_forward.intermediate_size)
        else:
            feed_forward = ExpertMlp(self, group.feed_forward)
        norms = [self.ones(hidden) for _ in range(self.model.norms_per_layer)]
        return Layer(norms, mixer, feed_forward)

    def _rope(self, dim: int, longest: int) -> tuple[Any, Any]:
        if dim not in self._tables:
            self._tables[dim] = rope_tables(dim, longest, base=10_000.0, device=self.device, dtype=self.dtype)
        return self._tables[dim]

    @property
    def weight_tensors(self) -> list[Any]:
        """Every parameter, each storage once."""
        weights = [self.embedding, self.final_norm]
        if self.head is not self.embedding:
            weights.append(self.head)
        for layer in self.layers:
            weights += [*layer.norms, *layer.mixer.weights, *layer.feed_forward.weights]
        return weights

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
