"""Differences in cost: closed forms, paired and independent errors, and the break-even load."""

from __future__ import annotations

import math

import pytest
from compared_sides import RATE, SLO, side

from capacity.planning.variations.compared_side import ComparedSide
from capacity.planning.variations.deployment_comparison import (
    DeploymentComparison,
    compare_deployments,
)


def test_identical_sides_differ_by_0_with_an_interval_of_width_0(four_sides: DeploymentComparison) -> None:
    same = four_sides.differences[0]
    for change in (same.bill, same.per_request):
        assert (change.value, change.low, change.high) == (0, 0, 0)
    assert (same.cheaper_probability, same.equal_probability) == (0.0, 1.0)
    assert (same.break_even_below, same.break_even_above) == (None, None)
    assert "B costs the same as A (90 % interval: 0% to 0%)" in four_sides.verdict


def test_half_the_price_is_half_the_cost_in_every_draw(four_sides: DeploymentComparison) -> None:
    half = four_sides.differences[1]
    for change in (half.bill, half.per_request):
        assert (change.value, change.low, change.high) == pytest.approx((-0.5, -0.5, -0.5))
    assert (half.cheaper_probability, half.equal_probability) == (1.0, 0.0)
    assert "C is 50% cheaper than A (90 % interval: 50% to 50%)" in four_sides.verdict


def test_bill_and_interval_follow_from_replicas_and_capacity(four_sides: DeploymentComparison) -> None:
    for each, price in zip(four_sides.sides, (4, 4, 2, 9), strict=True):
        assert each.needed is not None
        assert math.ceil(RATE / each.load_per_replica) == each.needed.replicas
        assert each.needed.usd_per_hour == price * each.needed.replicas
        assert each.usd_per_hour_at(RATE, each.load_per_replica) == each.needed.usd_per_hour
    first, last, other = four_sides.sides[0], four_sides.sides[3], four_sides.differences[2]
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


def test_cheaper_side_changes_across_the_break_even(four_sides: DeploymentComparison) -> None:
    first, second = four_sides.sides[0], four_sides.sides[3]
    change = four_sides.differences[2]

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
