"""`cost --growth`: replicas and bill of each month of a growing load, by its closed form."""

from __future__ import annotations

import math

import pytest

import capacity
from capacity.base.errors import CapacityError

LOAD = {"gpu": "h100", "input_len": 600, "output_len": 60, "num_prompts": 100, "price": "2"}


def test_months_follow_from_the_replicas_needed_now() -> None:
    bill = capacity.cost("llama-3.1-8b", request_rate=150, growth=25, months=8, **LOAD)
    assert bill.needed is not None
    assert bill.needed.needed is not None
    now, rate = bill.needed.needed.replicas, bill.needed.requests_per_s
    assert now > 1
    assert rate is not None
    assert [month.month for month in bill.growth] == list(range(1, 9))
    total = 0.0
    for at, month in enumerate(bill.growth):
        assert month.requests_per_s == pytest.approx(rate * 1.25**at, rel=1e-12)
        assert month.replicas == math.ceil(now * 1.25**at - 1e-9)
        assert month.requests_per_s / month.replicas <= rate / now * (1 + 1e-9)
        assert month.usd == pytest.approx(month.replicas * 2 * 730, rel=1e-12)
        total += month.usd
        assert month.total_usd == pytest.approx(total, rel=1e-12)
    assert "Growing load, 8 months: $" in str(bill)


def test_whole_instances_are_billed() -> None:
    asked = {
        **LOAD,
        "price": None,
        "price_tier": "on-demand",
        "price_provider": "AWS",
        "price_instance": "p5.48xlarge",
    }
    bill = capacity.cost("llama-3.1-8b", request_rate=20, growth=0, months=2, **asked)
    assert {month.billed_gpus for month in bill.growth} == {8}


def test_a_load_that_shrinks_keeps_one_replica() -> None:
    bill = capacity.cost("llama-3.1-8b", request_rate=2, growth=-50, months=6, **LOAD)
    assert {month.replicas for month in bill.growth} == {1}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"concurrency": 8, "growth": 5}, "needs a load with a request rate"),
        ({"request_rate": 2, "growth": -100}, "growth"),
        ({"request_rate": 2, "growth": 5, "months": 0}, "months"),
        ({"request_rate": 2, "growth": 5, "slo": "ttft:p95:1us"}, "no number of replicas"),
    ],
)
def test_what_has_no_growth_is_refused_in_one_line(asked: dict[str, object], said: str) -> None:
    with pytest.raises(CapacityError, match=said) as refused:
        capacity.cost("llama-3.1-8b", **{**LOAD, **asked})
    assert "\n" not in str(refused.value)
