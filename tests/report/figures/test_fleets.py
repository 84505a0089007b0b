"""A fleet's pictures: every threshold's pools upon each other, the limits, and a day."""

from __future__ import annotations

import pytest

import capacity
from capacity.planning.fleet_records import FleetPlan
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
    """Two pools of one card, one of them in reserve, over a day."""
    return capacity.fleet(
        "llama-3.2-1b",
        slo=("ttft:p95:1s",),
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


def test_bars_add_up_to_what_each_threshold_costs(plan: FleetPlan) -> None:
    chart = layouts_chart(plan)
    sums: dict[str, float] = {}
    for bar in chart.figure.data:
        for name, value in zip(bar.y, bar.x, strict=True):
            sums[name] = sums.get(name, 0.0) + value
    assert sums == {
        threshold_text(each): pytest.approx(each.usd_per_hour) for each in plan.layouts if each.pools
    }
    assert [threshold_text(each) for each in plan.layouts] == ["one pool", "512 tokens"]
    assert [row["best"] for row in layout_rows(plan)] == [each is plan.best for each in plan.layouts]


def test_levels_are_shares_of_their_limits_with_their_intervals(plan: FleetPlan) -> None:
    assert plan.best is not None
    (bar,) = levels_chart(plan.best).figure.data
    level = plan.best.pools[0].levels[0]
    assert level.value_s is not None
    assert bar.x[0] == pytest.approx(100 * level.value_s / level.limit_s)
    assert bar.x[0] + bar.error_x.array[0] == pytest.approx(100 * (level.high_s or 0) / level.limit_s)
    assert pool_rows(plan.best)[0]["in reserve"] == 1


def test_a_day_has_the_replicas_of_each_hour(plan: FleetPlan) -> None:
    assert plan.day is not None
    chart = fleet_day_chart(plan)
    for place, bar in enumerate(chart.figure.data):
        assert list(bar.y) == [hour.replicas[place] for hour in plan.day.hours]
    drawn = charts_of(plan)
    assert [each.name for each in drawn] == ["fleet_layouts", "fleet_levels", "fleet_day"]
    assert all("<svg" in each.svg() for each in drawn)
