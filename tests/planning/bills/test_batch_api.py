"""A job that may wait: batch APIs at their discount, GPUs rented for it, and idle hours, against closed forms."""

from __future__ import annotations

import re
from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Billing
from capacity.planning.bills.batch_api import IdleJob, batch_prices, find_batch_prices, idle_job
from capacity.planning.bills.billing import Rates
from capacity.planning.bills.hosted_prices import find_api_prices

JOB: dict[str, Any] = {
    "gpu": "h100", "price": "2", "input_len": 800, "output_len": 100, "documents": 200_000, "deadline_hours": 24.0,
}  # fmt: skip


def test_every_discount_has_its_source_and_date() -> None:
    for name, price in batch_prices().items():
        assert price.name == name
        assert re.fullmatch(r"20\d\d-\d\d", price.date)
        assert len(price.source) > 20
    assert find_batch_prices("all") == tuple(batch_prices().values())
    assert [price.name for price in find_batch_prices("openai, Google")] == ["openai", "google"]
    with pytest.raises(UnknownName, match="openai"):
        find_batch_prices("opena")


def test_a_listed_price_takes_its_own_providers_discount() -> None:
    bill = capacity.cost("llama-3.1-8b", **JOB, api="all", batch_api="all")
    (listed,) = find_api_prices("llama-3.1-8b", "DeepInfra")
    assert {cost.discount for cost in bill.batch_apis} == {"deepinfra", "groq"}  # those that list the model
    (found,) = (cost for cost in bill.batch_apis if cost.discount == "deepinfra")
    assert found.usd_per_document == pytest.approx(0.8 * listed.usd_per_request(800, 100, 0.0))
    assert found.usd == pytest.approx(found.usd_per_document * 200_000)
    assert bill.job is not None
    own = found.own_usd_per_document
    assert own.value == bill.job.usd_per_document
    assert own.low < own.value < own.high  # type: ignore[operator]
    assert found.in_time


def test_a_given_price_takes_the_discounts_that_are_named() -> None:
    given = {"api_input_price": 1.0, "api_output_price": 10.0}
    bill = capacity.cost("llama-3.1-8b", **JOB, **given, batch_api="openai,moonshot,deepseek-off-peak")
    usual = (800 * 1.0 + 100 * 10.0) / 1e6
    assert [cost.discount for cost in bill.batch_apis] == ["openai", "deepseek-off-peak", "moonshot"]
    for cost, multiple in zip(bill.batch_apis, (0.5, 0.5, 0.6), strict=True):
        assert cost.usd_per_document == pytest.approx(multiple * usual)
        assert cost.break_even_utilization == pytest.approx(
            cost.own_usd_per_document.value / (multiple * usual)
        )
    short = capacity.cost(
        "llama-3.1-8b", **{**JOB, "deadline_hours": 6.0}, **given, batch_api="openai,deepseek-off-peak"
    )
    assert [cost.in_time for cost in short.batch_apis] == [False, True]
    dear = capacity.cost("llama-3.1-8b", **{**JOB, "price": "900"}, **given, batch_api="openai")
    assert dear.batch_apis[0].break_even_utilization is None


def test_at_the_break_even_utilization_rented_gpus_cost_as_much() -> None:
    bill = capacity.cost("llama-3.1-8b", **JOB, api_input_price=0.5, api_output_price=1.5, batch_api="google")
    (found,) = bill.batch_apis
    assert found.break_even_utilization is not None
    rate = bill.full.requests_per_s * found.break_even_utilization
    assert bill.usd_per_hour / 3600 / rate == pytest.approx(found.usd_per_document)


def test_idle_hours() -> None:
    def idle(hours: float, deadline_hours: float) -> IdleJob:
        billing = Billing(idle_hours_per_day=8, documents=round(3600 * hours), deadline_hours=deadline_hours)
        rates = Rates(requests_per_s=1.0, input_tokens=800, output_tokens=100, prefill_share=0.5)
        found = idle_job(billing, rates, watts=1500.0, usd_per_hour=4.0)
        assert found is not None
        return found

    job = idle(20.0, 72.0)
    assert job.days == pytest.approx(2 + 4 / 24)  # two whole nights, and four hours of the third
    assert job.in_time
    assert (job.kwh, job.usd_paid_anyway) == pytest.approx((30.0, 80.0))
    assert idle(8.0, 8.0).days == pytest.approx(8 / 24)
    assert not idle(8.1, 24.0).in_time
    bill = capacity.cost("llama-3.1-8b", **JOB, idle_hours_per_day=24.0)
    assert bill.idle is not None
    assert bill.idle.days * 24 == pytest.approx(200_000 / bill.full.requests_per_s / 3600)


def test_without_a_price_or_a_name_it_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--batch-api needs an API price"):
        capacity.cost("llama-3.1-8b", **JOB, batch_api="openai")
    with pytest.raises(InvalidInput, match="name one discount"):
        capacity.cost("llama-3.1-8b", **JOB, batch_api="all", api_input_price=1.0, api_output_price=1.0)
    none = capacity.cost("tinyllama-1.1b", **JOB, batch_api="all", api="all")
    assert none.batch_apis == ()
    assert any("API price" in line for line in none.warnings)
