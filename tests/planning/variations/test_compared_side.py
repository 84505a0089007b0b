"""One side of a comparison: agreement with `curve`, `simulate` and `plan`, closed loops, services and days."""

from __future__ import annotations

import math
from typing import Any

import pytest
from compared_sides import MODEL, RATE, SLO, TRAFFIC, side

import capacity
from capacity.planning.variations.deployment_comparison import (
    DeploymentComparison,
    compare_deployments,
)


def test_capacity_is_of_the_curve_of_the_replicas(four_sides: DeploymentComparison) -> None:
    for each, gpu in ((four_sides.sides[0], "h100"), (four_sides.sides[3], "b200")):
        assert each.needed is not None
        count = each.simulated_replicas
        assert count == each.needed.replicas
        asked: dict[str, Any] = {**TRAFFIC, "num_prompts": max(1000, 500 * count)}
        curve = capacity.curve(MODEL, gpu=gpu, replicas=count, slo=SLO, replications=1, **asked)
        assert curve.highest is not None
        assert curve.highest == each.highest
        least = RATE / count
        most = RATE / (count - 1) if count > 1 else math.inf
        expected = min(max(curve.highest.at_confidence / count, least), most)
        assert each.load_per_replica == pytest.approx(expected, rel=1e-6)
        assert each.carried_load == max(curve.highest.at_confidence, RATE)


LOOP = {"concurrency": 24, "num_prompts": 600}
LOOP_SLO = ("ttft:p95:300ms", "tpot:p95:12ms")


@pytest.fixture(scope="module")
def loop() -> DeploymentComparison:
    sides = [side(traffic=LOOP), side(traffic=LOOP), side(traffic=LOOP, price="2")]
    return compare_deployments(sides, slo=LOOP_SLO)


def test_closed_loop_is_compared_at_equal_concurrency(loop: DeploymentComparison) -> None:
    assert (loop.requests_per_s, loop.concurrency) == (None, 24)
    assert loop.verdict.startswith("At 24 requests in flight within the SLO, A needs")
    first = loop.sides[0]
    assert first.needed is not None
    assert first.highest is not None
    assert first.served_per_s is not None
    assert first.served_per_s == first.costed_per_s
    assert math.ceil(24 / first.load_per_replica) == first.needed.replicas
    assert first.highest.low <= first.highest.at_confidence <= first.highest.predicted <= first.highest.high
    same, half = loop.differences
    for change, expected in ((same, 0.0), (half, -0.5)):
        for each in (change.bill, change.per_request):
            assert (each.value, each.low, each.high) == pytest.approx((expected,) * 3)


def test_highest_concurrency_is_the_last_that_meets_the_slo(loop: DeploymentComparison) -> None:
    """A closed loop of that many requests meets the SLO in `simulate` with predicted step times; one more misses it."""
    first = loop.sides[0]
    assert first.highest is not None
    limits_s = {"ttft": 0.3, "tpot": 0.012}
    highest = int(first.highest.predicted)
    met = []
    for concurrency in (highest, highest + 1):
        load = {"concurrency": concurrency, "num_prompts": 25 * concurrency}
        run = capacity.simulate(
            MODEL, gpu="h100", replicas=first.simulated_replicas, **TRAFFIC, **load
        ).to_dict()
        met.append(all(run[f"p95_{name}_ms"] <= limit * 1e3 for name, limit in limits_s.items()))
    assert met == [True, False]


@pytest.mark.ci
def test_service_of_a_deployment_applies() -> None:
    """Failures need more replicas; a timeout below the latency fails every request; autoscaling is refused."""
    failing = {"mean_time_between_failures_s": 60.0, "recovery_s": 30.0}
    services = [{}, failing, {"request_timeout_s": 0.05}, {"autoscale_max_replicas": 3}]
    found = compare_deployments([side(service=service) for service in services], slo=SLO)
    plain, failures, timeout, scaled = found.sides
    assert plain.needed is not None
    assert failures.needed is not None
    assert failures.needed.replicas > plain.needed.replicas
    assert str(timeout.reason).startswith("no number of replicas meets the SLO")
    assert str(scaled.reason).startswith(
        "autoscale_max_replicas of the service changes the number of replicas"
    )


DAY = {"request_rate": 20.0, "arrivals": "diurnal", "day_peak_to_mean": 2.0}
PART_OF_DAY = {**DAY, "num_prompts": 1000}  # the busiest


@pytest.fixture(scope="module")
def day() -> DeploymentComparison:
    return compare_deployments([side(traffic=PART_OF_DAY), side(traffic=PART_OF_DAY, price="2")], slo=SLO)


def test_day_needs_the_replicas_of_the_comparison_at_its_peak(day: DeploymentComparison) -> None:
    for each in day.sides:
        assert each.day is not None
        assert each.needed is not None
        assert len(each.day.hours) == 24
        assert max(hour.request_rate_per_s for hour in each.day.hours) == 40
        assert each.day.peak_replicas == each.needed.replicas
        assert each.day.fixed_usd_per_month == pytest.approx(each.needed.usd_per_month)
        assert each.day.autoscaled_usd_per_month is not None
        assert each.needed.usd_per_month is not None
        assert each.day.autoscaled_usd_per_month < each.needed.usd_per_month


@pytest.mark.ci
def test_a_whole_day_has_the_worst_window_of_the_plan() -> None:
    """At 0.05 requests/s all requests of the day are simulated, and the SLO applies to its windows."""
    traffic = {**DAY, "request_rate": 0.05}
    found = compare_deployments([side(traffic=traffic), side(traffic=traffic)], slo=SLO)
    first = found.sides[0]
    plan = capacity.plan(
        MODEL, **TRAFFIC, **traffic, gpus="h100", price="4", slo=SLO, quantizations="none", kv_cache_dtypes="auto",
        speculators="none", serving="aggregated", tensor_parallel_sizes=(1,), max_num_batched_tokens=(None,),
    )  # fmt: skip
    assert plan.best is not None
    assert first.window is not None
    assert first.window == plan.best.trial.window
    assert [level.value_s for level in first.levels] == [level.value_s for level in plan.best.trial.levels]


def test_start_of_a_closed_loop_is_noted_if_it_is_many_of_its_requests(loop: DeploymentComparison) -> None:
    assert not any("starts with" in note for note in loop.warnings)
    few = side(traffic={"concurrency": 24, "num_prompts": 96})
    found = compare_deployments([few, few], slo=("ttft:p95:1s", "tpot:p95:9ms"))
    assert "starts with 24 requests at once, 25% of its requests" in found.warnings[0]
