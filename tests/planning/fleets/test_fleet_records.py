"""The best of layouts: least objective, then fewest pools; what is unknown is said as that."""

from __future__ import annotations

import pytest
from planned_pools import fleet_pool

from capacity.planning.fleets.fleet_records import FleetPool, Layout, best_of


def layout(threshold: int | None, objective: float | None, *pools: FleetPool) -> Layout:
    return Layout(
        thresholds_tokens=() if threshold is None else (threshold,),
        num_pools=1 if threshold is None else 2,
        outcome="planned",
        reason=None,
        pools=pools,
        objective=objective,
        proved=True,
    )


def test_the_least_objective_wins_then_the_fewest_pools_then_the_lowest_threshold() -> None:
    one, two = layout(None, 5.0, fleet_pool()), layout(100, 5.0, fleet_pool(), fleet_pool())
    assert best_of([two, one]) is one
    assert best_of(
        [layout(200, 4.0, fleet_pool(), fleet_pool()), two, one, layout(100, 4.0, fleet_pool(), fleet_pool())]
    ) == layout(100, 4.0, fleet_pool(), fleet_pool())
    assert best_of([layout(None, None), two]) is two
    assert best_of([layout(None, None)]) is None


def test_a_bill_is_known_where_it_is_of_every_pool() -> None:
    both = layout(100, 7.2, fleet_pool(), fleet_pool(num_gpus=3))
    assert (both.num_gpus, both.usd_per_hour) == (4, 7.2)
    assert both.usd_per_request == pytest.approx(7.2 / 4 / 3600)
    assert layout(100, 2.0, fleet_pool(), fleet_pool(usd_per_hour=None)).usd_per_hour is None
    assert layout(None, 1.0, fleet_pool(requests_per_s=float("inf"))).usd_per_request is None
