"""Samples of the load, counters and progress of fleets and cascades, against what the records of requests say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_runs import requests, talks

from capacity.deployment.routing import PoolLimits, Prompt, Router
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.escalation import Escalation
from capacity.simulator.fleet import Autoscaling, Failures
from capacity.simulator.metrics import MISSING
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import PS_PER_S, AffineStepTimes
from capacity.workload import Workload

SMALL = EngineSetup(
    step_times=AffineStepTimes(0.004, 4e-5),
    num_blocks=2000,
    limits=SchedulerLimits(max_num_seqs=8),
    label="small",
)
LARGE = replace(SMALL, step_times=AffineStepTimes(0.02, 2e-4), label="large", takes=PoolLimits(1))
INTERVAL_S = 0.0437  # no event is at a multiple of it

FLEETS: dict[str, dict[str, Any]] = {
    "in turn": {"router": "round-robin"},
    "patient clients": {"router": "round-robin", "timeout_s": 1000.0},
    "replicas": {"router": "least-outstanding"},
    "held at the router": {"router": "least-outstanding", "outstanding_limit": 2},
    "failures": {
        "router": "round-robin",
        "failures": Failures(mean_time_between_failures_s=2.0, recovery_s=0.5),
    },
    "scaling": {"scaling": Autoscaling(max_replicas=5, target_requests=3, startup_s=0.3, interval_s=0.2)},
}
CASCADES: dict[str, Escalation] = {
    "by answer": Escalation(rates=(0.5,), judge_s=0.2),
    "by prompt": Escalation(rates=(0.5,), judge_s=0.2, by_answer=False),
    "with a cache": Escalation(rates=(0.5,), judge_s=0.1, cache_hit_rate=0.4, lookup_s=0.3),
}


def outstanding_at(found: SimulationResult, at_s: float) -> int:
    """Count the requests whose clients wait at this time."""
    at_ps = round(at_s * PS_PER_S)
    return int(((found.records.arrival_ps < at_ps) & (found.records.finish_ps >= at_ps)).sum())


def assert_samples(found: SimulationResult) -> None:
    """Each sample has the outstanding requests; the first is at 0 and the last before the last answer."""
    assert found.status == "complete"
    assert found.records.completed.all()
    times_s = [sample.time_s for sample in found.load]
    assert times_s == pytest.approx([number * INTERVAL_S for number in range(len(times_s))])
    assert [sample.outstanding for sample in found.load] == [outstanding_at(found, at_s) for at_s in times_s]
    last_s = found.records.finish_ps.max() / PS_PER_S
    assert last_s - INTERVAL_S <= times_s[-1] <= last_s
    assert [sample.time_s for sample in found.series] == times_s


def workloads(name: str) -> Workload:
    if name == "far apart":
        return replace(requests(3), arrival_s=np.array([0.0, 4.0, 9.0]))
    return talks() if name == "talks" else requests(60, rate=15.0)


@pytest.mark.parametrize("loop", ["core", "events"])
@pytest.mark.parametrize("workload", ["requests", "talks", "far apart"])
@pytest.mark.parametrize("fleet", FLEETS)
def test_samples_of_a_fleet_count_the_outstanding_requests(fleet: str, workload: str, loop: str) -> None:
    found = simulate(
        workloads(workload), [SMALL] * 2, sample_interval_s=INTERVAL_S, engine_loop=loop, **FLEETS[fleet]
    )
    assert_samples(found)
    for sample, series in zip(found.load, found.series, strict=True):
        assert sample.outstanding >= series.running
        alive = [each for each in found.replicas if each.from_s <= sample.time_s]
        alive = [each for each in alive if each.until_s is None or each.until_s >= sample.time_s]
        assert sample.replicas <= len(alive)


@pytest.mark.parametrize("loop", ["core", "events"])
@pytest.mark.parametrize("workload", ["requests", "talks", "far apart"])
@pytest.mark.parametrize("cascade", CASCADES)
def test_samples_of_a_cascade_count_requests_between_its_pools(
    cascade: str, workload: str, loop: str
) -> None:
    """A request is outstanding while it is looked up, judged or sent on."""
    found = simulate(
        workloads(workload),
        [SMALL, LARGE],
        cascade=CASCADES[cascade],
        sample_interval_s=INTERVAL_S,
        engine_loop=loop,
    )
    assert_samples(found)


@pytest.mark.parametrize("cascade", CASCADES)
def test_progress_of_a_cascade_ends_with_all_answers_of_its_engines(cascade: str) -> None:
    told: list[tuple[int, int]] = []
    workload, route = requests(60), CASCADES[cascade]
    simulate(workload, [SMALL, LARGE], cascade=route, progress=lambda done, total: told.append((done, total)))
    final = route.final_pools(60, 0).tolist()
    answers = sum(pool + 1 for pool in final) if route.by_answer else 60
    assert told[-1] == (answers, answers)
    assert {total for _, total in told} == {answers}


@pytest.mark.parametrize("cascade", CASCADES)
def test_a_cascade_records_when_each_answer_was_made_and_sent_on(cascade: str) -> None:
    """With one request at a time, every time is a sum: lookup, decision, small pool, judge, large pool."""
    route = CASCADES[cascade]
    workload = replace(requests(30), arrival_s=np.arange(30) * 100.0)
    found = simulate(workload, [SMALL, LARGE], cascade=route)
    pools = [simulate(workload, setup).records for setup in (SMALL, LARGE)]
    lookup, judge = round(route.lookup_s * PS_PER_S), round(route.judge_s * PS_PER_S)
    assert found.cascade is not None
    use, records = found.cascade, found.records
    final = route.final_pools(30, 0)
    np.testing.assert_array_equal(use.cached, final < 0)
    assert use.answered == (int((final == 0).sum()), int((final == 1).sum()))
    assert (use.from_cache, use.judge_s) == (int((final < 0).sum()), route.judge_s)
    discarded = final == 1 if route.by_answer else np.zeros(30, dtype=bool)
    assert use.unseen_answers == discarded.sum()
    assert use.unseen_tokens == workload.output_tokens[discarded].sum()
    for request, pool in enumerate(final):
        arrival = int(records.arrival_ps[request])
        spent = [int(each.finish_ps[request] - each.arrival_ps[request]) for each in pools]
        first = [int(each.first_token_ps[request] - each.arrival_ps[request]) for each in pools]
        made, sent_on, wait = MISSING, MISSING, lookup
        if not route.by_answer:
            wait += judge
        if pool >= 0 and wait:
            sent_on = arrival + wait
        if pool < 0:
            end = arrival + lookup
        elif not route.by_answer:
            end = arrival + wait + spent[pool]
        elif pool == 0:
            made, end = arrival + lookup + first[0], arrival + lookup + spent[0] + judge
        else:
            sent_on = arrival + lookup + spent[0] + judge
            end = sent_on + spent[1]
        assert (int(use.made_ps[request]), int(use.sent_on_ps[request])) == (made, sent_on)
        assert int(records.finish_ps[request]) == end
        if pool < 0:
            assert (records.first_token_ps[request], records.first_scheduled_ps[request]) == (end, arrival)
            assert records.output_tokens[request] == workload.output_tokens[request]


@pytest.mark.parametrize("workload", ["requests", "talks", "far apart"])
def test_samples_of_an_engine_alone_are_those_of_one_replica(workload: str) -> None:
    alone, fleet = (
        simulate(workloads(workload), setups, sample_interval_s=INTERVAL_S) for setups in (SMALL, [SMALL])
    )
    assert alone.series == fleet.series
    assert alone.load == ()


ONE = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([10]), output_tokens=np.array([100]))


class FirstFails(Failures):
    """The first replica fails after 0.2 s, its replacements do not."""

    def lifetime_s(self, number: int) -> float:
        return 0.2 if number == 0 else 1000.0


def test_samples_go_on_while_a_request_waits_for_a_replacement() -> None:
    lost = FirstFails(mean_time_between_failures_s=1.0, recovery_s=0.9)
    found = simulate(ONE, [SMALL], failures=lost, sample_interval_s=INTERVAL_S)
    assert_samples(found)
    waits = [sample.time_s for sample, series in zip(found.load, found.series, strict=True) if series.waiting]
    assert waits == [sample.time_s for sample in found.load if 0.2 < sample.time_s < 1.1]
    assert [sample.replicas for sample in found.load if sample.time_s in waits] == [0] * len(waits)


def test_samples_end_if_the_held_requests_can_never_run() -> None:
    """The first request needs more blocks than there are, and keeps the only place."""
    workload = replace(requests(3), prompt_tokens=np.full(3, 500), output_tokens=np.full(3, 5))
    found = simulate(
        workload, [replace(SMALL, num_blocks=10)], outstanding_limit=1, sample_interval_s=INTERVAL_S
    )
    assert found.status == "stalled"
    assert 0 < len(found.load) < 100


EVENTS = 20
ENDING: dict[str, dict[str, Any]] = {
    "answered": {},
    "refused": {"queue_limit": 0},
    "accepted by the judge": {"cascade": Escalation(rates=(0.0,), judge_s=0.01)},
    "answered by the cache": {"cascade": Escalation(rates=(0.0,), cache_hit_rate=1.0, lookup_s=0.01)},
}


@pytest.mark.parametrize("how", ENDING)
def test_a_run_goes_on_as_long_as_requests_end(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The autoscaler decides 10 times between two requests, and may decide 20 times until one ends."""
    monkeypatch.setattr("capacity.simulator.fleet.MAX_SCALING_DECISIONS", EVENTS)
    workload = replace(requests(20), arrival_s=np.arange(20.0), output_tokens=np.full(20, 5))
    scaling = Autoscaling(max_replicas=2, target_requests=100, startup_s=0.1, interval_s=0.1)
    pools = [SMALL, LARGE] if "cascade" in ENDING[how] else [SMALL]
    assert simulate(workload, pools, scaling=scaling, **ENDING[how]).status == "complete"
    seldom = replace(workload, arrival_s=np.arange(20) * 3.0)
    found = simulate(seldom, pools, scaling=scaling, **ENDING[how])
    assert found.status == "stalled"
    assert "the autoscaler decided 20 times" in str(found.reason)


@pytest.mark.parametrize(
    ("output_tokens", "reason"),
    [(5, "idle replicas were lost"), (1000, "replicas were lost with their requests")],
)
def test_replicas_that_are_lost_without_an_answer_end_the_run(
    output_tokens: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas live for a second: too short for 1,000 tokens, and 100 times shorter than the gap of two requests."""
    for limit in ("MAX_IDLE_LOSSES", "MAX_LOSSES_WITH_REQUESTS"):
        monkeypatch.setattr(f"capacity.simulator.fleet.{limit}", EVENTS)
    workload = replace(requests(2), arrival_s=np.array([0.0, 100.0]), output_tokens=np.full(2, output_tokens))

    class EverySecond(Failures):
        def lifetime_s(self, number: int) -> float:  # noqa: ARG002
            return 1.0

    found = simulate(
        workload, [SMALL], failures=EverySecond(mean_time_between_failures_s=1.0, recovery_s=0.0)
    )
    assert found.status == "stalled"
    assert f"{reason} 20 times" in str(found.reason)


def test_the_router_knows_the_arrival_of_each_request() -> None:
    seen: list[float] = []

    class Clocked(Router):
        def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
            seen.append(self.now_s)
            return self.ready[0]

    workload = replace(requests(10), arrival_s=np.arange(10) / 8)
    simulate(workload, [SMALL], router=Clocked)
    assert seen == workload.arrival_s.tolist()


@pytest.mark.parametrize("loop", ["core", "events"])
@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
def test_engines_with_a_full_queue_refuse_requests(router: str, loop: str) -> None:
    """Ten requests at once: each of two engines runs one and lets two wait."""
    limits = SchedulerLimits(max_num_seqs=1)
    setup = replace(SMALL, policy="slots", policy_options={"max_waiting": 2}, limits=limits)
    workload = replace(requests(10), arrival_s=np.zeros(10))
    found = simulate(workload, [setup] * 2, router=router, engine_loop=loop)
    assert (found.rejected, int(found.records.completed.sum())) == (4, 6)


@pytest.mark.parametrize("loop", ["core", "events"])
def test_a_draining_replica_ends_with_its_last_request(loop: str) -> None:
    """The autoscaler decides every 0.1 s; a replica that it stops while requests run there ends with the last one."""
    scaling = Autoscaling(
        max_replicas=6, target_requests=2, startup_s=0.01, interval_s=0.1, scale_down_delay_s=0.0
    )
    workload = replace(requests(41, rate=40.0), output_tokens=np.arange(41) * 9 % 200 + 1)
    workload = replace(workload, arrival_s=np.append(workload.arrival_s[:-1], 20.0))
    found = simulate(workload, [SMALL], router="least-outstanding", scaling=scaling, engine_loop=loop)
    ends_s = []
    for number, replica in enumerate(found.replicas):
        own_s = found.records.finish_ps[found.replica_of == number] / PS_PER_S
        if replica.until_s is not None and len(own_s):
            assert replica.until_s >= own_s.max()
            ends_s.append(replica.until_s == own_s.max())
    assert any(ends_s)
