"""Drafts under the schedulers that know phases: SGLang's, TensorRT-LLM's and TGI's."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.schedulers import DrawnSpeculation, SchedulerLimits
from capacity.step import AffineStepTimes, StepShape
from capacity.workload import Workload

POLICIES = ("sglang", "tensorrt-llm", "tgi")


def run(
    policy: str, workload: Workload, rates: tuple[float, ...], *, blocks: int = 4000, **options: str
) -> SimulationResult:
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 0.001),
        num_blocks=blocks,
        block_size=4,
        policy=policy,
        limits=SchedulerLimits(max_num_seqs=32, max_num_batched_tokens=256, max_model_len=400),
        policy_options={"asynchronous": False, **options},
        speculation=DrawnSpeculation(rates, lookahead_slots=len(rates)) if rates else None,
    )
    return simulate(workload, setup, sample_interval_s=0.01)


def random_workload(seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload(
        arrival_s=np.sort(rng.random(60)) * 2,
        prompt_tokens=rng.integers(1, 150, 60),
        output_tokens=rng.integers(1, 90, 60),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_drafts_that_are_all_accepted_save_their_steps(policy: str) -> None:
    """One prompt of 8 and 10 outputs: a prefill, then 9 tokens by 4 at a time: rows of 4, 4 and, with one to go, 1."""
    workload = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([8]), output_tokens=np.array([10]))
    found = run(policy, workload, (1.0, 1.0, 1.0))
    assert found.records.first_token_ps[0] * 1e-12 == pytest.approx(0.018)
    assert found.records.finish_ps[0] * 1e-12 == pytest.approx(0.018 + 2 * 0.014 + 0.011)
    assert found.steps == 4
    assert found.readable_because is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_drafts_that_are_never_accepted_only_cost_rows(policy: str) -> None:
    workload = random_workload(1)
    plain, wasted = run(policy, workload, ()), run(policy, workload, (0.0,))
    assert wasted.summary.completed == plain.summary.completed == 60
    assert wasted.records.output_tokens.tolist() == plain.records.output_tokens.tolist()
    assert wasted.busy_s > plain.busy_s


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [100, 110, 150, 4000])
def test_tokens_and_blocks_are_conserved(policy: str, blocks: int) -> None:
    """Also where the cache is so small that requests are sent back."""
    for seed in range(3):
        workload = random_workload(seed)
        found = run(policy, workload, (0.8, 0.5, 0.3), blocks=blocks)
        assert found.status == "complete"
        assert found.records.output_tokens.tolist() == workload.output_tokens.tolist()
        assert (np.diff([found.records.first_token_ps, found.records.finish_ps], axis=0) >= 0).all()
        assert all(sample.running or not sample.kv_used_blocks for sample in found.series)


def test_who_is_paused_starts_again_with_its_drafts() -> None:
    workload = random_workload(1)
    found = run("tensorrt-llm", workload, (0.8, 0.5, 0.3), blocks=100, capacity="max_utilization")
    assert found.preemptions > 0
    assert found.status == "complete"
    assert found.records.output_tokens.tolist() == workload.output_tokens.tolist()


def test_the_compiled_engines_leave_them_to_the_readable() -> None:
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 0.001),
        num_blocks=50,
        policy="sglang",
        speculation=DrawnSpeculation((0.5,), lookahead_slots=1),
    )
    workload = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([8]), output_tokens=np.array([3]))
    with pytest.raises(InvalidInput, match="compiled engines cannot run this"):
        simulate(workload, setup, engine_loop="core")


class BudgetedTimes:
    """10 ms a step; remembers the most tokens of one."""

    def __init__(self) -> None:
        self.most = 0

    def step_ps(self, shape: StepShape) -> int:
        self.most = max(self.most, shape.prefill_tokens + shape.decode_sequences + shape.draft_tokens)
        return 10**10

    def decode_piece(self, shape: StepShape) -> None:  # noqa: ARG002
        return None


def test_drafts_take_their_part_of_tensorrt_llms_budget() -> None:
    """Four sequences of four rows, and prompts of up to 12 tokens beside them: never more than 16 in a step."""
    times = BudgetedTimes()
    rng = np.random.default_rng(5)
    workload = Workload(
        arrival_s=np.sort(rng.random(40)),
        prompt_tokens=rng.integers(1, 13, 40),
        output_tokens=rng.integers(2, 30, 40),
    )
    setup = EngineSetup(
        step_times=times,
        num_blocks=400,
        block_size=4,
        policy="tensorrt-llm",
        limits=SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=100),
        policy_options={"asynchronous": False},
        speculation=DrawnSpeculation((0.5, 0.5, 0.5), lookahead_slots=3),
    )
    assert simulate(workload, setup, engine_loop="events").summary.completed == 40
    assert times.most == 16
