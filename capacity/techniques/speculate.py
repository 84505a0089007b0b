"""Speculation inside the batch: the engine's scheduler, its token budget and its KV blocks, with drafts and without."""

from __future__ import annotations

from dataclasses import dataclass

from capacity.answers.engine_setup import engine_setup, with_drafts
from capacity.base.errors import InvalidInput
from capacity.pool.drafting import Speculation
from capacity.simulator import SimulationResult, simulate
from capacity.simulator.schedulers import DrawnSpeculation, schedulers_that
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatedRun:
    """The same arrivals without and with drafts."""

    draft_tokens: int  # in depth
    verified_tokens: int  # rows beside the last token, for each request: a tree's nodes
    plain: SimulationResult
    speculated: SimulationResult

    @property
    def throughput_gain(self) -> float:
        """Output tokens per second with drafts, over those without."""
        return self.speculated.summary.output_throughput / self.plain.summary.output_throughput


def simulate_speculation(
    speculation: Speculation, workload: Workload, *, draft_tokens: int | None = None, seed: int = 0
) -> SpeculatedRun:
    """Serve `workload` twice, plainly and with drafts verified as vLLM V1 schedules them.

    A tree is scheduled with all its nodes: budget, KV slots and verification count them, acceptance is by depth.
    Raises InvalidInput.
    """
    target = speculation.target
    plain, able = engine_setup(target), schedulers_that("drafts")
    if plain.policy not in able:
        raise InvalidInput(
            f"drafts are scheduled under {' and '.join(able)}; {target.engine.label} is "
            f"{plain.policy}: use --engine vllm"
        )
    drafted = with_drafts(plain, speculation, draft_tokens, seed=seed)
    drawn = drafted.speculation
    assert isinstance(drawn, DrawnSpeculation)
    return SpeculatedRun(
        draft_tokens=len(drawn.rates),
        verified_tokens=drawn.k,
        plain=simulate(workload, plain),
        speculated=simulate(workload, drafted),
    )
