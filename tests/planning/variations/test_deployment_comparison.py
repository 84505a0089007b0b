"""Deployments at equal served load within the SLO: closed forms, agreement with `curve`, unlike loads, and a side
that cannot serve."""

from __future__ import annotations

import math
from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.planning.variations.deployment_comparison import DeploymentComparison, compare_deployments
from capacity.report.figures.interactive import interactive_page

MODEL = "llama-3.1-8b"
TRAFFIC = {"input_len": 1024, "output_len": 256, "random_range_ratio": 0.0, "num_prompts": 300}
SLO = ("ttft:p95:500ms", "tpot:p95:50ms")
RATE = 60.0


def side(gpu: str = "h100", *, price: str = "4", rate: float = RATE, **pool: Any) -> dict[str, Any]:
    traffic = {**TRAFFIC, "request_rate": rate}
    return {"model": MODEL, "pools": [{"gpu": gpu, **pool}], "traffic": traffic, "cost": {"price": price}}


@pytest.fixture(scope="module")
def answer() -> DeploymentComparison:
    return compare_deployments([side(), side(), side(price="2"), side("b200", price="9")], slo=SLO)


def test_identical_sides_differ_by_0_with_an_interval_of_width_0(answer: DeploymentComparison) -> None:
    same = answer.differences[0]
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert (same.break_even_below_per_s, same.break_even_above_per_s) == (None, None)
    assert "B costs the same as A (90 % interval: 0% to 0%)" in answer.verdict


def test_half_the_price_is_half_the_bill_in_every_draw(answer: DeploymentComparison) -> None:
    half = answer.differences[1]
    assert (half.value, half.low, half.high, half.cheaper_probability) == (-0.5, -0.5, -0.5, 1.0)
    assert "C is 50% cheaper than A (90 % interval: 50% to 50%)" in answer.verdict


def test_replicas_bill_and_utilization_follow_from_the_capacity(answer: DeploymentComparison) -> None:
    for each in answer.sides:
        assert each.replicas == math.ceil(RATE / each.capacity_per_s)
        assert each.usd_per_hour_per_replica is not None
        assert each.usd_per_hour == pytest.approx(each.replicas * each.usd_per_hour_per_replica)
        assert each.utilization == pytest.approx(RATE / (each.replicas * each.capacity_per_s))
    other = answer.differences[2]
    assert other.low is not None
    assert other.high is not None
    assert other.low <= other.value <= other.high


def test_cheaper_side_changes_across_the_break_even(answer: DeploymentComparison) -> None:
    first, second = answer.sides[0], answer.sides[3]
    change = answer.differences[2]

    def difference(rate: float) -> float:
        bills = [
            math.ceil(rate / each.capacity_per_s) * (each.usd_per_hour_per_replica or 0.0)
            for each in (first, second)
        ]
        return bills[1] - bills[0]

    here = difference(RATE)
    ends = {
        change.break_even_below_per_s: 1 - 1e-6,
        change.break_even_above_per_s: 1 + 1e-6,
    }
    found = {rate: factor for rate, factor in ends.items() if rate is not None}
    assert found
    assert all(difference(rate * factor) * here < 0 for rate, factor in found.items())


def test_capacity_agrees_with_curve(answer: DeploymentComparison) -> None:
    for each, gpu in ((answer.sides[0], "h100"), (answer.sides[3], "b200")):
        curve = capacity.curve(MODEL, gpu=gpu, slo=SLO, replications=1, **TRAFFIC)  # type: ignore[arg-type]
        assert curve.highest == each.highest
        assert each.capacity_per_s == curve.highest.at_confidence


def test_side_that_cannot_serve_has_no_bill_and_no_difference() -> None:
    found = compare_deployments([side(), side("l4", max_model_len=8192)], slo=("ttft:p95:100ms",))
    assert found.sides[1].replicas is None
    assert found.sides[1].usd_per_hour is None
    assert found.differences == ()
    assert found.verdict.endswith("B cannot meet the SLO with any number of replicas.")


def test_unlike_loads_and_missing_slo_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="B: a different load than A"):
        compare_deployments([side(), side(rate=30.0)], slo=SLO)
    with pytest.raises(InvalidInput, match="needs an SLO"):
        compare_deployments([side(), side()])
    with pytest.raises(InvalidInput, match="2 to 4 deployments, not 1"):
        compare_deployments([side()], slo=SLO)


def test_interactive_page_has_every_side_and_loads_nothing(answer: DeploymentComparison) -> None:
    page = interactive_page(answer)
    assert page.count("Plotly.newPlot(") >= 4
    assert "b200" in page
    assert "<script src=" not in page
