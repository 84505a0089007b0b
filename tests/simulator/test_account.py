"""What a deployment tells of itself: samples that agree with its load, and ends that say why."""

from __future__ import annotations

import numpy as np
import pytest
from engine_loops import LOOPS, on

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.fleet import Failures
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import FixedLengths, SteadyArrivals, Workload, synthetic

STEPS = AffineStepTimes(0.01, 1e-4)


def requests(count: int, per_s: float = 20.0) -> Workload:
    return synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(per_s),
        prompt=FixedLengths(100),
        output=FixedLengths(20),
    )


@pytest.mark.parametrize("loop", LOOPS)
def test_samples_add_up_what_the_engines_and_the_router_hold(loop: str) -> None:
    """Two places an engine, and no more than four outstanding there: the rest waits at the router."""
    engine = EngineSetup(
        step_times=STEPS, num_blocks=200, limits=SchedulerLimits(max_num_seqs=2, max_model_len=200)
    )
    run = simulate(
        requests(300),
        [engine] * 2,
        router="least-outstanding",
        outstanding_limit=4,
        sample_interval_s=0.25,
        **on(simulate, loop),
    )
    assert run.status == "complete"
    assert len(run.series) == len(run.load) > 20
    for sample, load in zip(run.series, run.load, strict=True):
        assert sample.time_s == load.time_s
        assert load.replicas == 2
        assert sample.running <= 4
        assert load.outstanding == sample.running + sample.waiting
        assert sample.kv_used_blocks <= 8 * sample.running
    assert max(load.outstanding for load in run.load) > 8, "some waited at the router"


@pytest.mark.parametrize("loop", LOOPS)
def test_every_request_is_counted_once(loop: str) -> None:
    """Completed, turned away, timed out or lost with its replica."""
    engine = EngineSetup(
        step_times=STEPS, num_blocks=60, limits=SchedulerLimits(max_num_seqs=2, max_model_len=200)
    )
    run = simulate(
        requests(500, 30.0),
        [engine] * 2,
        queue_limit=12,
        timeout_s=0.8,
        failures=Failures(mean_time_between_failures_s=4.0, recovery_s=0.5, requests="fail", seed=1),
        **on(simulate, loop),
    )
    assert run.status == "complete"
    ends = run.summary.completed, run.rejected, run.timed_out, run.lost
    assert min(ends) > 0
    assert sum(ends) == 500
    assert sum(replica.ended == "failed" for replica in run.replicas) > 1


@pytest.mark.parametrize("loop", LOOPS)
def test_a_prompt_that_never_fits_is_why_a_run_stalls(loop: str) -> None:
    engine = EngineSetup(step_times=STEPS, num_blocks=5)
    workload = Workload(
        arrival_s=np.array([0.0, 0.1]), prompt_tokens=np.array([50, 500]), output_tokens=np.array([5, 5])
    )
    run = simulate(workload, engine, **on(simulate, loop))
    assert run.status == "stalled"
    assert run.reason is not None
    assert "1 requests wait" in run.reason
    assert run.summary.completed == 1
