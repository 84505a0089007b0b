"""The cheapest partition: every way to cut is tried beside it; no cost is asked for that cannot matter."""

from __future__ import annotations

import math
import random
from itertools import combinations, pairwise

import pytest

from capacity.planning.fleets.fleet_layouts import Partition, cheapest_partition


def every_cut(
    places: int, parts: int, costs: dict[tuple[int, int], float]
) -> list[tuple[float, tuple[int, ...]]]:
    """The cost of each way to cut, by trying all."""
    ways = [(*cuts, places) for cuts in combinations(range(1, places), parts - 1)]
    return [(sum(costs[each] for each in pairwise((0, *ends))), ends) for ends in ways]


def drawn(places: int, seed: int) -> dict[tuple[int, int], float]:
    """Costs of all parts; of one in eight there is none."""
    rng = random.Random(seed)
    return {
        (start, end): math.inf if rng.random() < 1 / 8 else float(rng.randint(2, 30))
        for start in range(places)
        for end in range(start + 1, places + 1)
    }


@pytest.mark.parametrize("seed", range(60))
def test_no_way_to_cut_is_cheaper(seed: int) -> None:
    places = 1 + seed % 7
    costs = drawn(places, seed)
    for parts in range(1, places + 2):
        ways = every_cut(places, parts, costs)
        least = min((cost for cost, _ in ways), default=math.inf)
        for floor in (0.0, 2.0):
            for below in (math.inf, least, least + 1, least - 1):
                found = cheapest_partition(
                    places, parts, lambda start, end: costs[start, end], floor=floor, below=below
                )
                if not least < below:
                    assert found is None
                else:
                    assert found is not None
                    assert found.cost == least
                    assert (found.cost, found.ends) in ways


def test_what_cannot_matter_is_not_asked_for() -> None:
    asked: list[tuple[int, int]] = []

    def cost_of(start: int, end: int) -> float:
        asked.append((start, end))
        return 10.0 * (end - start)

    assert cheapest_partition(3, 2, cost_of, floor=5.0, below=9.0) is None
    assert asked == [], "two parts cost 10 at least"
    assert cheapest_partition(3, 2, cost_of, floor=5.0, below=31.0) == Partition(30.0, (1, 3))
    assert len(asked) == len(set(asked)) == 4
    asked.clear()
    assert cheapest_partition(3, 2, cost_of, floor=5.0, below=20.0) is None
    assert asked == [(0, 1), (0, 2), (1, 3)], "the first parts leave room for one of 5 at most"
