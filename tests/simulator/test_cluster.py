"""Replicas behind a router: equal to one engine where there is one, to queueing theory where that has an answer,
and conserving requests, tokens and time whatever the clients do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_runs import (
    COLUMNS,
    ROUTERS,
    STEPS,
    alone,
    assert_conserved,
    assert_equal,
    requests,
    setups,
    talks,
    workloads,
)
from engine_loops import LOOPS
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from step_models import FunctionStepTimes

from capacity.base.errors import InvalidInput
from capacity.deployment.routers import RoundRobin
from capacity.deployment.routing import Forecast, PoolLimits, Prompt, Router
from capacity.simulator import EngineSetup, FrontendTimes, SimulationResult, simulate
from capacity.simulator.cluster import Cluster
from capacity.simulator.dispatch import Dispatch
from capacity.simulator.fleet import Failures
from capacity.simulator.members import Recording
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.transfer import KvLink
from capacity.step import PS_PER_S, AffineStepTimes
from capacity.workload import FixedLengths, SharedPrefixes, SteadyArrivals, Workload, synthetic

frontends = st.sampled_from((None, FrontendTimes(request_latency_s=0.01, response_latency_s=0.02)))


@settings(max_examples=examples(25))
@given(workloads, setups, frontends)
def test_one_replica_is_an_engine_alone(
    workload: Workload, setup: EngineSetup, frontend: FrontendTimes | None
) -> None:
    assert_equal(simulate(workload, [setup], frontend=frontend), alone(workload, setup, frontend))


@settings(max_examples=examples(25))
@given(
    workloads,
    setups,
    frontends,
    st.sampled_from(ROUTERS),
    st.integers(2, 4),
    st.sampled_from((None, 2.0)),
    st.sampled_from((None, 3)),
    st.sampled_from((None, None, 4)),
)
def test_nothing_gets_lost(
    workload: Workload,
    setup: EngineSetup,
    frontend: FrontendTimes | None,
    router: str,
    replicas: int,
    timeout_s: float | None,
    queue_limit: int | None,
    outstanding_limit: int | None,
) -> None:
    found = simulate(
        workload,
        [setup] * replicas,
        router=router,
        frontend=frontend,
        timeout_s=timeout_s,
        queue_limit=queue_limit,
        outstanding_limit=outstanding_limit,
    )
    assert_conserved(workload, found)


@pytest.mark.parametrize("replicas", [1, 8])
def test_same_seed_same_bytes(replicas: int) -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=300)
    workload = requests(count=300, rate=40.0, seed=5, shared_prefixes=SharedPrefixes(64, 5))
    runs = [simulate(workload, [setup] * replicas, router="prefix-aware", timeout_s=3.0) for _ in range(2)]
    assert runs[0].to_dict() == runs[1].to_dict()
    for column in COLUMNS:
        first, second = (getattr(run.records, column).tobytes() for run in runs)
        assert first == second


def erlang_c_wait(rate: float, servers: int) -> float:
    """Mean wait of M/M/k with service rate 1. Source: Erlang (1917); Kleinrock, Queueing Systems I, 3.4."""
    terms = [rate**n / math.factorial(n) for n in range(servers)]
    last = rate**servers / math.factorial(servers) * servers / (servers - rate)
    return last / (sum(terms) + last) / (servers - rate)


class _Serving:
    """Exponential service: a request of one token in a batch of one is one step."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, shape: Any) -> float:  # noqa: ARG002
        return float(self.rng.exponential(1.0))


def waits_of(
    servers: int, load: float, router: str = "least-outstanding", **options: Any
) -> tuple[float, float]:
    """Mean wait of 20,000 requests at k replicas of one seat each, and the half-width of its 99 % interval."""
    workload = synthetic(
        num_requests=20_000,
        arrivals=SteadyArrivals(load * servers),
        prompt=FixedLengths(1),
        output=FixedLengths(1),
        seed=servers,
    )
    setup = EngineSetup(
        step_times=FunctionStepTimes(_Serving(servers)),
        num_blocks=10_000,
        policy="vllm-v1",
        limits=SchedulerLimits(max_num_seqs=1),
        enable_prefix_caching=False,
    )
    records = simulate(workload, [setup] * servers, router=router, **options).records
    waits = (records.first_scheduled_ps - records.arrival_ps) / 1e12
    means = waits[2000:].reshape(20, -1).mean(axis=1)
    return float(means.mean()), 2.86 * float(means.std(ddof=1)) / math.sqrt(len(means))


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (2, 0.7), (8, 0.8)])
def test_one_queue_before_k_replicas_is_m_m_k(servers: int, load: float) -> None:
    mean, half = waits_of(servers, load, outstanding_limit=1)
    assert half < 0.5 * mean
    assert abs(mean - erlang_c_wait(load * servers, servers)) < half


def test_queues_at_the_replicas_wait_longer_than_one_and_shorter_than_separate_ones() -> None:
    """Least outstanding is join-the-shortest-queue: above M/M/k, which commits nobody early, below k M/M/1."""
    mean, half = waits_of(4, 0.8)
    assert erlang_c_wait(3.2, 4) < mean + half
    assert mean + half < erlang_c_wait(0.8, 1)


def test_littles_identity() -> None:
    """The integral of the requests present is the sum of their stays, to the ps."""
    workload = requests(count=400, rate=20.0)
    setup = EngineSetup(step_times=STEPS, num_blocks=300)
    found = simulate(workload, [setup] * 3, router="least-outstanding").records
    events = sorted([(int(t), 1) for t in found.arrival_ps] + [(int(t), -1) for t in found.finish_ps])
    area = present = last = 0
    for at, change in events:
        area += present * (at - last)
        present += change
        last = at
    assert area == int((found.finish_ps - found.arrival_ps).sum())


@pytest.mark.parametrize("kind", ["replicas", "prefill and decode"])
def test_littles_law_against_samples_of_the_load(kind: str) -> None:
    """Time average that the simulator kept, of what it holds itself, against arrivals' rate times records' stays."""
    workload = requests(count=600, rate=20.0)
    setup = EngineSetup(step_times=STEPS, num_blocks=1000)
    if kind == "replicas":
        options: dict[str, Any] = {"setups": [setup] * 3}
    else:
        roles = [replace(setup, role=role) for role in ("prefill", "decode", "decode")]
        options = {"setups": roles, "link": KvLink(bytes_per_token=1e5, bytes_per_s=1e9)}
    found = simulate(workload, **options, router="least-outstanding", sample_interval_s=0.005)
    area_s = 0.005 * sum(sample.outstanding for sample in found.load)
    records, handed_ps = found.records, found.prefilled_ps
    stays_s = float((records.finish_ps - records.arrival_ps).sum()) / 1e12
    assert area_s == pytest.approx(stays_s, rel=0.01)
    if handed_ps is None:
        return
    for role, ps in (("prefill", handed_ps - records.arrival_ps), ("decode", records.finish_ps - handed_ps)):
        held_s = 0.005 * sum(sample.by_role[role] for sample in found.load if sample.by_role)
        assert held_s == pytest.approx(float(ps.sum()) / 1e12, rel=0.02)


def test_least_outstanding_beats_round_robin_on_unequal_replicas() -> None:
    fast = EngineSetup(step_times=STEPS, num_blocks=500, label="fast")
    slow = replace(fast, step_times=AffineStepTimes(0.03, 3e-4), label="slow")
    workload = requests(count=600, rate=14.0)
    tails = {
        router: simulate(workload, [fast, slow], router=router).summary.e2el_ms
        for router in ("round-robin", "least-outstanding")
    }
    assert tails["least-outstanding"] is not None
    assert tails["round-robin"] is not None
    assert tails["least-outstanding"].percentiles[99] < tails["round-robin"].percentiles[99]


def test_prefix_aware_finds_more_in_the_caches() -> None:
    """20 long prefixes that do not fit one cache all together, but do fit three, each where it is asked for."""
    workload = requests(count=400, rate=6.0, shared_prefixes=SharedPrefixes(960, 20))
    setup = EngineSetup(step_times=STEPS, num_blocks=800)
    hits = {
        router: simulate(workload, [setup] * 3, router=router).prefix_cache_hit_fraction or 0.0
        for router in ("round-robin", "prefix-aware")
    }
    assert hits["prefix-aware"] > hits["round-robin"] + 0.1


def test_sessions_stay_on_their_replica() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=1000)
    sticky = simulate(talks(), [setup] * 4, router="session-sticky")
    spread = simulate(talks(), [setup] * 4, router="round-robin")
    assert (sticky.prefix_cache_hit_fraction or 0) > (spread.prefix_cache_hit_fraction or 0)
    with pytest.raises(InvalidInput, match="needs sessions"):
        simulate(requests(), [setup], router="session-sticky")


def test_bad_deployments_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 1 replica"):
        simulate(requests(), [])
    with pytest.raises(InvalidInput, match="timeout"):
        simulate(requests(), [EngineSetup(step_times=STEPS, num_blocks=100)], timeout_s=0)
    setup = EngineSetup(step_times=STEPS, num_blocks=100, policy="static")
    with pytest.raises(InvalidInput, match="cannot abort"):
        simulate(requests(), [setup], timeout_s=1)


def test_a_prompt_that_can_never_run_is_said() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=10, limits=SchedulerLimits(max_model_len=2000))
    workload = synthetic(
        num_requests=3, arrivals=SteadyArrivals(1.0), prompt=FixedLengths(500), output=FixedLengths(5)
    )
    found = simulate(workload, [setup] * 2)
    assert found.status == "stalled"
    assert "more KV blocks" in str(found.reason)


def test_replicas_that_share_nothing_are_runs_of_their_own() -> None:
    """Round robin knows no state: replica k of R serves requests k, k + R, ... as if it were alone."""
    workload = requests(count=301, rate=20.0)
    setup = EngineSetup(step_times=STEPS, num_blocks=300, limits=SchedulerLimits(max_num_seqs=8))
    found = simulate(workload, [setup] * 3, router="round-robin").records
    for replica in range(3):
        rows = np.arange(replica, 301, 3)
        part = alone(workload.select(rows), setup).records
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(found, column)[rows], getattr(part, column))


def test_what_is_known_only_later_changes_nothing_before() -> None:
    """Causality: requests added at the end leave every earlier event as it was."""
    workload = requests(count=150, rate=15.0)
    setup = EngineSetup(step_times=STEPS, num_blocks=200)
    whole = simulate(workload, [setup] * 2, router="least-outstanding").records
    part = simulate(workload.head(100), [setup] * 2, router="least-outstanding").records
    until = int(workload.arrival_s[100] * 1e12)
    before = part.finish_ps < until
    assert before.sum() > 50
    np.testing.assert_array_equal(whole.finish_ps[:100][before], part.finish_ps[before])


def test_clients_that_give_up_leave_nothing_behind() -> None:
    setup = EngineSetup(step_times=STEPS, num_blocks=130, limits=SchedulerLimits(max_num_seqs=4))
    workload = requests(count=200, rate=50.0)
    found = simulate(workload, [setup] * 2, timeout_s=2.0)
    assert found.timed_out > 20
    assert_conserved(workload, found)
    stays = (found.records.finish_ps - found.records.arrival_ps)[found.records.completed]
    assert stays.max() <= 2e12
    never = simulate(workload, [setup] * 2, timeout_s=1e6)
    assert_equal(never, simulate(workload, [setup] * 2))


class ToTheLast(Router):
    """A router of a user's own."""

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        return self.ready[-1]


def test_a_router_of_ones_own() -> None:
    found = simulate(requests(), [EngineSetup(step_times=STEPS, num_blocks=200)] * 2, router=ToTheLast)
    assert [replica.requests for replica in found.replicas] == [0, 120]
    assert found.router == "ToTheLast"


@settings(max_examples=examples(25))
@given(workloads, setups, frontends, st.integers(2, 4))
def test_replicas_that_take_turns_may_be_given_all_their_requests_at_once(
    workload: Workload, setup: EngineSetup, frontend: FrontendTimes | None, replicas: int
) -> None:
    """A router by its name is known to act on nothing; the same class of ones own is asked for each request."""

    def run(router: str | type[Router]) -> SimulationResult:
        return simulate(workload, [setup] * replicas, router=router, frontend=frontend)

    fed, sent = run("round-robin"), run(RoundRobin)
    assert_equal(fed, sent)
    assert fed.replicas == sent.replicas
    assert fed.to_dict() | {"router": None} == sent.to_dict() | {"router": None}


def unequal(short: PoolLimits, long: PoolLimits) -> list[EngineSetup]:
    """Two slow engines with small caches, and one that is thrice as fast."""
    slow = EngineSetup(step_times=AffineStepTimes(0.03, 3e-4), num_blocks=200, label="slow", takes=short)
    fast = EngineSetup(step_times=STEPS, num_blocks=2000, label="fast", takes=long)
    return [slow, slow, fast]


APART = ["by-prompt-length", "by-request-length", "within-ttft", "random", "least-outstanding"]


@pytest.mark.parametrize("router", APART)
@pytest.mark.parametrize("failing", [False, True])
def test_unequal_engines_do_the_same_readable_and_compiled(router: str, failing: bool) -> None:
    workload = requests(count=300, rate=12.0, seed=3)
    slow, fast = Forecast(0.4, 0.03, 3e-4, 1e-5), Forecast(0.4, 0.01, 1e-4, 1e-6)
    engines = unequal(PoolLimits(0, 150, 4, slow), PoolLimits(1, forecast=fast))
    lost = Failures(mean_time_between_failures_s=8.0, recovery_s=2.0, seed=1) if failing else None
    runs = [
        simulate(workload, engines, router=router, failures=lost, seed=5, engine_loop=loop)
        for loop in ("events", "core")
    ]
    assert_equal(*runs)
    assert [each.label for each in runs[0].replicas[:3]] == ["slow", "slow", "fast"]
    assert [each.requests for each in runs[0].replicas] == [each.requests for each in runs[1].replicas]
    assert min(each.requests for each in runs[0].replicas[:3]) > 0


@pytest.mark.parametrize("limit", [20, 100, 400])
def test_pools_apart_by_length_are_deployments_of_their_own(limit: int) -> None:
    """A router by length thins the traffic and no pool acts on another: together they do what each does alone."""
    workload = requests(count=300, rate=12.0, seed=4)
    slow, _, fast = unequal(PoolLimits(0, limit), PoolLimits(1))
    together = simulate(workload, [slow, slow, fast], router="by-prompt-length")
    short = workload.prompt_tokens <= limit
    for rows, pool in ((np.flatnonzero(short), [slow, slow]), (np.flatnonzero(~short), [fast])):
        apart = simulate(workload.select(rows), pool, router="least-outstanding")
        for column in COLUMNS:
            found = getattr(together.records, column)[rows]
            np.testing.assert_array_equal(found, getattr(apart.records, column), column)


def test_without_limits_pools_are_one() -> None:
    workload = requests(count=200, rate=20.0, seed=6)
    engine = EngineSetup(step_times=STEPS, num_blocks=300)
    for takes in (PoolLimits(), PoolLimits(0, 10**9)):
        assert_equal(
            simulate(workload, [replace(engine, takes=takes)] * 3, router="by-prompt-length"),
            simulate(workload, [engine] * 3, router="least-outstanding"),
        )


def test_chance_over_equal_replicas_is_as_many_queues_of_their_own() -> None:
    """Thinning at random keeps arrivals Poisson: k queues of rate/k, each an M/M/1 with its wait."""
    wait, half = waits_of(2, 0.5, "random")
    assert half < 0.2 * wait
    assert abs(wait - erlang_c_wait(0.5, 1)) < half


@pytest.mark.parametrize("loop", LOOPS)
def test_a_closed_loop_goes_on_after_a_prompt_that_the_engine_rejects(loop: str) -> None:
    """Prompts of 200 tokens are rejected once they are tokenized, because they exceed max_model_len."""
    ones = np.ones(4, dtype=np.int64)
    workload = Workload(
        arrival_s=0.0 * ones, prompt_tokens=[200, 50, 200, 50], output_tokens=5 * ones, concurrency=1
    )
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 1e-4), num_blocks=100, limits=SchedulerLimits(max_model_len=100)
    )
    front = FrontendTimes(request_s=0.001)
    dispatch = {"router": "round-robin", "outstanding_limit": 1}
    found = simulate(workload, [setup], frontend=front, engine_loop=loop, **dispatch)
    assert found.status == "complete"
    assert found.rejected == 2
    assert found.records.completed.tolist() == [False, True, False, True]


def test_a_full_replica_that_drains_takes_no_more_requests() -> None:
    workload = requests(20, rate=100.0)
    drained_ps = int(workload.arrival_s[3] * PS_PER_S)  # both replicas have one request
    setups = [EngineSetup(step_times=STEPS, num_blocks=4000)] * 2
    dispatch = Dispatch(router="round-robin", outstanding_limit=1)
    cluster = Cluster(workload, setups, dispatch, Recording())
    for setup in setups:
        cluster.add(setup)

    def drain() -> Any:
        yield cluster.env.timeout(drained_ps)
        assert cluster.members[0].paused
        cluster.drain(0, drained_ps, "scaled down")

    cluster.env.process(drain())
    cluster.run()
    found = cluster.result()
    assert found.records.completed.all()
    of_first = found.records.finish_ps[np.array(cluster.replica_of) == 0]
    assert cluster.members[0].until_ps == of_first.max()
    assert (found.records.first_scheduled_ps[np.array(cluster.replica_of) == 0] < drained_ps).all()


def test_adapters_without_slots_are_refused() -> None:
    workload = Workload(arrival_s=[0.0], prompt_tokens=[10], output_tokens=[2], adapter=[1])
    with pytest.raises(InvalidInput, match="has no adapter slots"):
        simulate(workload, [EngineSetup(step_times=STEPS, num_blocks=100)] * 2, router="round-robin")
