"""Which pools a fleet has: of costs drawn by chance, no choice of thresholds is cheaper than what is found."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pytest
from long_forms import mostly_slow
from planned_pools import fleet_pool

from capacity.deployment import Cost
from capacity.model import load_model
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.fleets.fleet_layouts import Layouts
from capacity.planning.fleets.fleet_pools import PoolPlan, PoolPlanner, Span, goals_of_pools, name_of
from capacity.planning.fleets.fleet_space import Split
from capacity.planning.search.plan_request import PlanRequest
from capacity.planning.space import Search
from capacity.workload import Workload, parse_slos

GOAL = Goal(slos=parse_slos("ttft:p90:1s"))
LENGTHS = np.arange(1, 101)


@dataclass(kw_only=True)
class DrawnPools(PoolPlanner):
    """Pools whose costs are drawn, of one in six none; what is owed less strictly may be dearer all the same."""

    seed: int = 0

    def side(self, span: Span, goal: Goal) -> PoolPlan:
        rng = random.Random(f"{self.seed} {span} {goal}")
        side = PoolPlan(span=span, part=(), goal=goal, outcome="no answer", reason="none")
        if rng.random() > 1 / 6:
            usd = float(rng.randint(3, 25) if span != Span() else 30)
            pool = fleet_pool(label=name_of(span), up_to_tokens=span.up_to, usd_per_hour=usd)
            side = PoolPlan(span=span, part=(), goal=goal, outcome="planned", pool=pool, objective=usd)
        return side

    def lowest_cost(self) -> float:
        return 3.0


def drawn(seed: int, slo_of: str) -> DrawnPools:
    workload = Workload(
        arrival_s=np.arange(100.0), prompt_tokens=LENGTHS, output_tokens=np.ones(100, dtype=np.int64)
    )
    asked = PlanRequest(
        model=load_model("llama-3.2-1b"),
        workloads=(workload,),
        goal=GOAL,
        search=Search(gpus=("h100",)),
        cost=Cost(price="1"),
        profiles=None,
    )
    return DrawnPools(asked=asked, ways=Split.model_validate({"slo_of": slo_of}), seed=seed)


def every_layout(pools: DrawnPools, thresholds: tuple[int, ...], most: int) -> Iterator[float]:
    """The cost of each choice of up to so many pools, in each way to share out what may be missed."""
    yield pools.side(Span(), GOAL).objective
    for count in range(1, most):
        for cuts in combinations(thresholds, count):
            *before, longest = [Span(*each) for each in pairwise((None, *cuts, None))]
            share = float((longest.above < LENGTHS).mean())
            ways = [(GOAL, GOAL)] if pools.ways.slo_of == "pool" else goals_of_pools(GOAL, share)
            for goal, goal_of_longest in ways:
                costs = [pools.side(span, goal).objective for span in before]
                yield sum(costs) + pools.side(longest, goal_of_longest).objective


@pytest.mark.parametrize("slo_of", ["fleet", "pool"])
@pytest.mark.parametrize("seed", mostly_slow(range(12), range(4)))
def test_no_choice_of_thresholds_is_cheaper(seed: int, slo_of: str) -> None:
    thresholds = (20, 40, 60, 80, 95)
    found = []
    for most in (1, 2, 3, 4):
        layouts = Layouts(pools=drawn(seed, slo_of), thresholds=thresholds)
        layouts.try_layouts(most)
        best = min(every_layout(drawn(seed, slo_of), thresholds, most))
        found.append(math.inf if layouts.best is None else layouts.best.objective)
        assert found[-1] == best
        if layouts.best is not None and layouts.best.pools:
            sides = layouts.sides[layouts.best.thresholds_tokens]
            assert sum(side.objective for side in sides) == best
            assert [pool.up_to_tokens for pool in layouts.best.pools] == [
                *layouts.best.thresholds_tokens,
                None,
            ]
    assert found == sorted(found, reverse=True), "one more pool is never dearer"


def test_each_number_of_pools_is_a_row_and_says_what_it_buys() -> None:
    layouts = Layouts(pools=drawn(3, "pool"), thresholds=(20, 60, 80))
    layouts.try_layouts(8)
    assert [layout.num_pools for layout in layouts.tried] == [1, 2, 2, 2, 3, 4]
    more = layouts.tried[4:]
    assert {layout.outcome for layout in more} <= {"planned", "cannot be cheaper"}
    assert any(layout.outcome == "cannot be cheaper" for layout in more)
    assert all(layout.reason and not layout.pools for layout in more if layout.outcome != "planned")


def test_what_is_turned_down_makes_room_for_what_it_seemed_cheaper_than() -> None:
    """Seeds on which a threshold was left aside for the best: it is looked at again once that will not do."""
    seen = 0
    for seed in range(100):
        layouts = Layouts(pools=drawn(seed, "pool"), thresholds=(20, 40, 60, 80, 95))
        layouts.try_layouts(2)
        best, aside = layouts.best, [each for each in layouts.tried if each.outcome == "cannot be cheaper"]
        if best is None or best.num_pools == 1 or not aside:
            continue
        layouts.reject(best, "it misses")
        rest = min(every_two(seed, without=best.threshold_tokens))
        assert math.isinf(rest) if layouts.best is None else layouts.best.objective == rest
        seen += 1
    assert seen > 3


def every_two(seed: int, *, without: int | None) -> Iterator[float]:
    pools = drawn(seed, "pool")
    yield pools.side(Span(), GOAL).objective
    for threshold in (20, 40, 60, 80, 95):
        if threshold != without:
            yield sum(
                pools.side(span, GOAL).objective for span in (Span(None, threshold), Span(threshold, None))
            )


class LikeAlike(DrawnPools):
    """Pools that are the cheaper the more alike their requests are."""

    def side(self, span: Span, goal: Goal) -> PoolPlan:
        width = (span.up_to or 100) - (span.above or 0)
        pool = fleet_pool(label=name_of(span), up_to_tokens=span.up_to)
        return PoolPlan(
            span=span, part=(), goal=goal, outcome="planned", pool=pool, objective=3 + width**2 / 100
        )


def test_pools_in_the_middle_have_names_of_their_own() -> None:
    asked = drawn(0, "pool")
    layouts = Layouts(pools=LikeAlike(asked=asked.asked, ways=asked.ways), thresholds=(25, 50, 75))
    for most, labels in ((3, ["short", "middle", "long"]), (4, ["short", "middle 1", "middle 2", "long"])):
        layouts.tried.clear()
        layouts.try_layouts(most)
        assert layouts.best is not None
        assert [pool.label for pool in layouts.best.pools] == labels
