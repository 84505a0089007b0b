"""Speculation inside the batch: the engine's scheduler, its token budget and its KV blocks, with drafts and without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capacity.errors import InvalidInput
from capacity.schedulers import Sequence
from capacity.schedulers import Speculation as DraftedBatch
from capacity.serving import policy_name, scheduler_limits
from capacity.simulator import SimulationResult, simulate_engine
from capacity.speculative import Speculation
from capacity.step import DecodePiece, StepShape, picoseconds
from capacity.workload import Workload, random_stream

RECORDED_ROUNDS = 4093  # of acceptance; a prime, so that requests do not fall into step
STRIDE = 1009  # rounds between the places where two neighbouring requests begin


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatedRun:
    """The same arrivals without and with drafts."""

    draft_tokens: int
    plain: SimulationResult
    speculated: SimulationResult

    @property
    def throughput_gain(self) -> float:
        """Output tokens per second with drafts, over those without."""
        return self.speculated.summary.output_throughput / self.plain.summary.output_throughput


class DraftedSteps:
    """Step times of a target that drafts: every step with drafts also pays for drafting them."""

    def __init__(self, speculation: Speculation, draft_tokens: int) -> None:
        self._steps = speculation.target.step_model
        self._speculation = speculation
        self._draft_tokens = draft_tokens

    def step_ps(self, shape: StepShape) -> int:
        step = self._steps.step_ps(shape)
        if not shape.draft_tokens:
            return step
        context = max(1, shape.decode_context_tokens // shape.decode_sequences)
        drafted = self._speculation.round(shape.decode_sequences, context, self._draft_tokens)
        return step + picoseconds(drafted.draft_s)

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:  # noqa: ARG002
        return None


class RecordedAcceptance(DraftedBatch):
    """Accepted drafts from one recorded list, in which every request begins at another place."""

    def accepted(self, sequence: Sequence, drafts: int) -> int:
        entry = self.accept[(sequence.accepted + STRIDE * sequence.index) % len(self.accept)]
        sequence.accepted += 1
        return min(entry, drafts)


def recorded_acceptance(rates: tuple[float, ...], rounds: int, *, seed: int) -> tuple[int, ...]:
    """Accepted drafts of `rounds` verifications, drawn by position: drafts count until the first that is refused."""
    if not rates:
        raise InvalidInput("no drafts: give at least one draft token")
    rng = random_stream(seed, "acceptance")
    accepted = rng.random((rounds, len(rates))) < np.asarray(rates)
    return tuple(np.cumprod(accepted, axis=1).sum(axis=1).tolist())


def simulate_speculation(
    speculation: Speculation, workload: Workload, *, draft_tokens: int | None = None, seed: int = 0
) -> SpeculatedRun:
    """Serve `workload` twice, plainly and with drafts verified as vLLM V1 schedules them.

    A tree is scheduled as the chain of its depth, and its further rows are left out here. Raises InvalidInput.
    """
    k = speculation.speculator.draft_tokens if draft_tokens is None else draft_tokens
    rates = speculation.speculator.rates(k)
    accepted = recorded_acceptance(rates, RECORDED_ROUNDS, seed=seed)
    target = speculation.target
    memory = speculation.memory()
    shrunk = memory.kv_capacity_tokens_after / memory.kv_capacity_tokens_before

    def run(drafted: bool) -> SimulationResult:
        blocks = target.memory.kv_capacity_blocks - 1
        return simulate_engine(
            workload,
            step_times=DraftedSteps(speculation, k) if drafted else target.step_model,
            num_blocks=int(blocks * shrunk) if drafted else blocks,
            block_size=target.memory.kv_block_tokens,
            policy=policy_name(target),
            limits=scheduler_limits(target),
            enable_prefix_caching=target.prefix_caching,
            speculation=RecordedAcceptance(k, accepted, lookahead_slots=k) if drafted else None,
        )

    return SpeculatedRun(draft_tokens=k, plain=run(False), speculated=run(True))
