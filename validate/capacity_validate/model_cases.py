"""Steps of the whole transformer as cases: prefill by length, decode by batch and context."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from capacity.model import ModelSpec
from capacity_validate.campaigns import TransformerStage
from capacity_validate.capture import Captures
from capacity_validate.cases import Case, make_case
from capacity_validate.graphs import DecodeGraph
from capacity_validate.kernels import Unsupported
from capacity_validate.step_inputs import InputRow
from capacity_validate.transformer import Transformer

BLOCK = 16
EAGER = "eager"  # decode steps on a GPU that are launched kernel by kernel, for no graph can hold them


def step_cases(
    stage: TransformerStage, model: ModelSpec, *, eager: bool = False, of: str = "model"
) -> list[Case]:
    """Every prefill and decode point of a stage; `eager`: no CUDA graph can hold this model's decode steps.

    `of`: "model", whose steps are fitted to, or "unseen", whose steps are only predicted.
    """
    layers = model.num_layers
    variant = EAGER if eager else ""
    prefills = [make_case(f"{of} prefill", model.dtype, tokens=n, layers=layers) for n in stage.prefill]
    decodes = [
        make_case(
            f"{of} decode", model.dtype, variant=variant, batch=p.batch, context=p.context, layers=layers
        )
        for p in stage.decode
    ]
    return prefills + decodes


def blocks_for(stage: TransformerStage, model: ModelSpec, memory_bytes: float) -> int:
    """KV blocks that a stage's points need, or as many as `memory_bytes` hold."""
    block_bytes = BLOCK * sum(group.bytes_per_token for group in model.kv_cache_groups())
    return max(1, min(blocks_needed(stage), int(memory_bytes / block_bytes)))


def blocks_needed(stage: TransformerStage) -> int:
    decode = max((p.batch * math.ceil(p.context / BLOCK) for p in stage.decode), default=0)
    prefill = max((math.ceil(n / BLOCK) for n in stage.prefill), default=0)
    return max(decode, prefill, math.ceil(stage.kv_tokens / BLOCK))


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Makes the call of a step case: tokens in, the sampled tokens read back, as an engine needs them."""

    model: Transformer
    generator: Any
    captures: Captures | None = None

    def call(self, case: Case) -> Callable[[], object]:
        if case.operator.endswith(" prefill"):
            prompt = [self._row(case["tokens"], 0, self._blocks(1, case["tokens"])[0])]
            return lambda: self.model.next_tokens(self.model.inputs(prompt))
        batch, context = case["batch"], case["context"]
        rows = [self._row(1, context - 1, blocks) for blocks in self._blocks(batch, context)]
        if self.captures is None or case.variant == EAGER:
            return lambda: self.model.next_tokens(self.model.inputs(rows))
        graph = DecodeGraph(self.model, self.captures, batch=batch, max_context=context)
        return lambda: graph.next_tokens(self.model.inputs(rows))

    def _row(self, tokens: int, computed: int, blocks: Any) -> InputRow:
        ids = torch.randint(self.model.model.vocab_size, (tokens,), generator=self.generator).tolist()
        return InputRow(tokens=ids, computed=computed, blocks=blocks)

    def _blocks(self, sequences: int, tokens: int) -> list[Any]:
        """Arrays of scattered blocks, as a pool that has served for a while hands out."""
        each = math.ceil(tokens / BLOCK)
        if sequences * each > self.model.num_blocks:
            held = self.model.num_blocks * BLOCK
            raise Unsupported(
                f"{sequences} contexts of {tokens} tokens exceed the cache of {held} that memory allows"
            )
        order = torch.randperm(self.model.num_blocks, generator=self.generator).numpy()
        return [order[i * each : (i + 1) * each] for i in range(sequences)]
