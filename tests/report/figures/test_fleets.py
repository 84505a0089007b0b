"""A fleet's pictures: every threshold's pools upon each other, the limits, and a day."""

from __future__ import annotations

from dataclasses import replace

import pytest

import capacity
from capacity.planning.fleets.fleet_records import FleetHour, FleetPlan, Layout
from capacity.report.figures.fleets import (
    fleet_day_chart,
    layout_rows,
    layouts_chart,
    levels_chart,
    pool_rows,
    threshold_text,
)
from capacity.report.figures.of_answer import charts_of


@pytest.fixture(scope="module")
def plan() -> FleetPlan:
    """One pool with a reserve over a day, and a threshold at which two would be dearer."""
    return capacity.fleet(
        "llama-3.2-1b",
        slo=("ttft:p95:1200ms",),
        gpus=("l4",),
        quantizations=("default",),
        tensor_parallel_sizes=(1,),
        input_len=600,
        output_len=20,
        length_distribution="lognormal",
        request_rate=20.0,
        num_prompts=60,
        replications=1,
        split_at=(512,),
        spare_replicas=1,
        peak_to_mean=1.5,
        price="2",
    )


def in_two(plan: FleetPlan) -> Layout:
    """Its one pool twice, the second at another price."""
    assert plan.best is not None
    (pool,) = plan.best.pools
    longer = replace(pool, label="long", usd_per_hour=3.5)
    return replace(plan.best, num_pools=2, thresholds_tokens=(1024,), pools=(pool, longer))


def test_bars_add_up_to_what_each_threshold_costs(plan: FleetPlan) -> None:
    assert [threshold_text(each) for each in plan.layouts] == ["one pool", "512 tokens"]
    assert [row["best"] for row in layout_rows(plan)] == [True, False]
    plan = replace(plan, layouts=(*plan.layouts, in_two(plan)))
    chart = layouts_chart(plan)
    sums: dict[str, float] = {}
    for bar in chart.figure.data:
        for name, value in zip(bar.y, bar.x, strict=True):
            sums[name] = sums.get(name, 0.0) + value
    assert sums == {
        threshold_text(each): pytest.approx(each.usd_per_hour) for each in plan.layouts if each.pools
    }
    assert len(sums) == 2


def test_levels_are_shares_of_their_limits_with_their_intervals(plan: FleetPlan) -> None:
    assert plan.best is not None
    (bar,) = levels_chart(plan.best).figure.data
    level = plan.best.pools[0].levels[0]
    assert level.value_s is not None
    assert bar.x[0] == pytest.approx(100 * level.value_s / level.limit_s)
    assert bar.x[0] + bar.error_x.array[0] == pytest.approx(100 * (level.high_s or 0) / level.limit_s)
    assert pool_rows(plan.best)[0]["in reserve"] == 1


def test_a_day_has_the_replicas_of_each_hour_of_each_pool(plan: FleetPlan) -> None:
    assert plan.day is not None
    assert [each.name for each in charts_of(plan)] == ["fleet_layouts", "fleet_levels", "fleet_day"]
    assert all("<svg" in each.svg() for each in charts_of(plan))
    hours = tuple(
        FleetHour(hour=hour, request_rate_per_s=1.0, replicas=replicas, usd_per_hour=8.0)
        for hour, replicas in enumerate(((1, 3), (2, 1)))
    )
    apart = replace(plan, layouts=(in_two(plan),), day=replace(plan.day, hours=hours))
    assert [list(bar.y) for bar in fleet_day_chart(apart).figure.data] == [[1, 2], [3, 1]]
