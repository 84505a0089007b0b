"""A fleet as tables: the pools, every threshold, the reserve and the day; and what is said where nothing was found."""

from __future__ import annotations

import json

from quick_fleets import quick_fleet

from capacity.report import tables as report
from capacity.report.fleet import fleet_tables
from capacity.report.layout import printed


def test_the_fleet_its_thresholds_and_its_day() -> None:
    plan = quick_fleet(
        split_at=(500, 1500), spare_replicas=1, peak_to_mean=1.5, mean_time_between_failures_s=1e6, recovery_s=1e4,
        availability=0.5,
    )  # fmt: skip
    text = printed(fleet_tables(plan))
    best = plan.best
    assert best is not None
    assert (
        "Rent "
        + " + ".join(f"{pool.replicas}+{pool.spare_replicas} x {pool.pool.gpu}" for pool in best.pools)
        in text
    )
    assert f": ${best.usd_per_hour:,.2f}/h" in text
    assert "one pool" in text
    assert "each replica is there 99.010% of the time" in text
    assert plan.day is not None
    assert f"${plan.day.scaled_usd_per_day:,.2f} a day" in text
    for layout in plan.layouts:
        assert ("one pool" if layout.threshold_tokens is None else f"{layout.threshold_tokens:,}") in text
    rows = json.loads(report.render(plan, "json"))["layouts"]
    assert [row["threshold_tokens"] for row in rows] == [None, 500, 1500]
    assert report.render(plan, "csv").count("\n") >= 3


def test_no_answer_says_why_of_each() -> None:
    text = printed(fleet_tables(quick_fleet(slo="ttft:p95:1ms", split_at=(500,))))
    assert "nothing meets the SLO, neither one pool nor two" in text
    assert "all requests: ttft:p95:1ms" in text
    assert "short requests: ttft:p95:1ms" in " ".join(text.split())
