"""Speculation inside the batch: the engine's scheduler, its token budget and its KV blocks, with drafts and without."""

from __future__ import annotations

from dataclasses import dataclass

from capacity.errors import InvalidInput
from capacity.schedulers.sequence import DrawnSpeculation
from capacity.serving import policy_name, scheduler_limits
from capacity.simulator import SimulationResult, simulate_engine
from capacity.speculative import DraftedSteps, Speculation
from capacity.workload import Workload

POLICIES_WITH_DRAFTS = ("vllm-v1", "vllm-v1-async")


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


def simulate_speculation(
    speculation: Speculation, workload: Workload, *, draft_tokens: int | None = None, seed: int = 0
) -> SpeculatedRun:
    """Serve `workload` twice, plainly and with drafts verified as vLLM V1 schedules them.

    A tree is scheduled as the chain of its depth, and its further rows are left out here. Raises InvalidInput.
    """
    k = speculation.speculator.draft_tokens if draft_tokens is None else draft_tokens
    if k < 1:
        raise InvalidInput(f"{k} draft tokens: a simulation with drafts needs at least 1")
    rates = speculation.speculator.rates(k)
    target = speculation.target
    policy = policy_name(target)
    if policy not in POLICIES_WITH_DRAFTS:
        raise InvalidInput(
            f"drafts are scheduled under {' and '.join(POLICIES_WITH_DRAFTS)}; {target.engine.label} is {policy}: "
            "use --engine vllm"
        )
    memory = speculation.memory()
    shrunk = memory.kv_capacity_tokens_after / memory.kv_capacity_tokens_before

    def run(drafted: bool) -> SimulationResult:
        blocks = target.memory.kv_capacity_blocks - 1
        return simulate_engine(
            workload,
            step_times=DraftedSteps(speculation, k) if drafted else target.step_model,
            num_blocks=int(blocks * shrunk) if drafted else blocks,
            block_size=target.memory.kv_block_tokens,
            policy=policy,
            limits=scheduler_limits(target),
            enable_prefix_caching=target.prefix_caching,
            window_tokens=target.model.window_tokens,
            kv_windows=target.memory.layout.kv_windows,
            speculation=DrawnSpeculation(rates, lookahead_slots=k, seed=seed) if drafted else None,
        )

    return SpeculatedRun(draft_tokens=k, plain=run(False), speculated=run(True))
