"""A fleet: the pools, every threshold, the reserve and the day, charts of them, and what is said of nothing found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from planned_pools import fleet_pool
from quick_fleets import quick_fleet

import capacity
from capacity.planning.fleets.fleet_records import FleetHour, FleetPlan, Layout
from capacity.report import tables as report
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.chart import Chart
from capacity.report.views.fleet import threshold_text


def test_the_fleet_its_thresholds_and_its_day() -> None:
    plan = quick_fleet(
        split_at=(500, 1500), spare_replicas=1, peak_to_mean=1.5, mean_time_between_failures_s=1e6, recovery_s=1e4,
        availability=0.5,
    )  # fmt: skip
    text = report.render(plan, "table")
    best = plan.best
    assert best is not None
    assert (
        "Use " + " + ".join(f"{pool.replicas}+{pool.spare_replicas} x {pool.pool.gpu}" for pool in best.pools)
        in text
    )
    assert f": ${best.usd_per_hour:,.2f}/h" in text
    assert "one pool" in text
    assert "each replica is available 99.010% of the time" in text
    assert plan.day is not None
    assert f"${plan.day.scaled_usd_per_day:,.2f} a day" in text
    for layout in plan.layouts:
        assert ("one pool" if layout.threshold_tokens is None else f"{layout.threshold_tokens:,}") in text
    rows = json.loads(report.render(plan, "json"))["layouts"]
    assert [row["threshold_tokens"] for row in rows] == [None, 500, 1500]
    assert report.render(plan, "csv").count("\n") >= 3


def test_no_answer_says_why_of_each() -> None:
    text = report.render(quick_fleet(slo="ttft:p95:1ms", split_at=(500,)), "table")
    assert "no fleet meets the SLO (--max-pools 2)" in text
    assert "all requests: ttft:p95:1ms" in text
    assert "short requests: ttft:p95:1ms" in " ".join(text.split())


@pytest.fixture(scope="module")
def small() -> FleetPlan:
    return quick_fleet(split_at=(500,), gpus="h100", num_prompts=60)


def layout(usd: float | None, *thresholds: int, num_pools: int = 0) -> Layout:
    """Its pools cost as much each."""
    count = len(thresholds) + 1
    pools = [fleet_pool(up_to_tokens=each, usd_per_hour=usd and usd / count) for each in (*thresholds, None)]
    return Layout(
        thresholds_tokens=thresholds,
        num_pools=num_pools or count,
        outcome="planned" if usd else "cannot be cheaper",
        reason=None if usd else "no such pools cost less than the best",
        pools=tuple(pools) if usd else (),
        objective=usd,
        proved=True,
    )


def told(plan: FleetPlan, *layouts: Layout) -> str:
    most = max(each.num_pools for each in layouts)
    return " ".join(report.render(replace(plan, layouts=layouts, max_pools=most), "table").split())


def test_what_a_third_pool_buys_and_a_fourth(small: FleetPlan) -> None:
    none = layout(None, num_pools=4)
    text = told(small, layout(8.0), layout(6.0, 500), layout(5.4, 500, 1500), none)
    assert "of up to 500 tokens go to the first pool, of up to 1,500 tokens go to the second pool (" in text
    assert "32.5% less than one pool for all requests" in text
    assert "a third pool saves 10.0% compared with at most 2 pools" in text
    assert "a fourth pool saves nothing: no such pools cost less than the best" in text
    assert "500 and 1,500 tokens" in text
    assert "4 pools" in text


def test_a_third_pool_that_buys_nothing_is_said_and_one_that_alone_will_do(small: FleetPlan) -> None:
    text = told(small, layout(8.0), layout(6.0, 500), layout(None, num_pools=3))
    assert "a third pool saves nothing: no such pools cost less" in text
    text = told(small, layout(None), layout(None, 500), layout(9.0, 500, 900))
    assert "one pool for all requests does not meet the SLO" in text
    assert "the SLO is only met with a third pool" in text
    assert "third" not in told(small, layout(8.0), layout(6.0, 500))
    assert "no tested threshold" not in told(small, layout(8.0))


def test_a_day_that_saves_nothing_is_no_less() -> None:
    plan = quick_fleet(split_at=(500,), gpus="h100", num_prompts=60, peak_to_mean=1.5)
    assert plan.day is not None
    fixed = plan.day.fixed_usd_per_day
    assert fixed
    for scaled, words in ((fixed * (1 + 1e-15), "no less than"), (0.8 * fixed, "20.0% less than")):
        day = replace(plan.day, scaled_usd_per_day=scaled)
        assert f"a day, {words} ${fixed:,.2f}" in report.render(replace(plan, day=day), "table")


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


def chart_of(plan: FleetPlan, name: str) -> Chart:
    return next(chart for chart in answer_charts(plan) if chart.name == name)


def in_two(plan: FleetPlan) -> Layout:
    """Its one pool twice, the second at another price."""
    assert plan.best is not None
    (pool,) = plan.best.pools
    longer = replace(pool, label="long", usd_per_hour=3.5)
    return replace(plan.best, num_pools=2, thresholds_tokens=(1024,), pools=(pool, longer))


def test_bars_add_up_to_what_each_threshold_costs(plan: FleetPlan) -> None:
    assert [threshold_text(each) for each in plan.layouts] == ["one pool", "512 tokens"]
    plan = replace(plan, layouts=(*plan.layouts, in_two(plan)))
    chart = chart_of(plan, "fleet_layouts")
    assert [str(row["engines"]).endswith("*") for row in chart.rows] == [True, False, False]
    sums: dict[str, float] = {}
    for bar in chart.figure.data:
        for name, value in zip(bar.y, bar.x, strict=True):
            sums[name] = sums.get(name, 0.0) + (value or 0.0)
    assert sums == {
        threshold_text(each): pytest.approx(each.usd_per_hour) for each in plan.layouts if each.pools
    }
    assert len(sums) == 2


def test_levels_are_shares_of_their_limits_with_their_intervals(plan: FleetPlan) -> None:
    assert plan.best is not None
    (bar,) = chart_of(plan, "fleet_levels").figure.data
    level = plan.best.pools[0].levels[0]
    assert level.value_s is not None
    assert bar.x[0] == pytest.approx(100 * level.value_s / level.limit_s)
    assert bar.x[0] + bar.error_x.array[0] == pytest.approx(100 * (level.high_s or 0) / level.limit_s)


def test_a_day_has_the_replicas_of_each_hour_of_each_pool(plan: FleetPlan) -> None:
    assert plan.day is not None
    assert [each.name for each in answer_charts(plan)] == ["fleet_levels", "fleet_layouts", "fleet_day"]
    assert all("<svg" in each.svg() for each in answer_charts(plan))
    hours = tuple(
        FleetHour(hour=hour, request_rate_per_s=1.0, replicas=replicas, usd_per_hour=8.0)
        for hour, replicas in enumerate(((1, 3), (2, 1)))
    )
    apart = replace(plan, layouts=(in_two(plan),), day=replace(plan.day, hours=hours))
    assert [list(bar.y) for bar in chart_of(apart, "fleet_day").figure.data] == [[1, 2], [3, 1]]
