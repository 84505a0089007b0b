"""Deployments at equal served load within the SLO: closed forms, agreement with `curve`, unlike loads, and a side
that cannot serve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

import capacity
from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.planning.variations.compared_side import ComparedSide
from capacity.planning.variations.deployment_comparison import (
    DeploymentComparison,
    compare_deployments,
)
from capacity.report.figures.interactive import interactive_page

MODEL = "llama-3.1-8b"
TRAFFIC = {"input_len": 1024, "output_len": 256, "random_range_ratio": 0.0}
SLO = ("ttft:p95:500ms", "tpot:p95:50ms")
RATE = 60.0


def side(
    gpu: str = "h100",
    *,
    price: str = "4",
    rate: float = RATE,
    traffic: Mapping[str, Any] | None = None,
    service: Mapping[str, Any] | None = None,
    **pool: Any,
) -> dict[str, Any]:
    load = {"request_rate": rate} if traffic is None else traffic
    return {
        "model": MODEL,
        "pools": [{"gpu": gpu, **pool}],
        "traffic": {**TRAFFIC, **load},
        "service": service or {},
        "cost": {"price": price},
    }


@pytest.fixture(scope="module")
def answer() -> DeploymentComparison:
    return compare_deployments([side(), side(), side(price="2"), side("b200", price="9")], slo=SLO)


def test_identical_sides_differ_by_0_with_an_interval_of_width_0(answer: DeploymentComparison) -> None:
    same = answer.differences[0]
    for change in (same.bill, same.per_request):
        assert (change.value, change.low, change.high) == (0, 0, 0)
    assert (same.cheaper_probability, same.equal_probability) == (0.0, 1.0)
    assert (same.break_even_below, same.break_even_above) == (None, None)
    assert "B costs the same as A (90 % interval: 0% to 0%)" in answer.verdict


def test_half_the_price_is_half_the_cost_in_every_draw(answer: DeploymentComparison) -> None:
    half = answer.differences[1]
    for change in (half.bill, half.per_request):
        assert (change.value, change.low, change.high) == pytest.approx((-0.5, -0.5, -0.5))
    assert (half.cheaper_probability, half.equal_probability) == (1.0, 0.0)
    assert "C is 50% cheaper than A (90 % interval: 50% to 50%)" in answer.verdict


def test_bill_and_interval_follow_from_replicas_and_capacity(answer: DeploymentComparison) -> None:
    for each, price in zip(answer.sides, (4, 4, 2, 9), strict=True):
        assert each.needed is not None
        assert math.ceil(RATE / each.load_per_replica) == each.needed.replicas
        assert each.needed.usd_per_hour == price * each.needed.replicas
        assert each.usd_per_hour_at(RATE, each.load_per_replica) == each.needed.usd_per_hour
    first, last, other = answer.sides[0], answer.sides[3], answer.differences[2]
    assert other.bill.value == pytest.approx(bill_of(last) / bill_of(first) - 1)
    assert first.carried_load is not None
    assert last.carried_load is not None
    full = bill_of(last) / last.carried_load / (bill_of(first) / first.carried_load) - 1
    assert other.per_request.value == pytest.approx(full)
    for change in (other.bill, other.per_request):
        assert change.low is not None
        assert change.high is not None
        assert change.low <= change.value <= change.high
    assert other.cheaper_probability + other.equal_probability <= 1


def bill_of(side: ComparedSide) -> float:
    assert side.needed is not None
    assert side.needed.usd_per_hour is not None
    return side.needed.usd_per_hour


def test_cheaper_side_changes_across_the_break_even(answer: DeploymentComparison) -> None:
    first, second = answer.sides[0], answer.sides[3]
    change = answer.differences[2]

    def difference(rate: float) -> float:
        bills = [
            math.ceil(rate / each.load_per_replica) * price for each, price in ((first, 4.0), (second, 9.0))
        ]
        return bills[1] - bills[0]

    here = difference(RATE)
    ends = {
        change.break_even_below: 1 - 1e-6,
        change.break_even_above: 1 + 1e-6,
    }
    found = {rate: factor for rate, factor in ends.items() if rate is not None}
    assert found
    assert all(difference(rate * factor) * here < 0 for rate, factor in found.items())


def test_capacity_is_of_the_curve_of_the_replicas(answer: DeploymentComparison) -> None:
    for each, gpu in ((answer.sides[0], "h100"), (answer.sides[3], "b200")):
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


def test_start_of_a_closed_loop_is_noted_if_it_is_many_of_its_requests(loop: DeploymentComparison) -> None:
    assert not any("starts with" in note for note in loop.warnings)
    few = side(traffic={"concurrency": 24, "num_prompts": 96})
    found = compare_deployments([few, few], slo=("ttft:p95:1s", "tpot:p95:9ms"))
    assert "starts with 24 requests at once, 25% of its requests" in found.warnings[0]


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


@pytest.mark.ci
def test_errors_of_the_step_model_are_paired_on_a_gpu_and_independent_between_gpus() -> None:
    """More memory changes the capacity of an H100 a little, so the paired interval is far narrower than B200's."""
    found = compare_deployments([side(), side(gpu_memory_utilization=0.85), side("b200")], slo=SLO)
    paired, apart = (each.per_request for each in found.differences)
    assert paired.low is not None
    assert paired.high is not None
    assert apart.low is not None
    assert apart.high is not None
    assert paired.high - paired.low < (apart.high - apart.low) / 3


def test_sides_that_cannot_serve_have_the_reason_and_the_others_are_compared() -> None:
    sides = [side(gpu="l4"), side(), side("l4", max_model_len=8192), side(price="2")]
    found = compare_deployments(sides, slo=("ttft:p95:100ms",))
    assert found.sides[0].needed is None
    assert "KV cache" in str(found.sides[0].reason)
    assert found.sides[0].memory_bytes["weights"] > 0
    assert str(found.sides[2].reason).startswith("no number of replicas meets the SLO")
    assert [(each.first, each.second, each.bill.value) for each in found.differences] == [("B", "D", -0.5)]
    assert "A is not compared: llama-3.1-8b (bf16) leaves" in found.verdict
    with pytest.raises(DoesNotFit):
        compare_deployments([side("l4"), side("l4")], slo=SLO)


def test_unlike_loads_and_missing_slo_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="B: different traffic than A"):
        compare_deployments([side(), side(rate=30.0)], slo=SLO)
    with pytest.raises(InvalidInput, match="needs an SLO"):
        compare_deployments([side(), side()])
    with pytest.raises(InvalidInput, match="2 to 4 deployments, not 1"):
        compare_deployments([side()], slo=SLO)
    for loads in (
        {"users": 8, "user_loop": "closed", "think_time_s": 1.0},
        {"concurrency": 8, "request_rate": 60.0},
        {},
    ):
        unclear = {**side(), "traffic": {**TRAFFIC, **loads}}
        with pytest.raises(InvalidInput, match="needs either a request rate or a concurrency"):
            compare_deployments([unclear, unclear], slo=SLO)


def test_interactive_page_has_every_side_and_loads_nothing(answer: DeploymentComparison) -> None:
    page = interactive_page(answer)
    assert page.count("Plotly.newPlot(") >= 4
    assert "b200" in page
    assert "<script src=" not in page
