"""Service levels that must hold in the busiest window: a short peak is not diluted by a long calm time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quick_plans import quick

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.planning.judging import Goal, judged, judged_in_windows
from capacity.planning.records import Plan
from capacity.planning.trial import Engines, run_engines
from capacity.pool.resolve import resolve
from capacity.report.figures.of_answer import charts_of
from capacity.report.plan import plan_tables, window_rows
from capacity.report.plan_summary import plan_summary
from capacity.workload import Workload, parse_slos
from capacity.workload.windows import windows_of

SLO = "ttft:p90:300ms tpot:p90:40ms"


def burst(at_s: float = 900.0) -> Workload:
    """Half an hour at 6 requests/s with 10 s at 100/s in the middle: 8 % of the requests."""
    rng = np.random.default_rng(0)
    calm_s = np.arange(0, 1810, 1 / 6)
    arrival_s = np.sort(np.concatenate((calm_s, at_s + np.arange(0, 10, 1 / 100))))
    count = len(arrival_s)
    return Workload(
        arrival_s=arrival_s,
        prompt_tokens=rng.integers(400, 1000, count),
        output_tokens=rng.integers(30, 90, count),
        name="burst",
    )


def planned(**changes: Any) -> Plan:
    return quick(
        **{
            "tensor_parallel_sizes": (1,),
            "slo": SLO,
            "workload": burst(),
            "input_len": None,
            "output_len": None,
        }
        | {"num_prompts": None, "request_rate": None}
        | changes
    )


@pytest.fixture(scope="module")
def minute() -> Plan:
    return planned(slo_window="1m")


def test_plan_window_holds_the_slo_in_the_peak(minute: Plan) -> None:
    whole = planned(slo_window="trace")
    assert minute.best is not None
    assert whole.best is not None
    assert whole.best.replicas < minute.best.replicas
    assert whole.busiest_window is None
    assert whole.slo_window == "trace"
    busiest = minute.busiest_window
    assert busiest is not None
    assert busiest.start_s <= 900 <= 910 <= busiest.end_s
    assert minute.requests == len(burst())


def test_plan_window_is_verified_on_the_whole_traffic(minute: Plan) -> None:
    assert minute.best is not None
    trial = minute.best.trial
    assert trial.seen == "all"
    assert (
        trial.window
        == max((each for each in trial.windows if each.judged), key=lambda each: each.ratio).window
    )
    assert sum(each.window.requests for each in trial.windows) == len(burst())
    assert [each.window.start_s for each in trial.windows] == sorted(
        each.window.start_s for each in trial.windows
    )


def test_plan_window_is_named_in_the_answer(minute: Plan) -> None:
    assert minute.best is not None
    assert minute.best.trial.window is not None
    head, *rest = (str(part) for part in plan_summary(minute))
    assert f"SLO window 1m; the busiest: {minute.busiest_window.label}" in head
    assert any(f"worst window: {minute.best.trial.window.label}" in part for part in rest)
    written = minute.to_dict()
    assert written["busiest_window"]["requests"] == minute.busiest_window.requests
    assert len(written["ranked"][0]["trial"]["windows"]) == len(minute.best.trial.windows)


def test_plan_detail_and_chart_show_all_windows(minute: Plan) -> None:
    assert minute.best is not None
    rows = window_rows(minute.best.trial.windows)
    assert 12 < len(rows) <= 25
    assert max(level.ratio for row in rows for level in row[2]) == pytest.approx(minute.best.trial.ratio)
    assert any("over time" in str(getattr(part, "title", "")) for part in plan_tables(minute))
    chart = next(chart for chart in charts_of(minute) if chart.name == "slo_over_time")
    assert len(chart.rows) == len(rows)


def test_plan_window_of_no_duration_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="slo_window is 'day'"):
        planned(slo_window="day")


def test_judged_in_windows_rejects_a_peak_that_the_whole_hides() -> None:
    goal = Goal(slos=parse_slos(SLO))
    whole, engines = burst(), [Engines(resolved=resolve("llama-3.1-8b", Pool(gpu="h100")))]
    run = run_engines(engines, whole)
    together = judged([run], goal, seen="all")
    by_window = judged_in_windows([run], [whole], windows_of([whole], 60.0), goal, together)
    assert together.met
    assert not by_window.met
    assert by_window.window is not None
    assert by_window.window.start_s <= 910 <= by_window.window.end_s + 60


def test_simulate_holds_the_slo_and_the_verdict_in_the_busiest_window() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "workload": burst(), "slo": [SLO]}
    minute = capacity.simulate("llama-3.1-8b", **asked, slo_window="1m")
    whole = capacity.simulate("llama-3.1-8b", **asked, slo_window="trace")
    assert minute.slo_window is not None
    assert whole.slo_window is None
    assert all(level.met for level in whole.slos)
    assert not all(level.met for level in minute.slos)
    assert minute.verdict is not None
    assert "the busiest 15 min" in minute.verdict.reason


def test_simulate_overloaded_for_a_quarter_of_an_hour_is_overloaded() -> None:
    """Five hours, of which one quarter of an hour has more than the engine serves: 5 % of the time."""
    arrival_s = np.sort(np.concatenate((np.arange(0, 18_000, 2.0), 9000 + np.arange(0, 900, 1 / 3))))
    count = len(arrival_s)
    day = Workload(
        arrival_s=arrival_s,
        prompt_tokens=np.full(count, 4000),
        output_tokens=np.full(count, 100),
    )
    verdict = capacity.simulate("llama-3.1-8b", gpu="l40s", workload=day).verdict
    assert verdict is not None
    assert verdict.verdict == "overloaded"
    assert "in the busiest 15 min, 02:30:00 to 02:45:00" in verdict.reason
    assert not verdict.is_stable
    calm = capacity.simulate("llama-3.1-8b", gpu="l40s", replicas=8, workload=day).verdict
    assert calm is not None
    assert calm.verdict == "stable"


def test_simulate_window_without_levels_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="--slo-window changes nothing without service levels"):
        capacity.simulate("llama-3.1-8b", gpu="h100", workload=burst(), slo_window="1h")


def test_curve_of_long_traffic_is_of_its_busiest_window() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "workload": burst(), "slo": SLO, "rates": (5.0,)}
    minute = capacity.curve("llama-3.1-8b", **asked, slo_window="1m")
    hour = capacity.curve("llama-3.1-8b", **asked, slo_window="1h")
    assert minute.highest is not None
    assert hour.highest is not None
    assert any("rates are those of the busiest 1m" in text for text in minute.warnings)
    assert minute.highest.predicted != hour.highest.predicted
    few = capacity.curve("llama-3.1-8b", **asked, slo_window="5s")
    assert any("levels are over all requests" in text for text in few.warnings)
