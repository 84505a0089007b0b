"""The cheapest way to cut a line into a given number of parts, each of which has a cost that is dear to find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

CostOf = Callable[[int, int], float]  # of the part from one place to another; infinite where it has none


class Partition(NamedTuple):
    """`ends` are the places at which its parts end, the last one that of the line."""

    cost: float
    ends: tuple[int, ...]


def cheapest_partition(
    places: int, parts: int, cost_of: CostOf, *, floor: float = 0.0, below: float = math.inf
) -> Partition | None:
    """The cheapest of all ways to cut 0 to `places` into so many parts; None where none costs less than `below`.

    A part's cost is nobody else's business, so the cheapest way to a place does, whatever follows: a dynamic programme
    over places. No part costs less than `floor`, so that costs which cannot matter are not asked for. Of equals that
    which cuts first.
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
