"""CUDA graphs of the harness's transformer: pure decode steps replayed, as engines do."""

from collections.abc import Sequence
from typing import Any

import torch

from capacity_validate.capture import Captures
from capacity_validate.step_inputs import StepInputs
from capacity_validate.transformer import Transformer


class DecodeGraph:
    """A decode step of one batch size as a CUDA graph: static inputs are overwritten, then replayed.

    Smaller batches are padded with rows that write to a block of nobody's.
    """

    def __init__(self, model: Transformer, captures: Captures, *, batch: int, max_context: int) -> None:
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
        captures.aside(lambda: [self._decode() for _ in range(3)])
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
    """A Transformer whose pure decode steps replay graphs of the next larger batch size, as engines do.

    All graphs share one memory pool. Raises RuntimeError where CUDA refuses a capture.
    """

    def __init__(
        self, model: Transformer, captures: Captures, *, sizes: Sequence[int], max_context: int
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
