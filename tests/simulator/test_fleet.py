"""Failures, repair and autoscaling: nothing is lost, and replicas follow the load."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cluster_runs import ROUTERS, STEPS, assert_conserved, assert_equal, requests, setups, workloads
from engine_loops import LOOPS
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from long_forms import mostly_slow

from capacity.base.errors import InvalidInput
from capacity.deployment.routing import PoolLimits
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.fleet import Autoscaling, Failures
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import LognormalLengths, SharedPrefixes, Workload, on_off, synthetic


def test_failures_that_never_come_change_nothing() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=200)
    workload = requests(count=150, rate=20.0)
    plain = simulate(workload, [setup] * 2, router="least-outstanding")
    never = Failures(mean_time_between_failures_s=1e8, recovery_s=1.0)
    calm = Autoscaling(max_replicas=2, target_requests=1e6, startup_s=1.0, interval_s=0.7)
    for options in ({"failures": never}, {"scaling": calm}, {"sample_interval_s": 0.3}):
        found = simulate(workload, [setup] * 2, router="least-outstanding", **options)  # type: ignore[arg-type]
        assert_equal(found, plain)
        assert found.replica_s == plain.replica_s


@settings(max_examples=examples(15))
@given(workloads, setups, st.sampled_from(ROUTERS), st.integers(1, 3), st.integers(0, 100))
def test_nothing_is_lost_when_replicas_are(
    workload: Workload, setup: EngineSetup, router: str, replicas: int, seed: int
) -> None:
    failures = Failures(mean_time_between_failures_s=5.0, recovery_s=1.0, seed=seed)
    runs = [
        simulate(workload, [setup] * replicas, router=router, failures=failures, timeout_s=60.0)
        for _ in range(2)
    ]
    assert runs[0].to_dict() == runs[1].to_dict()
    assert_conserved(workload, runs[0])


def test_a_lost_replica_is_replaced_by_an_empty_one() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=400)
    workload = requests(count=600, rate=10.0, shared_prefixes=SharedPrefixes(320, 2))
    failures = Failures(mean_time_between_failures_s=20.0, recovery_s=5.0, seed=3)
    found = simulate(workload, [setup] * 2, router="least-outstanding", failures=failures)
    plain = simulate(workload, [setup] * 2, router="least-outstanding")
    lost = [replica for replica in found.replicas if replica.ended == "failed"]
    assert lost
    assert found.restarted > 0
    assert (found.prefix_cache_hit_fraction or 0) < (plain.prefix_cache_hit_fraction or 0)
    for replica in lost:
        assert replica.until_s is not None
        born = [r.from_s for r in found.replicas if r.from_s == pytest.approx(replica.until_s + 5.0)]
        assert born or replica.until_s + 5.0 > found.summary.duration


def test_a_single_replica_that_is_lost_keeps_its_requests_waiting() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=400)
    workload = requests(count=200, rate=10.0)
    failures = Failures(mean_time_between_failures_s=8.0, recovery_s=3.0, seed=1)
    found = simulate(workload, [setup], failures=failures)
    assert_conserved(workload, found)
    assert found.records.completed.all()


def test_the_autoscaler_follows_the_load_and_costs_less_than_the_most() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=400, limits=SchedulerLimits(max_num_seqs=8))
    bursts = synthetic(
        num_requests=3000,
        arrivals=on_off(40.0, on_s=40.0, off_s=80.0, off_rate_per_s=2.0),
        prompt=LognormalLengths(100, 1.0, highest_tokens=1000),
        output=LognormalLengths(30, 1.0, highest_tokens=400),
    )
    scaling = Autoscaling(
        max_replicas=6, target_requests=8, startup_s=5.0, interval_s=2.0, scale_down_delay_s=10.0
    )
    scaled = simulate(bursts, [setup], router="least-outstanding", scaling=scaling, sample_interval_s=1.0)
    assert_conserved(bursts, scaled)
    most = simulate(bursts, [setup] * 6, router="least-outstanding")
    one = simulate(bursts, [setup], router="least-outstanding")
    running = [sample.replicas for sample in scaled.load]
    assert max(running) == 6
    assert running[-1] < 6
    assert scaled.replica_s < 0.7 * most.replica_s
    tails = [run.summary.e2el_ms.percentiles[95] for run in (most, scaled, one) if run.summary.e2el_ms]
    assert tails[0] < tails[1] < tails[2]
    first = next(sample.time_s for sample in scaled.load if sample.replicas > 1)
    assert first >= 7.0, "a decision after 2 s at the earliest, and 5 s of start-up"


def test_plans_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="recovery"):
        Failures(mean_time_between_failures_s=1.0, recovery_s=math.inf)
    with pytest.raises(InvalidInput, match="mean time"):
        Failures(mean_time_between_failures_s=0.0, recovery_s=1.0)
    scaling = Autoscaling(max_replicas=1, target_requests=1, startup_s=1)
    setup = EngineSetup(step_times=STEPS, num_blocks=100)
    with pytest.raises(InvalidInput, match="2 initial replicas exceed the maximum of 1"):
        simulate(requests(), [setup] * 2, scaling=scaling)


@pytest.mark.parametrize(
    ("mean_s", "engine_loop"),
    mostly_slow(
        product([0.1, 1e-3, 1e-9], ["events", "core"]), [(1e-3, "events"), (0.1, "core"), (1e-9, "core")]
    ),
)
def test_replicas_that_live_shorter_than_any_request_stall_and_say_so(
    mean_s: float, engine_loop: str
) -> None:
    """A request takes 3 s and more: it would be started again for ever."""
    ones = np.ones(5, dtype=np.int64)
    workload = Workload(arrival_s=0.0 * ones, prompt_tokens=10 * ones, output_tokens=300 * ones)
    setup = EngineSetup(step_times=STEPS, num_blocks=200)
    failures = Failures(mean_time_between_failures_s=mean_s, recovery_s=0.0)
    found = simulate(workload, [setup], failures=failures, engine_loop=engine_loop)
    assert found.status == "stalled"
    assert found.reason is not None
    assert "replicas were lost with their requests 1,000 times from" in found.reason
    assert "no request has ended" in found.reason
    assert not found.records.completed.any()
    fails = Failures(mean_time_between_failures_s=mean_s, recovery_s=0.0, requests="fail")
    assert simulate(workload, [setup], failures=fails, engine_loop=engine_loop).lost == 5


def test_requests_that_survive_one_life_in_ten_are_answered() -> None:
    ones = np.ones(20, dtype=np.int64)
    workload = Workload(arrival_s=0.0 * ones, prompt_tokens=10 * ones, output_tokens=300 * ones)
    setup = EngineSetup(step_times=STEPS, num_blocks=800)
    failures = Failures(mean_time_between_failures_s=1.5, recovery_s=0.0)
    found = simulate(workload, [setup], failures=failures)
    assert found.status == "complete"
    assert found.records.completed.all()


@pytest.mark.parametrize("engine_loop", ["events", "core"])
def test_idle_replicas_are_not_lost_for_ever(engine_loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capacity.simulator.fleet.MAX_IDLE_LOSSES", 200)
    workload = Workload(arrival_s=[0.0, 1e6], prompt_tokens=[10, 10], output_tokens=[2, 2])
    setup = EngineSetup(step_times=STEPS, num_blocks=200)
    failures = Failures(mean_time_between_failures_s=1.0, recovery_s=0.0)
    found = simulate(workload, [setup], failures=failures, engine_loop=engine_loop)
    assert found.status == "stalled"
    assert "idle replicas were lost 200 times" in str(found.reason)
    assert found.records.completed.tolist() == [True, False]


@pytest.mark.parametrize("engine_loop", ["events", "core"])
def test_an_autoscaler_that_only_decides_is_stopped(
    engine_loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capacity.simulator.fleet.MAX_SCALING_DECISIONS", 500)
    workload = Workload(arrival_s=[0.0, 1e6], prompt_tokens=[10, 10], output_tokens=[2, 2])
    setup = EngineSetup(step_times=STEPS, num_blocks=200)
    flapping = Autoscaling(
        max_replicas=3, target_requests=1, startup_s=0.0, interval_s=1e-3, scale_down_delay_s=0.0
    )
    found = simulate(workload, [setup], scaling=flapping, engine_loop=engine_loop)
    assert found.status == "stalled"
    assert "the autoscaler decided 500 times" in str(found.reason)
    assert found.records.completed.tolist() == [True, False]


def test_samples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capacity.simulator.fleet.MAX_SAMPLES", 50)
    with pytest.raises(InvalidInput, match="a sample every 1e-06 s gives more than 50 samples by 5e-05 s"):
        simulate(requests(), EngineSetup(step_times=STEPS, num_blocks=200), sample_interval_s=1e-6)


@pytest.mark.parametrize("late_s", [1.2e6, 1e7, 1e9, math.inf, math.nan, -1.0])
def test_times_beyond_the_clock_are_refused(late_s: float) -> None:
    with pytest.raises(InvalidInput, match=r"recovery time must be at least 0 and at most 1.1e\+06 s"):
        Failures(mean_time_between_failures_s=1.0, recovery_s=late_s)
    with pytest.raises(InvalidInput, match="startup_s must be"):
        Autoscaling(max_replicas=1, target_requests=1, startup_s=late_s)
    with pytest.raises(InvalidInput, match="interval must be above 0"):
        Autoscaling(max_replicas=1, target_requests=1, startup_s=1, interval_s=late_s)
    with pytest.raises(InvalidInput, match="client timeout must be above 0"):
        simulate(requests(), EngineSetup(step_times=STEPS, num_blocks=200), timeout_s=late_s)


@pytest.mark.parametrize("engine_loop", ["events", "core"])
def test_repairs_that_end_after_the_clock_are_said(engine_loop: str) -> None:
    workload = Workload(arrival_s=[1.05e6], prompt_tokens=[10], output_tokens=[300])
    setup = EngineSetup(step_times=STEPS, num_blocks=200)
    failures = Failures(mean_time_between_failures_s=1.0, recovery_s=1e6)
    with pytest.raises(InvalidInput, match="simulated time ends after 1152921 s"):
        simulate(workload, [setup], failures=failures, engine_loop=engine_loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_each_pool_is_scaled_by_its_own_load(loop: str) -> None:
    """Behind a router by length no pool acts on another: each does, scaled, what it does alone, to the picosecond."""
    workload, most = requests(200, rate=60.0), 100
    plan = Autoscaling(
        max_replicas=4, target_requests=3.0, startup_s=0.5, interval_s=0.3, scale_down_delay_s=1.0
    )
    fast = EngineSetup(step_times=STEPS, num_blocks=2000, label="fast", takes=PoolLimits(0, most))
    slow = replace(fast, step_times=AffineStepTimes(0.03, 3e-4), label="slow", takes=PoolLimits(1))
    found = simulate(workload, [fast, slow], router="by-prompt-length", scaling=plan, engine_loop=loop)
    for pool, setup in enumerate((fast, slow)):
        own = (workload.prompt_tokens > most) == bool(pool)
        alone = simulate(
            Workload(
                arrival_s=workload.arrival_s[own],
                prompt_tokens=workload.prompt_tokens[own],
                output_tokens=workload.output_tokens[own],
            ),
            setup,
            router="by-prompt-length",
            scaling=plan,
            engine_loop=loop,
        )
        np.testing.assert_array_equal(found.records.finish_ps[own], alone.records.finish_ps)
        started = [replica.label for replica in found.replicas if replica.pool == pool]
        assert started == [setup.label] * len(alone.replicas)
        assert len(started) > 1
