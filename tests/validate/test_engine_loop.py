"""The continuous-batching loop on a real model: schedules, times and tokens."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate import serving_loop  # noqa: E402
from capacity_validate.serving_loop import count_equal_steps, poisson_workload, run_engine, simulate  # noqa: E402
from capacity_validate.timing import RunClock, ThreadClock  # noqa: E402
from capacity_validate.transformer import Transformer  # noqa: E402

from capacity.simulator.schedulers import SchedulerLimits  # noqa: E402
from capacity.step import AffineStepTimes  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class CountingClock(RunClock):
    """5 ms pass with every look at it: which arrivals fall into which step does not hang on the machine."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        self._now_s += 5e-3
        return self._now_s

    def wait_until(self, instant_s: float) -> None:
        self._now_s = max(self._now_s, instant_s)


@pytest.mark.parametrize("num_blocks", [64, 18])
def test_the_simulator_takes_the_very_steps_of_the_real_loop(tiny: Transformer, num_blocks: int) -> None:
    """Also where the KV cache is too small, so that requests are preempted and start again."""
    tiny.num_blocks = num_blocks
    workload = poisson_workload(
        requests=10, rate_per_s=60.0, prompt_tokens=(20, 80), output_tokens=(4, 30), seed=1
    )
    limits = SchedulerLimits(max_num_seqs=6, max_num_batched_tokens=64)
    run = run_engine(tiny, workload, limits, clock=CountingClock())
    assert count_equal_steps(run) == len(run.steps) > 10
    assert run.records.completed.all()
    assert run.records.output_tokens.tolist() == workload.output_tokens.tolist()
    simulated = simulate(run, AffineStepTimes(1e-3, 1e-5))
    assert simulated.summary.completed == 10
    if num_blocks == 18:
        assert run.preemptions > 0


def test_times_of_a_real_run_are_in_order(tiny: Transformer) -> None:
    tiny.num_blocks = 64
    workload = poisson_workload(
        requests=6, rate_per_s=20.0, prompt_tokens=(20, 40), output_tokens=(2, 6), seed=4
    )
    run = run_engine(
        tiny, workload, SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=32), clock=ThreadClock()
    )
    for record in run.records:
        assert record.first_scheduled_s is not None
        assert record.first_token_s is not None
        assert record.finish_s is not None
        assert record.arrival_s <= record.first_scheduled_s < record.first_token_s <= record.finish_s
    assert sum(step.seconds for step in run.steps) == pytest.approx(run.busy_s)


def test_scheduled_requests_get_the_tokens_that_they_get_alone(tiny: Transformer) -> None:
    """Greedy outputs in a batch are those of a batch of one: paging and batching change nothing."""
    tiny.num_blocks = 64
    workload = poisson_workload(
        requests=4, rate_per_s=1e6, prompt_tokens=(20, 40), output_tokens=(6, 6), seed=7
    )
    together = run_engine(
        tiny, workload, SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=64), clock=ThreadClock()
    )
    alone = run_engine(
        tiny, workload, SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=64), clock=ThreadClock()
    )
    assert len(alone.steps) > len(together.steps)
    assert together.tokens == alone.tokens


@pytest.mark.parametrize("num_blocks", [64, 18])
def test_block_tables_follow_the_pool_through_preemption(
    tiny: Transformer, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept as arrays that new blocks are appended to: at every step they are what the scheduler's pool holds."""
    tiny.num_blocks = num_blocks
    blocks, checked = serving_loop._ServingLoop._blocks, 0

    def watched(self: Any, index: int, held: Any) -> Any:
        nonlocal checked
        checked += 1
        kept = blocks(self, index, held)
        assert kept.tolist() == list(held)
        return kept

    monkeypatch.setattr(serving_loop._ServingLoop, "_blocks", watched)
    workload = poisson_workload(
        requests=10, rate_per_s=60.0, prompt_tokens=(20, 80), output_tokens=(4, 30), seed=1
    )
    limits = SchedulerLimits(max_num_seqs=6, max_num_batched_tokens=64)
    run = run_engine(tiny, workload, limits, clock=CountingClock())
    assert checked > 100
    assert (run.preemptions > 0) == (num_blocks == 18)
