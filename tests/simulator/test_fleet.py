"""Failures, repair and autoscaling: nothing is lost, and replicas follow the load."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simpy
from cluster_runs import ROUTERS, STEPS, assert_conserved, assert_equal, requests, setups, workloads
from engine_loops import LOOPS
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from long_forms import mostly_slow

from capacity.base.errors import InvalidInput
from capacity.deployment.routing import PoolLimits
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.fleet import (
    Autoscaling,
    Failures,
    NoProgress,
    ProgressGuard,
    autoscale_pool,
    fail_replica,
    sample_states,
)
from capacity.simulator.instants import CLOCK_ENDS_PS
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


class FakeCluster:
    """A cluster without engines: `load` is the number of requests at a time (s); it records every change."""

    def __init__(self, load: Any = lambda _: 0, *, start_ps: int = 0, replicas: int = 1) -> None:
        self.env = simpy.Environment(initial_time=start_ps)
        self.load = load
        self.is_over = False
        self.coming = self.waiting_for_replica = 0
        self.in_vain = ProgressGuard()
        self.account = SimpleNamespace(sample=lambda _, at_ps: self.changes.append(("sample", at_ps)))
        self.members: list[Any] = []
        self.routers = [SimpleNamespace(requests=[2, 0, 1, 0, 3, 0, 0])] * 9
        self.changes: list[tuple[Any, ...]] = []
        for _ in range(replicas):
            self.add("engine", 0)
        self.changes.clear()

    def replicas_of(self, setup: Any) -> list[int]:  # noqa: ARG002
        return list(range(len(self.members)))

    def pool_load(self, setup: Any) -> int:  # noqa: ARG002
        return self.load(self.env.now / 1e12)

    def add(self, setup: Any, now_ps: int, *, ready: bool = True) -> int:
        member = SimpleNamespace(setup=setup, alive=True, open=ready, starting=not ready, draining=False)
        self.members.append(member)
        self.changes.append(("add", now_ps))
        return len(self.members) - 1

    def open(self, number: int, now_ps: int) -> None:
        self.members[number].open, self.members[number].starting = True, False
        self.changes.append(("open", now_ps, number))

    def drain(self, number: int, now_ps: int, why: str) -> None:
        self.members[number].open = False
        self.changes.append((why, now_ps, number))

    def fail(self, number: int, now_ps: int) -> None:
        self.members[number].alive = False
        self.changes.append(("failed", now_ps, number))


class GivenLifetime(Failures):
    """Every replica fails after the mean time."""

    def lifetime_s(self, number: int) -> float:  # noqa: ARG002
        return self.mean_time_between_failures_s


def run_until(cluster: FakeCluster, process: Any, until_ps: int | None) -> list[tuple[Any, ...]]:
    cluster.env.process(process)
    cluster.env.run(until_ps)
    return cluster.changes


def test_times_below_a_picosecond_count_as_one() -> None:
    sampled = FakeCluster()
    assert run_until(sampled, sample_states(sampled, 1e-13), 3) == [("sample", at) for at in (0, 1, 2)]  # type: ignore[arg-type]
    failing = FakeCluster()
    plan = GivenLifetime(mean_time_between_failures_s=1e-13, recovery_s=2e-12)
    assert run_until(failing, fail_replica(failing, 0, plan), None) == [("failed", 1, 0), ("add", 3)]  # type: ignore[arg-type]
    assert failing.coming == 0
    scaled = FakeCluster(lambda _: 2)
    scaling = Autoscaling(max_replicas=2, target_requests=1, startup_s=2e-12, interval_s=1e-13)
    assert run_until(scaled, autoscale_pool(scaled, "engine", scaling), 9) == [("add", 1), ("open", 3, 1)]  # type: ignore[arg-type]


def test_a_change_at_the_end_of_the_clock_is_refused_unless_all_work_is_done() -> None:
    late = GivenLifetime(mean_time_between_failures_s=5e-12, recovery_s=0.0)
    never = GivenLifetime(mean_time_between_failures_s=1e300, recovery_s=0.0)
    for start_ps, plan in ((CLOCK_ENDS_PS - 5, late), (0, never)):
        cluster = FakeCluster(start_ps=start_ps)
        with pytest.raises(InvalidInput, match="simulated time ends"):
            run_until(cluster, fail_replica(cluster, 0, plan), None)  # type: ignore[arg-type]
        cluster = FakeCluster(start_ps=start_ps)
        cluster.is_over = True
        assert run_until(cluster, fail_replica(cluster, 0, plan), None) == []  # type: ignore[arg-type]
    cluster = FakeCluster(start_ps=CLOCK_ENDS_PS - 6)
    assert run_until(cluster, fail_replica(cluster, 0, late), None)[0] == ("failed", CLOCK_ENDS_PS - 1, 0)  # type: ignore[arg-type]


def test_the_autoscaler_decides_as_worked_by_hand() -> None:
    """Two requests a replica, 1 to 5 replicas, 1.5 s to start, a surplus of 2 s before any is removed."""
    second = 10**12
    loads = [0, 4, 99, 2, 2, 2, 4, 2, 2]  # wanted by the decisions from 1 s on: 2, 5, 1, 1, 1, 2, 1, 1
    cluster = FakeCluster(lambda now_s: loads[int(now_s)])
    plan = Autoscaling(
        max_replicas=5, target_requests=2, startup_s=1.5, interval_s=1.0, scale_down_delay_s=2.0
    )
    changes = run_until(cluster, autoscale_pool(cluster, "engine", plan), 8 * second + 1)  # type: ignore[arg-type]
    assert changes == [
        ("add", 1 * second),
        ("add", 2 * second),
        ("add", 2 * second),
        ("add", 2 * second),
        ("open", 2.5 * second, 1),
        ("open", 3.5 * second, 2),
        ("open", 3.5 * second, 3),
        ("open", 3.5 * second, 4),
        # at 4 s the surplus lasts 2 s: four go, of no requests the newest first
        ("scaled down", 4 * second, 3),
        ("scaled down", 4 * second, 1),
        ("scaled down", 4 * second, 2),
        ("scaled down", 4 * second, 0),
        ("add", 6 * second),
        ("open", 7.5 * second, 5),
        ("scaled down", 8 * second, 5),
    ]
    slow = replace(plan, startup_s=9.0, scale_down_delay_s=0.0)
    cluster = FakeCluster(lambda now_s: [0, 99, 2, 2, 2][int(now_s)], replicas=2)
    changes = run_until(cluster, autoscale_pool(cluster, "engine", slow), 4 * second)  # type: ignore[arg-type]
    # of the two that take requests one stays, although three more start
    assert changes == [("add", 1 * second)] * 3 + [("scaled down", 2 * second, 1)]


@pytest.mark.parametrize(("waiting", "load", "added"), [(0, 9, False), (1, 2, False), (1, 9, True)])
def test_the_autoscaler_ends_with_the_work_unless_requests_wait_for_a_new_replica(
    waiting: int, load: int, added: bool
) -> None:
    cluster = FakeCluster(lambda _: load)
    cluster.is_over, cluster.waiting_for_replica = True, waiting
    plan = Autoscaling(max_replicas=2, target_requests=2, startup_s=5.0, interval_s=1.0)
    process = cluster.env.process(autoscale_pool(cluster, "engine", plan))  # type: ignore[arg-type]
    cluster.env.run(1_500 * 10**9)  # after one decision
    assert cluster.changes == [("add", 10**12)] * added
    assert process.is_alive == added


def test_progress_is_counted_by_event_and_since_the_last_answer() -> None:
    guard = ProgressGuard()
    for _ in range(2):
        for at_ps in range(1000):
            guard.count_lost_replica(with_requests=True, now_ps=(at_ps + 1) * 10**12)
        for _ in range(100_000):
            guard.count_lost_replica(with_requests=False, now_ps=0)
        last = guard.counts
        guard.request_ended()
    guard.counts = last
    lost = r"lost with their requests 1,000 times from 1.000 s to 5.000 s, .* or let requests fail instead"
    with pytest.raises(NoProgress, match=lost):
        guard.count_lost_replica(with_requests=True, now_ps=5 * 10**12)
    with pytest.raises(
        NoProgress, match=r"idle replicas were lost 100,000 times .* relative to the time between"
    ):
        guard.count_lost_replica(with_requests=False, now_ps=0)


def test_lifetimes_are_exponential_and_independent() -> None:
    """A share of 1/e lives longer than the mean; both have a standard error of at most 3 % of 1,000 lifetimes."""
    plan = Failures(mean_time_between_failures_s=1.0, recovery_s=0.0)
    lives = np.array([plan.lifetime_s(number) for number in range(1000)])
    assert lives.mean() == pytest.approx(1.0, abs=0.12)
    assert (lives > 1.0).mean() == pytest.approx(1 / math.e, abs=0.06)
    assert len(set(lives)) == 1000
    assert abs(np.corrcoef(lives[1:], lives[:-1])[0, 1]) < 0.13
    assert lives[0] == replace(plan, seed=0).lifetime_s(0) != replace(plan, seed=1).lifetime_s(0)
    for least in (1e-300, 0.5):  # any value above 0
        Autoscaling(max_replicas=1, target_requests=least, startup_s=0)
    for name in ("startup_s", "interval_s", "scale_down_delay_s"):
        with pytest.raises(InvalidInput, match=name.partition("_")[0]):
            Autoscaling(**{"max_replicas": 1, "target_requests": 1, "startup_s": 1, name: -1.0})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="interval must be above 0"):
        Autoscaling(max_replicas=1, target_requests=1, startup_s=1, interval_s=0.0)
    for target in (0.0, math.inf):
        with pytest.raises(InvalidInput, match="target of outstanding requests per replica must be finite"):
            Autoscaling(max_replicas=1, target_requests=target, startup_s=1)
