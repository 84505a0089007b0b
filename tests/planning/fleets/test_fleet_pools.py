"""One pool of a fleet: planned once, from the GPUs of its place, never for less than the least there is."""

from __future__ import annotations

from typing import Any

import pytest
from quick_fleets import MODEL, PRICES, SLO, SPACE, TRAFFIC

from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import Cost, Traffic
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.fleets.fleet_pools import PoolPlanner, Span, name_of
from capacity.planning.fleets.fleet_space import Split
from capacity.planning.search.plan_request import PlanRequest
from capacity.planning.search.snapshot import Snapshot
from capacity.planning.space import Search
from capacity.workload import parse_slos

SHORT, MIDDLE, LONG = Span(None, 400), Span(400, 1500), Span(1500, None)


def pools(ways: dict[str, Any] | None = None, *, progress: Any = None, **search: Any) -> PoolPlanner:
    space = Search.model_validate(SPACE | {"serving": ("aggregated",), "alternatives": False} | search)
    asked = PlanRequest.build(
        MODEL,
        space,
        Traffic(**TRAFFIC | {"num_prompts": 60}),
        Cost(price=PRICES),
        slo=SLO,
        workload=None,
        profiles=None,
        download=False,
    )
    return PoolPlanner(asked=asked, ways=Split.model_validate(ways or {}), progress=progress)


def test_a_pool_is_planned_once_from_the_gpus_of_its_place() -> None:
    seen: list[Snapshot] = []
    made = pools({"short_gpus": "l4", "long_gpus": "l40s"}, gpus="h100", progress=seen.append)
    goal = Goal(slos=parse_slos("ttft:p90:9s"))
    for span, gpu in ((SHORT, "l4-24gb"), (MIDDLE, "h100-sxm-80gb"), (LONG, "l40s-48gb")):
        side = made.side(span, goal)
        assert side.pool is not None
        assert (side.pool.pool.gpu, side.pool.up_to_tokens) == (gpu, span.up_to)
        assert side.pool.label == name_of(span)
        assert side.objective == side.pool.usd_per_hour >= made.lowest_cost()
        told = len(seen)
        assert made.side(span, goal) is side
        assert len(seen) == told, "nothing is simulated again"
    assert all(side.proved for side in made.sides)
    assert "not reached" not in {side.outcome for side in made.sides}
    assert sum(made.share(span) for span in (SHORT, MIDDLE, LONG)) == pytest.approx(1.0)
    stages = [snapshot.stage for snapshot in seen]
    assert "middle requests, split at 400 and 1,500 tokens" in stages


@pytest.mark.parametrize(
    ("ways", "objective", "least"),
    [
        ({}, "cost", 0.8),
        ({"spare_replicas": 2}, "cost", 2.4),
        ({"spare_replicas": 2}, "gpus", 3.0),
        ({"long_gpus": "l40s"}, "gpus", 1.0),
    ],
)
def test_the_least_is_one_gpu_of_the_cheapest_and_its_reserve(
    ways: dict[str, Any], objective: str, least: float
) -> None:
    assert pools(ways, objective=objective).lowest_cost() == pytest.approx(least)


def test_without_an_answer_it_says_whose_requests_and_why() -> None:
    made = pools()
    side = made.side(LONG, Goal(slos=parse_slos("ttft:p95:1ms")))
    assert (side.outcome, side.pool, side.objective) == ("no answer", None, float("inf"))
    assert side.reason is not None
    assert side.reason.startswith("long requests: ttft:p95:1ms")
    nobody = made.side(Span(10**8, None), made.asked.goal)
    assert nobody.reason == "the pool has no requests in some samples of the traffic"


def test_what_holds_no_engine_is_raised_for_all_requests_alone() -> None:
    made = pools({"short_gpus": "t4"}, gpus="t4", objective="gpus")
    with pytest.raises(DoesNotFit):
        made.side(Span(), made.asked.goal)
    assert "no engine in the search space can run this model" in (
        made.side(SHORT, made.asked.goal).reason or ""
    )


def test_without_time_a_pool_is_not_reached() -> None:
    made = pools(time_limit_s=0.5)
    made.started_s -= 1.0
    side = made.side(SHORT, made.asked.goal)
    assert (side.outcome, side.proved) == ("not reached", False)
    assert "not reached" in {side.outcome for side in made.sides}
    assert not all(side.proved for side in made.sides)


@pytest.mark.parametrize(
    ("ways", "why"),
    [
        ({"availability": 0.99}, "--availability needs --mtbf and --recovery"),
        ({"availability": 0.99, "mean_time_between_failures_s": 5.0}, "--mtbf needs --recovery"),
    ],
)
def test_an_availability_needs_to_know_how_often_and_how_long(ways: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        _ = Split.model_validate(ways).replica_availability
