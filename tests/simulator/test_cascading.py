"""Cascades: equal to their pools alone at both ends, to two runs one after the other between, conserving requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_runs import COLUMNS, assert_equal, requests, talks
from engine_loops import LOOPS

from capacity.base.errors import InvalidInput
from capacity.deployment.routing import PoolLimits
from capacity.simulator import EngineSetup, FrontendTimes, SimulationResult, simulate
from capacity.simulator.escalation import Escalation
from capacity.simulator.fleet import Failures
from capacity.simulator.metrics import MISSING
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.time_parts import PARTS, time_parts
from capacity.step import PS_PER_S, AffineStepTimes
from capacity.workload import Workload

LIMITS = SchedulerLimits(max_num_seqs=32, max_num_batched_tokens=512, max_model_len=2000)
SMALL = EngineSetup(step_times=AffineStepTimes(0.004, 4e-5), num_blocks=2000, limits=LIMITS, label="small")
LARGE = replace(SMALL, step_times=AffineStepTimes(0.02, 2e-4), label="large", takes=PoolLimits(1))
FRONT = FrontendTimes(request_latency_s=0.003, response_latency_s=0.001)


def cascade(workload: Workload, rate: float, replicas: int = 1, **more: Any) -> SimulationResult:
    """A small pool before a large one; keywords of the cascade among those of the simulation."""
    names = ("by_answer", "judge_s", "cache_hit_rate", "lookup_s")
    asked = Escalation(rates=(rate,), **{name: more.pop(name) for name in names if name in more})
    return simulate(workload, [SMALL] * replicas + [LARGE] * replicas, cascade=asked, **more)


def alone(workload: Workload, setup: EngineSetup, **more: Any) -> SimulationResult:
    return simulate(workload, setup, **more)


def column(found: SimulationResult, name: str) -> np.ndarray[Any, Any]:
    return np.asarray(getattr(found.records, name))


def arriving(workload: Workload, which: np.ndarray[Any, Any], at_ps: np.ndarray[Any, Any]) -> Any:
    """Those requests at other instants, and the order in which they come."""
    order = which[np.argsort(at_ps[which], kind="stable")]
    return order, Workload(
        arrival_s=at_ps[order] / PS_PER_S,
        prompt_tokens=workload.prompt_tokens[order],
        output_tokens=workload.output_tokens[order],
    )


@pytest.mark.parametrize("loop", LOOPS)
def test_at_a_rate_of_nothing_it_is_the_small_pool_alone(loop: str) -> None:
    workload = requests(60)
    found, small = cascade(workload, 0.0, engine_loop=loop), alone(workload, SMALL, engine_loop=loop)
    for name in ("arrival_ps", "first_scheduled_ps", "finish_ps", "output_tokens"):
        np.testing.assert_array_equal(column(found, name), column(small, name), name)
    # what a judge reads is shown when it is whole
    np.testing.assert_array_equal(column(found, "first_token_ps"), column(small, "finish_ps"))
    assert found.cascade is not None
    assert found.cascade.answered == (len(workload), 0)
    assert found.cascade.unseen_tokens == 0


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("rate", "setup"), [(0.0, SMALL), (1.0, LARGE)])
def test_by_prompt_each_end_is_a_pool_alone(loop: str, rate: float, setup: EngineSetup) -> None:
    workload = requests(60)
    found = cascade(workload, rate, by_answer=False, engine_loop=loop)
    for name in COLUMNS:
        np.testing.assert_array_equal(
            column(found, name), column(alone(workload, setup, engine_loop=loop), name), name
        )


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize("front", [FrontendTimes(), FRONT, replace(FRONT, output_token_s=1e-4)])
def test_between_it_is_the_small_pool_and_then_the_large_one(
    loop: str, rate: float, front: FrontendTimes
) -> None:
    """To the picosecond: who goes on arrives at the large pool as its answer has left the small one and is judged."""
    workload, judge_s = requests(60, rate=8.0), 0.25
    found = cascade(workload, rate, judge_s=judge_s, frontend=front, engine_loop=loop)
    small = alone(workload, SMALL, frontend=front, engine_loop=loop)
    on = np.flatnonzero(Escalation(rates=(rate,)).final_pools(len(workload), seed=0))
    judged_ps = column(small, "finish_ps") + round(judge_s * PS_PER_S)
    order, again = arriving(workload, on, judged_ps)
    large = alone(again, LARGE, frontend=front, engine_loop=loop)
    for name in ("first_scheduled_ps", "first_token_ps", "finish_ps"):
        np.testing.assert_array_equal(column(found, name)[order], column(large, name), name)
    stayed = np.setdiff1d(np.arange(len(workload)), on)
    np.testing.assert_array_equal(column(found, "finish_ps")[stayed], judged_ps[stayed])
    np.testing.assert_array_equal(column(found, "arrival_ps"), column(small, "arrival_ps"))
    assert found.cascade is not None
    assert found.cascade.unseen_tokens == workload.output_tokens[on].sum()
    assert found.cascade.answered == (len(stayed), len(on))


def test_alone_in_the_deployment_a_request_takes_the_sum_of_its_parts() -> None:
    """The closed form at low load: small, judge, large, one after the other, and no queue anywhere."""
    workload = replace(requests(20), arrival_s=np.arange(20) * 1000.0)
    found = cascade(workload, 1.0, judge_s=0.5)
    parts = [
        column(alone(workload, setup), "finish_ps") - column(found, "arrival_ps") for setup in (SMALL, LARGE)
    ]
    np.testing.assert_array_equal(
        column(found, "finish_ps") - column(found, "arrival_ps"), parts[0] + parts[1] + PS_PER_S // 2
    )


SURROUNDINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "patience": {"timeout_s": 1.2, "judge_s": 0.4},
    "failures": {"failures": Failures(mean_time_between_failures_s=3.0, recovery_s=0.5), "judge_s": 0.1},
    "failures that lose": {
        "failures": Failures(mean_time_between_failures_s=2.0, recovery_s=0.5, requests="fail"),
    },
    "limits": {"queue_limit": 2, "outstanding_limit": 6},
    "a cache": {"cache_hit_rate": 0.3, "lookup_s": 0.05, "timeout_s": 2.0},
    "by prompt": {"by_answer": False, "judge_s": 0.1, "timeout_s": 1.0},
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
@pytest.mark.parametrize("closed", [False, True])
def test_requests_are_conserved_and_both_engines_do_the_same(surroundings: str, closed: bool) -> None:
    """Whatever happens, each request ends once: the run itself checks that, and that no KV block is left."""
    workload = talks() if closed else requests(60, rate=30.0)
    more = SURROUNDINGS[surroundings]
    runs = [
        cascade(workload, 0.5, replicas=2, frontend=FRONT, engine_loop=loop, **more)
        for loop in ("events", "core")
    ]
    assert_equal(*runs)
    found = runs[0]
    assert found.status == "complete"
    assert found.cascade is not None
    assert runs[1].cascade is not None
    assert found.cascade.to_dict() == runs[1].cascade.to_dict()
    done = int(found.records.completed.sum())
    assert done == sum(found.cascade.answered) + found.cascade.from_cache
    assert done + found.rejected + found.timed_out + found.lost == len(workload)
    _add_up(found)


def _add_up(found: SimulationResult) -> None:
    """The parts of every request's time are its whole, and none is below nothing."""
    parts = time_parts(found.records, api_server=FRONT, cascade=found.cascade)
    done = found.records.completed
    whole = (column(found, "finish_ps") - column(found, "arrival_ps"))[done]
    np.testing.assert_array_equal(sum(parts.part_of(part) for part in PARTS), whole)
    assert all((parts.part_of(part) >= 0).all() for part in PARTS)


def test_a_closed_loop_keeps_a_place_until_the_last_answer() -> None:
    """Never more than its concurrency are between arrival and end, the judge's time included."""
    workload = replace(requests(60), arrival_s=np.zeros(60), concurrency=4)
    found = cascade(workload, 0.5, judge_s=0.3)
    begin, end = column(found, "arrival_ps"), column(found, "finish_ps")
    inside = [(int(((begin <= at) & (end > at)).sum())) for at in begin]
    assert max(inside) == 4


def test_the_cache_answers_after_its_lookup_and_no_pool_sees_the_request() -> None:
    workload = requests(rate=5.0)
    found = cascade(workload, 0.4, cache_hit_rate=0.25, lookup_s=0.05, frontend=FRONT)
    assert found.cascade is not None
    hits = found.cascade.cached
    assert hits.sum() == found.cascade.from_cache == round(0.25 * len(workload))
    waited = column(found, "finish_ps") - column(found, "arrival_ps")
    assert set(waited[hits]) == {round(0.05 * PS_PER_S)}
    assert found.replica_of is not None
    assert (found.replica_of[hits] == MISSING).all()
    assert sum(replica.requests for replica in found.replicas[:1]) == len(workload) - hits.sum()


def test_what_waits_for_one_pool_holds_up_no_other() -> None:
    """While the large pool is full, the small one goes on answering."""
    workload = requests(rate=15.0)
    found = cascade(workload, 0.5, outstanding_limit=3)
    small = cascade(workload, 0.0, outstanding_limit=3)
    stayed = np.flatnonzero(Escalation(rates=(0.5,)).final_pools(len(workload), seed=0) == 0)
    np.testing.assert_array_equal(column(found, "finish_ps")[stayed], column(small, "finish_ps")[stayed])


def test_progress_counts_the_answers_of_all_pools() -> None:
    told: list[tuple[int, int]] = []
    cascade(requests(), 0.5, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (180, 180)
    cascade(requests(), 0.5, by_answer=False, cache_hit_rate=0.25, progress=lambda *now: told.append(now))
    assert told[-1] == (90, 90)  # of 120 requests, the cache answers 30


def test_pools_and_rates_must_agree() -> None:
    with pytest.raises(InvalidInput, match="2 rates needs 3 pools"):
        simulate(requests(), [SMALL, LARGE], cascade=Escalation(rates=(0.3, 0.3)))
    with pytest.raises(InvalidInput, match="pools and the router"):
        simulate(requests(), [SMALL, LARGE], cascade=Escalation(rates=(0.3,)), router="round-robin")
