"""Service levels that must hold in the busiest window: a short peak is not diluted by a long calm time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from long_forms import mostly_slow
from quick_plans import quick

import capacity
from capacity.answers.engine_setup import make_workload
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Traffic
from capacity.planning.evaluation.evaluate import EngineGroup, run_engines
from capacity.planning.evaluation.slo_evaluation import Goal, evaluate_slos, evaluate_windows
from capacity.planning.fleets.fleet_records import FleetPlan
from capacity.planning.records import Plan
from capacity.pool.resolve import resolve
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.layout import render_text
from capacity.report.plan import window_rows
from capacity.report.plan_summary import plan_view
from capacity.report.tables import render
from capacity.report.views.fleet import fleet_view
from capacity.report.views.layout import view_parts
from capacity.simulator.replications import replication_seeds
from capacity.workload import Workload, parse_slos
from capacity.workload.windows import find_windows, take_busiest_window

MODEL = "llama-3.1-8b"
TINY: dict[str, Any] = {
    "gpus": "h100", "quantizations": (None,), "kv_cache_dtypes": ("auto",), "max_num_batched_tokens": (None,),
    "objective": "gpus", "speculators": "none", "data_parallel_sizes": (1,), "replications": 1,
}  # fmt: skip
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
    head, *rest = (str(part) for part in view_parts(plan_view(minute), minute, "summary"))
    assert f"SLO window 1m; busiest: {minute.busiest_window.label}" in head
    assert any(f"worst window: {minute.best.trial.window.label}" in part for part in rest)
    written = minute.to_dict()
    assert written["busiest_window"]["requests"] == minute.busiest_window.requests
    assert len(written["ranked"][0]["trial"]["windows"]) == len(minute.best.trial.windows)


def test_plan_detail_and_chart_show_all_windows(minute: Plan) -> None:
    assert minute.best is not None
    rows = window_rows(minute.best.trial.windows)
    assert 12 < len(rows) <= 25
    assert max(level.ratio for row in rows for level in row[2]) == pytest.approx(minute.best.trial.ratio)
    assert any(
        "over time" in str(getattr(part, "title", "")) for part in view_parts(plan_view(minute), minute)
    )
    chart = next(chart for chart in answer_charts(minute) if chart.name == "slo_over_time")
    assert len(chart.rows) == len(rows)


@pytest.fixture(scope="module")
def fleet_of_a_minute() -> FleetPlan:
    return fleet_of(slo_window="1m")


def fleet_of(**changes: Any) -> FleetPlan:
    """The fleet of one pool for the same space and traffic as `planned`."""
    return capacity.fleet(
        MODEL,
        **TINY
        | {"slo": SLO, "workload": burst(), "tensor_parallel_sizes": (1,), "max_pools": 1, "time_limit_s": 0}
        | changes,
    )


def test_fleet_of_one_pool_is_the_plan_in_the_window(fleet_of_a_minute: FleetPlan) -> None:
    plans = [
        planned(slo_window="1m", serving="aggregated", alternatives=False, routers=router)
        for router in ("least-outstanding", "round-robin")
    ]
    plan = min(plans, key=lambda each: math.inf if each.best is None else each.best.objective)
    found = fleet_of_a_minute
    assert plan.best is not None
    assert found.best is not None
    assert (found.slo_window, found.busiest_window) == ("1m", plan.busiest_window)
    (pool,) = found.best.pools
    assert (pool.replicas, found.best.objective) == (plan.best.replicas, plan.best.objective)
    assert (pool.window, pool.levels) == (plan.best.trial.window, plan.best.trial.levels)
    whole = fleet_of(slo_window="trace")
    assert whole.best is not None
    assert whole.best.num_gpus < found.best.num_gpus
    assert (whole.slo_window, whole.busiest_window) == ("trace", None)


def test_fleet_proof_is_judged_in_every_window(fleet_of_a_minute: FleetPlan) -> None:
    found, proof = fleet_of_a_minute, fleet_of_a_minute.proof
    assert found.best is not None
    assert proof is not None
    assert proof.requests == sum(each.window.requests for each in proof.windows) == len(burst())
    assert (proof.window, proof.levels) == (found.best.pools[0].window, found.best.pools[0].levels)


@pytest.mark.slow
def test_fleet_of_two_pools_is_proved_in_every_window() -> None:
    """Each pool is judged in its own windows, all pools together in those of all requests."""
    found = fleet_of(slo_window="1m", max_pools=2, split_at=(700,))
    assert found.best is not None
    assert found.proof is not None
    assert found.proof.met
    assert all(level.ratio <= 1 for each in found.proof.windows if each.judged for level in each.levels)
    two = found.layouts[-1]
    assert all(pool.window is not None for pool in two.pools)


def test_fleet_names_the_window_and_shows_all_with_detail(fleet_of_a_minute: FleetPlan) -> None:
    found = fleet_of_a_minute
    assert found.busiest_window is not None
    assert found.proof is not None
    assert found.proof.window is not None
    summary, detail = (
        render_text(view_parts(fleet_view(found, detail=detail), found)) for detail in (False, True)
    )
    for text in (summary, detail):
        assert f"SLO window 1m; busiest: {found.busiest_window.label}" in text
        assert f"worst window: {found.proof.window.label}" in text
    assert "Service levels over time" in detail
    assert "Service levels over time" in render(found, "table")
    assert "Service levels over time" not in summary
    assert "slo_over_time" in [chart.name for chart in answer_charts(found)]


def test_fleet_day_is_of_the_rates_in_the_window() -> None:
    found = fleet_of(slo_window="1m", peak_to_mean=2.0)
    assert found.day is not None
    assert found.best is not None
    assert found.busiest_window is not None
    highest = max(found.day.hours, key=lambda each: each.request_rate_per_s)
    assert highest.request_rate_per_s == pytest.approx(found.busiest_window.requests_per_s)
    assert highest.replicas == (found.best.pools[0].replicas,)


@pytest.mark.parametrize("verb", mostly_slow([capacity.tornado, capacity.advise], [capacity.tornado]))
def test_comparison_of_long_traffic_is_of_its_busiest_window(verb: Any) -> None:
    (part,), windows = take_busiest_window([burst()], "1m")
    found, alone, quarter = (
        verb(MODEL, gpu="h100", price="2", workload=workload, slo_window=window)
        for workload, window in ((burst(), "1m"), (part, "trace"), (burst(), "15m"))
    )
    assert (found.busiest_window, alone.busiest_window) == (windows[0], None)
    assert found.base == alone.base
    assert f"Compared on the busiest 1 min: {windows[0].text}, {len(part):,} requests" in render(
        found, "table"
    )
    assert quarter.busiest_window == find_windows([burst()], 900.0)[0]
    assert quarter.base != found.base


def spike() -> Workload:
    """500 s at 0.2 requests/s with 50 requests in one second: few, for deployments that serve one at a time."""
    arrival_s = np.sort(np.concatenate((np.arange(0, 500, 5.0), 250 + np.arange(0, 1, 1 / 50))))
    count = len(arrival_s)
    return Workload(
        arrival_s=arrival_s, prompt_tokens=np.full(count, 500), output_tokens=np.full(count, 40), name="spike"
    )


def test_stack_of_long_traffic_is_of_its_busiest_window_and_overloaded_by_its_rate() -> None:
    """The mean rate over all of the traffic is far below that in the window."""
    asked: dict[str, Any] = {"gpu": "h100", "order": ("bf16", "kv-cache")}
    (part,), windows = take_busiest_window([spike()], "20s")
    whole, found, alone = (
        capacity.stack(MODEL, **asked, workload=workload, slo_window=window)
        for workload, window in ((spike(), "trace"), (spike(), "20s"), (part, "trace"))
    )
    assert [each.busiest_window for each in (whole, found, alone)] == [None, windows[0], None]
    assert f"Compared on the busiest 20 s: {windows[0].text}, {len(part)} requests" in render(found, "table")
    last = [each.steps[-1].figures for each in (whole, found, alone)]
    assert [figures and figures.overloaded for figures in last[:2]] == [False, True]
    assert last[1] is not None
    assert last[2] is not None
    assert last[1].output_tokens_per_s == last[2].output_tokens_per_s


def test_diff_of_long_traffic_is_of_its_busiest_window() -> None:
    sides = [{"model": MODEL, "pools": [{"gpu": "h100", **pool}]} for pool in ({}, {"quantization": "fp8"})]
    (part,), windows = take_busiest_window([burst()], "1m")
    found = capacity.diff(*sides, workload=burst(), slo_window="1m")
    assert (found.busiest_window, found.requests) == (windows[0], len(part))
    assert found.differences == capacity.diff(*sides, workload=part, slo_window="trace").differences
    whole = capacity.diff(*sides, workload=burst(), slo_window="trace")
    assert (whole.busiest_window, whole.requests) == (None, len(burst()))
    assert f"Compared on the busiest 1 min: {windows[0].text}" in render(found, "table")


def test_diff_replicated_is_of_the_busiest_window_of_each_draw() -> None:
    traffic = {"input_len": 400, "output_len": 40, "request_rate": 5.0, "num_prompts": 200}
    sides = [
        {"model": MODEL, "pools": [{"gpu": "h100", **pool}], "traffic": traffic}
        for pool in ({}, {"quantization": "fp8"})
    ]
    found = capacity.diff(*sides, replications=2, slo_window="10s")
    runs = []
    for seed in replication_seeds(0, 2):
        (part,), _ = take_busiest_window([make_workload(Traffic(**traffic, seed=seed))], "10s")
        runs.append(capacity.simulate(MODEL, gpu="h100", workload=part).run.summary.output_throughput)
    rate = next(each for each in found.replicated if each.metric == "output_throughput")
    assert rate.first == pytest.approx(np.mean(runs))


def test_plan_window_of_no_duration_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="slo_window is 'day'"):
        planned(slo_window="day")


def test_judged_in_windows_rejects_a_peak_that_the_whole_hides() -> None:
    goal = Goal(slos=parse_slos(SLO))
    whole, engines = burst(), [EngineGroup(resolved=resolve("llama-3.1-8b", Pool(gpu="h100")))]
    run = run_engines(engines, whole)
    together = evaluate_slos([run], goal, seen="all")
    by_window = evaluate_windows([run], [whole], find_windows([whole], 60.0), goal, together)
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
    with pytest.raises(InvalidInput, match="--slo-window has no effect without SLOs"):
        capacity.simulate("llama-3.1-8b", gpu="h100", workload=burst(), slo_window="1h")


@pytest.mark.ci
def test_curve_of_long_traffic_is_of_its_busiest_window() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "workload": burst(), "slo": SLO, "rates": (5.0,)}
    minute = capacity.curve("llama-3.1-8b", **asked, slo_window="1m")
    hour = capacity.curve("llama-3.1-8b", **asked, slo_window="1h")
    assert minute.highest is not None
    assert hour.highest is not None
    assert any("The curve is for the busiest 1m" in text for text in minute.warnings)
    assert minute.highest.predicted != hour.highest.predicted
    few = capacity.curve("llama-3.1-8b", **asked, slo_window="5s")
    assert any("The SLO is evaluated over all requests" in text for text in few.warnings)
