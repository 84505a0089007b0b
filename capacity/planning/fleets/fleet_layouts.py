"""Layouts of a fleet: one pool for all requests, two pools with a threshold, or more pools with more thresholds.

Pools do not affect each other, so the cost of each depends only on its requests. The cheapest combination of three or
more pools is exact: for every last threshold and every division of the permitted misses, dynamic programming finds the
lower thresholds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.fleets.fleet_pools import (
    LONG_SHARES,
    NOT_EVALUATED,
    PoolPlan,
    PoolPlanner,
    Span,
    goals_of_pools,
    spans_of,
)
from capacity.planning.fleets.fleet_records import Layout, Outcome, best_of

EQUAL_COST_TOLERANCE = 1e-9  # relative difference within which costs are equal

CostOf = Callable[[int, int], float]  # cost of the part between two places; infinite if impossible


@dataclass(kw_only=True)
class Layouts:
    """Layouts (divisions of the traffic into pools) tried so far; `sides`: plans of their pools, by thresholds."""

    pools: PoolPlanner
    thresholds: Sequence[int]
    tried: list[Layout] = field(default_factory=list)
    sides: dict[tuple[int, ...], Sequence[PoolPlan]] = field(default_factory=dict)

    def try_layouts(self, most_pools: int) -> None:
        """Plan one pool, two pools with every threshold, and the best layout of each count up to `most_pools`."""
        self.pools.runs_left = self._runs(most_pools)
        for threshold in (None, *self.thresholds) if most_pools > 1 else (None,):
            # in order, so that layouts that cannot be cheaper than earlier ones are skipped
            self.tried.append(self._layout_at(threshold))
        for count in range(3, min(most_pools, len(self.thresholds) + 1) + 1):
            self.tried.append(self._layout_of_count(count))

    @property
    def best(self) -> Layout | None:
        return best_of(self.tried)

    def reject(self, layout: Layout, reason: str) -> None:
        """Reject a layout, then plan the layouts of two pools that were skipped because they could not be cheaper."""
        self.tried[self.tried.index(layout)] = replace(
            layout, outcome="no answer", reason=reason, objective=None
        )
        for place, other in enumerate(self.tried):
            if other.outcome == "cannot be cheaper" and other.num_pools == 2:
                self.tried[place] = self._layout_at(other.threshold_tokens)

    def _runs(self, most_pools: int) -> int:
        """Return the maximum number of plans: one per router for a single pool, one per length range and SLO goal."""
        count = len(self.thresholds)
        each = 1 if self.pools.ways.slo_of == "pool" else 1 + len(LONG_SHARES)
        between = math.comb(count, 2) if most_pools > 2 else 0
        return 2 + each * (2 * count * (most_pools > 1) + 2 * between)

    def _layout_at(self, threshold: int | None) -> Layout:
        """Return the cheapest layout at a threshold (None: one pool) over all divisions of the permitted misses."""
        first: Layout | None = None
        spans: tuple[Span, ...] = (Span(),)
        if threshold is not None:
            spans = spans_of(self.pools.asked.workloads, threshold, self.pools.ways.split_by)
        for goals in self._goals(spans[-1]) if len(spans) > 1 else [(self.pools.asked.goal,)]:
            layout, sides = self._layout_for_goals(threshold, spans, goals)
            if first is None or best_of([first, layout]) is layout:
                first = layout
                self.sides[layout.thresholds_tokens] = sides
            if layout.outcome == "not reached":
                break
        assert first is not None
        return first

    def _layout_for_goals(
        self, threshold: int | None, spans: Sequence[Span], goals: Sequence[Goal]
    ) -> tuple[Layout, Sequence[PoolPlan]]:
        """Return the layout of the cheapest pools that meet these goals, and the plans of its pools."""
        thresholds = () if threshold is None else (threshold,)
        leader = self.best
        sides: list[PoolPlan] = []
        for span, goal in zip(spans, goals, strict=True):
            side = self.pools.side(span, goal)
            sides.append(side)
            outcome, reason = side.outcome, side.reason
            spent = sum(each.objective for each in sides)
            costly = leader is not None and spent >= (leader.objective or 0.0)
            if side.pool is not None and costly and len(sides) < len(spans):
                outcome = "cannot be cheaper"
                reason = f"the pool for {side.pool.label} requests alone costs as much as the best layout"
            if outcome != "planned":
                return replace(
                    _layout(thresholds, sides), outcome=outcome, reason=reason, pools=(), objective=None
                ), sides
        return _layout(thresholds, sides), sides

    def _goals(self, longest: Span) -> Sequence[tuple[Goal, Goal]]:
        """Return pairs of goals to try: for every pool of shorter requests, and for the pool of the longest
        requests."""
        goal = self.pools.asked.goal
        if self.pools.ways.slo_of == "pool":
            return [(goal, goal)]
        share = self.pools.share(longest)
        return goals_of_pools(goal, share) if share else []

    def _layout_of_count(self, count: int) -> Layout:
        """Return the cheapest layout of `count` pools; its `pools` are empty if the best so far costs no more."""
        leader, sides = self.best, self._cheapest_of(count)
        thresholds = tuple(side.span.up_to for side in sides if side.span.up_to is not None)
        proved = all(side.proved for side in self.pools.sides)
        if sides:
            self.sides[thresholds] = sides
            return replace(_layout(thresholds, sides), proved=proved)
        outcome: Outcome = "cannot be cheaper"
        reason = f"with any thresholds, {count} pools cost at least as much as the best layout"
        if any(side.outcome == "not reached" for side in self.pools.sides):
            outcome, reason, proved = "not reached", NOT_EVALUATED, False
        elif leader is None:
            outcome, reason = "no answer", "nothing meets the SLO"
        return Layout(thresholds_tokens=(), num_pools=count, outcome=outcome, reason=reason, proved=proved)

    def _cheapest_of(self, count: int) -> Sequence[PoolPlan]:
        """Return the plans of the cheapest `count` pools; empty if the best layout so far costs no more."""
        leader, least = self.best, self.pools.lowest_cost()
        limit = math.inf if leader is None else leader.objective or 0.0
        found: Sequence[PoolPlan] = ()
        for last in range(count - 2, len(self.thresholds)):
            longest, places = Span(self.thresholds[last]), self.thresholds[: last + 1]
            for goal, goal_of_longest in self._goals(longest):
                if least * count >= limit:
                    return found
                tail = self.pools.side(longest, goal_of_longest)
                if tail.pool is None:
                    continue
                below = limit * (1 - EQUAL_COST_TOLERANCE) - tail.objective
                before = self._cheapest_before(places, count - 1, goal, least=least, below=below)
                if before:
                    found = [*before, tail]
                    limit = sum(side.objective for side in found)
        return found

    def _cheapest_before(
        self, places: Sequence[int], count: int, goal: Goal, *, least: float, below: float
    ) -> Sequence[PoolPlan]:
        """Return the plans of the cheapest `count` pools for request lengths up to the last of `places`; empty if
        their total cost is not below `below`."""
        limits = (None, *places)

        def side(start: int, end: int) -> PoolPlan:
            return self.pools.side(Span(limits[start], limits[end]), goal)

        cheapest = cheapest_partition(
            len(places), count, lambda start, end: side(start, end).objective, floor=least, below=below
        )
        return [] if cheapest is None else [side(*each) for each in pairwise((0, *cheapest.ends))]


def _layout(thresholds: tuple[int, ...], sides: Sequence[PoolPlan]) -> Layout:
    pools = [side.pool for side in sides if side.pool is not None]
    middle = [pool for pool in pools if pool.label == "middle"]
    if len(middle) > 1:
        pools[1:-1] = [replace(pool, label=f"middle {place}") for place, pool in enumerate(middle, 1)]
    return Layout(
        thresholds_tokens=thresholds,
        num_pools=len(thresholds) + 1,
        outcome="planned",
        pools=tuple(pools),
        objective=sum(side.objective for side in sides),
        proved=all(side.proved for side in sides),
    )


class Partition(NamedTuple):
    """Division of the positions 0 to n into consecutive parts; `ends` are the last positions of the parts."""

    cost: float
    ends: tuple[int, ...]


def cheapest_partition(
    places: int, parts: int, cost_of: CostOf, *, floor: float = 0.0, below: float = math.inf
) -> Partition | None:
    """Return the cheapest division of the positions 0 to `places` into `parts` parts; None if none is below `below`.

    `cost_of(start, end)` is the cost of one part; it does not depend on the other parts, so the cheapest division up to
    a position remains optimal (dynamic programming over positions). No part costs less than `floor`, which avoids
    computing costs that cannot improve the result. Of equal costs, the division with the earliest cuts is returned.
    """
    reached = {0: Partition(0.0, ())}
    for left in range(parts - 1, -1, -1):
        last = left == 0
        further: dict[int, Partition] = {}
        for start, before in sorted(reached.items(), key=lambda item: (item[1].cost, item[0])):
            for end in (places,) if last else range(start + 1, places - left + 1):
                rival = further.get(end)
                limit = min(below - floor * left, math.inf if rival is None else rival.cost)
                if start >= end or before.cost + floor >= limit:
                    continue
                cost = before.cost + cost_of(start, end)
                if cost < limit:
                    further[end] = Partition(cost, (*before.ends, end))
        reached = further
    return reached.get(places)
