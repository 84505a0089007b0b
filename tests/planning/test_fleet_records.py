"""The best of layouts: least objective, then fewest pools; what is unknown is said as that."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.deployment import Pool
from capacity.planning.fleet_records import FleetPool, Layout, best_of


def pool(**changes: Any) -> FleetPool:
    usual: dict[str, Any] = {
        "label": "all", "up_to_tokens": None, "request_share": 1.0, "requests_per_s": 2.0, "input_tokens": 1.0,
        "output_tokens": 1.0,
        "pool": Pool(gpu="h100"), "router": "round-robin", "replicas": 1, "spare_replicas": 0, "num_gpus": 1,
        "billed_gpus": 1, "usd_per_hour": 3.6, "prefill_share": None, "levels": (), "confidence": 0.9, "launch": (),
    }  # fmt: skip
    return FleetPool(**usual | changes)


def layout(threshold: int | None, objective: float | None, *pools: FleetPool) -> Layout:
    return Layout(
        threshold_tokens=threshold,
        outcome="planned",
        reason=None,
        pools=pools,
        objective=objective,
        proved=True,
    )


def test_the_least_objective_wins_then_the_fewest_pools_then_the_lowest_threshold() -> None:
    one, two = layout(None, 5.0, pool()), layout(100, 5.0, pool(), pool())
    assert best_of([two, one]) is one
    assert best_of([layout(200, 4.0, pool(), pool()), two, one, layout(100, 4.0, pool(), pool())]) == layout(
        100, 4.0, pool(), pool()
    )
    assert best_of([layout(None, None), two]) is two
    assert best_of([layout(None, None)]) is None


def test_a_bill_is_known_where_it_is_of_every_pool() -> None:
    both = layout(100, 7.2, pool(), pool(num_gpus=3))
    assert (both.num_gpus, both.usd_per_hour) == (4, 7.2)
    assert both.usd_per_request == pytest.approx(7.2 / 4 / 3600)
    assert layout(100, 2.0, pool(), pool(usd_per_hour=None)).usd_per_hour is None
    assert layout(None, 1.0, pool(requests_per_s=float("inf"))).usd_per_request is None
