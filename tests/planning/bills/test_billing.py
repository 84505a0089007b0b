"""The bill: identities to the cent, the literature's examples, break-even, spot and batch jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity import estimate
from capacity.answers.records import ReplicaCount, ReplicasNeeded
from capacity.base.errors import InvalidInput
from capacity.deployment import Billing
from capacity.hardware.pricing import Price
from capacity.planning.bills.batch_api import batch_job, spot_cost
from capacity.planning.bills.billing import Bill, Rates, ServedRun, break_even, growth_months, make_bill
from capacity.planning.bills.hosted_prices import ApiPrice

CENT = 0.005


def price_of(usd: float, instance: int = 1) -> Price:
    return Price(
        gpu="h100-sxm-80gb", provider="p", product="n", tier="on-demand", usd_per_gpu_hour=usd,
        gpus_per_instance=instance, date="2026-11-01", source="test",
    )  # fmt: skip


LOADS = st.builds(
    Rates,
    requests_per_s=st.floats(0.001, 1e4),
    input_tokens=st.floats(1, 1e5),
    output_tokens=st.floats(1, 1e4),
    prefill_share=st.floats(0, 1),
)


@given(
    usd=st.floats(0.01, 100),
    gpus=st.integers(1, 8),
    replicas=st.integers(1, 20),
    full=LOADS,
    instance=st.sampled_from((1, 2, 8)),
)
def test_parts_sum_to_the_whole(usd: float, gpus: int, replicas: int, full: Rates, instance: int) -> None:
    billing = Billing(replicas=replicas, requests_per_user_hour=10)
    bill = make_bill(
        price_of(usd, instance),
        billing,
        deployment="d",
        gpus_per_replica=gpus,
        watts_per_gpu=1000,
        full=full,
        served=full,
    )
    assert bill.usd_per_month == pytest.approx(bill.usd_per_hour * 730, abs=CENT)
    assert bill.usd_per_hour == pytest.approx(usd * bill.billed_gpus)
    assert bill.billed_gpus % instance == 0
    assert 0 <= bill.billed_gpus - bill.num_gpus < instance
    load = bill.full
    hour_s = 3600
    requests = full.requests_per_s * hour_s
    tokens_in, tokens_out = requests * full.input_tokens, requests * full.output_tokens
    assert load.usd_per_request * requests == pytest.approx(bill.usd_per_hour)
    of_tokens = (
        tokens_in * load.usd_per_million_input_tokens + tokens_out * load.usd_per_million_output_tokens
    )
    assert of_tokens / 1e6 == pytest.approx(bill.usd_per_hour)
    assert (tokens_in + tokens_out) * load.usd_per_million_tokens / 1e6 == pytest.approx(bill.usd_per_hour)
    assert load.users is not None
    assert load.usd_per_user_month is not None
    assert load.users * load.usd_per_user_month == pytest.approx(bill.usd_per_month)
    assert load.kwh_per_million_tokens * (tokens_in + tokens_out) / 1e6 == pytest.approx(bill.watts / 1e3)
    assert load.joules_per_output_token * load.output_tokens_per_s == pytest.approx(bill.watts)


def test_the_daily_cost_of_the_literature_and_what_batching_makes_of_it() -> None:
    """7B, 500 tokens a request, 10,000 requests a day, one $3 GPU at 100 tok/s: 13.89 GPU-hours, $41.67, $0.0083/1k."""
    tokens = 500 * 10_000
    hours = tokens / 100 / 3600
    assert hours == pytest.approx(13.89, abs=0.005)
    assert hours * 3 == pytest.approx(41.67, abs=CENT)
    assert hours * 3 / tokens * 1000 == pytest.approx(0.0083, abs=0.00005)
    batched = estimate("llama-2-7b", gpu="h100", input_len=250, output_len=250, concurrency=64, price="3")
    rate = batched.output_tokens_per_s.value
    assert rate > 20 * 100  # the 100 tok/s are one user's
    assert tokens / 2 / rate / 3600 * 3 < 41.67 / 20


def test_break_even_is_where_the_bills_are_equal() -> None:
    billing = Billing(
        api_input_price=0.5, api_output_price=1.5, api_cached_fraction=0.5, api_cached_multiple=0.1
    )
    full = Rates(requests_per_s=10, input_tokens=1000, output_tokens=200, prefill_share=0.3)
    served = Rates(requests_per_s=2, input_tokens=1000, output_tokens=200, prefill_share=0.3)
    bill = make_bill(
        price_of(2.0),
        billing,
        deployment="d",
        gpus_per_replica=1,
        watts_per_gpu=1000,
        full=full,
        served=served,
    )
    found = bill.break_even
    assert found is not None
    assert found.api_usd_per_request == pytest.approx((1000 * 0.55 * 0.5 + 200 * 1.5) / 1e6)
    assert found.requests_per_month * found.api_usd_per_request == pytest.approx(bill.usd_per_month, abs=CENT)
    assert found.api_usd_per_month == pytest.approx(found.api_usd_per_request * 2 * 730 * 3600)
    assert found.possible == (found.requests_per_s <= 10)
    assert found.tokens_per_month == pytest.approx(found.requests_per_month * 1200)
    with pytest.raises(InvalidInput, match="two parts: give both"):
        make_bill(
            price_of(2.0), Billing(api_input_price=1.0), deployment="d", gpus_per_replica=1, watts_per_gpu=1,
            full=full, served=None,
        )  # fmt: skip


def test_spot_pays_for_its_restarts() -> None:
    billing = Billing(replicas=10, interruptions_per_hour=0.5, restart_s=1800)
    found = spot_cost(price_of(1.0), billing, 2)
    assert found is not None
    assert found.useful_fraction == pytest.approx(0.8)
    assert found.usd_per_useful_hour == pytest.approx(25.0)
    assert found.replicas_for_same_capacity == 13
    assert found.usd_per_hour_for_same_capacity == pytest.approx(26.0)
    calm = spot_cost(price_of(1.0), Billing(replicas=10, interruptions_per_hour=0), 2)
    assert calm is not None
    assert (calm.useful_fraction, calm.replicas_for_same_capacity) == (1.0, 10)


@given(documents=st.integers(1, 10**7), deadline=st.floats(0.1, 1000), rate=st.floats(0.01, 100))
def test_a_batch_job_is_done_by_its_deadline_with_the_fewest(
    documents: int, deadline: float, rate: float
) -> None:
    full = Rates(requests_per_s=rate, input_tokens=1000, output_tokens=100, prefill_share=0.5)
    job = batch_job(price_of(2.0), Billing(documents=documents, deadline_hours=deadline), 4, full)
    assert job is not None
    assert job.hours <= deadline * (1 + 1e-6)
    if job.replicas > 1:
        assert documents / (rate * 3600 * (job.replicas - 1)) > deadline * (1 - 1e-6)
    assert job.usd == pytest.approx(job.gpu_hours * 2.0)
    assert job.usd_per_document * documents == pytest.approx(job.usd)


def test_energy_and_traffic_of_a_load_by_hand() -> None:
    """8 GPUs at 1,000 W and 2 requests/s of 300 + 100 tokens."""
    load = Rates(requests_per_s=2.0, input_tokens=300, output_tokens=100, prefill_share=0.25)
    bill = make_bill(
        price_of(2.0),
        Billing(replicas=2, co2_g_per_kwh=500.0, requests_per_user_hour=4.0),
        deployment="d",
        gpus_per_replica=4,
        watts_per_gpu=1000,
        full=load,
        served=None,
    )
    assert bill.watts == 8000
    assert bill.usd_per_day == 16 * 24
    assert bill.full.usd_per_thousand_requests == pytest.approx(16 / 7200 * 1000)
    assert bill.full.requests_per_day == 172_800
    assert bill.full.output_tokens_per_s == 200
    assert bill.full.joules_per_output_token == 40
    assert bill.full.kwh_per_million_output_tokens == pytest.approx(40e6 / 3.6e6)
    assert bill.full.kwh_per_million_tokens == pytest.approx(10e6 / 3.6e6)
    assert bill.full.output_tokens_per_s_per_megawatt == pytest.approx(25_000)
    assert bill.full.co2_g_per_million_tokens == pytest.approx(500 * 10e6 / 3.6e6)
    assert bill.full.users == 1800
    assert bill.full.usd_per_user_month == pytest.approx(16 / 7200 * 4 * 730)
    assert bill.utilization is None


@pytest.mark.parametrize(
    ("verdict", "serves"), [("stable", True), ("saturated", True), ("overloaded", False)]
)
def test_an_overloaded_deployment_does_not_serve_the_load(verdict: Any, serves: bool) -> None:
    load = Rates(requests_per_s=2.0, input_tokens=300, output_tokens=100, prefill_share=0.25)
    sides = {"deployment": "d", "gpus_per_replica": 1, "watts_per_gpu": 1000, "full": load, "served": load}
    bill = make_bill(price_of(2.0), Billing(), run=ServedRun(verdict=verdict), **sides)
    assert bill.serves is serves


def test_interruptions_lengthen_a_batch_job() -> None:
    """An hour lost in two, by one interruption an hour of an hour each: half the documents an hour."""
    full = Rates(requests_per_s=20.0, input_tokens=1, output_tokens=1, prefill_share=0.5)
    asked = {"documents": 720_000, "deadline_hours": 20.0, "replicas": 2}
    plain = batch_job(price_of(2.0), Billing(**asked), 1, full)
    lost = batch_job(price_of(2.0), Billing(**asked, interruptions_per_hour=1.0, restart_s=3600.0), 1, full)
    assert plain is not None
    assert lost is not None
    assert (plain.replicas, plain.hours) == (1, pytest.approx(20.0))
    assert (lost.replicas, lost.hours) == (2, pytest.approx(20.0))


def test_a_free_api_has_no_break_even() -> None:
    load = Rates(requests_per_s=1.0, input_tokens=300, output_tokens=100, prefill_share=0.25)
    free = ApiPrice(
        model="m", usd_per_million_input=0.0, usd_per_million_output=0.0, source="test",
        cached_multiple=1.0, cache_write_multiple=1.0,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="free API has no break-even"):
        break_even(2.0, load, load, free)


def test_gpus_that_serve_exactly_the_break_even_load_can_serve_it() -> None:
    load = Rates(requests_per_s=1.0, input_tokens=300, output_tokens=100, prefill_share=0.25)
    api = ApiPrice(
        model="m", usd_per_million_input=1.0, usd_per_million_output=2.0, source="test",
        cached_multiple=1.0, cache_write_multiple=1.0,
    )  # fmt: skip
    found = break_even(2.0, load, load, api)
    assert break_even(2.0, load, replace(load, requests_per_s=found.requests_per_s), api).possible


def replicas_needed(usd_per_hour: float | None) -> ReplicasNeeded:
    """Six replicas of 5 requests/s."""
    six = ReplicaCount(
        replicas=6, tensor_parallel_size=1, num_gpus=6, billed_gpus=6, usd_per_hour=usd_per_hour,
        usd_per_month=None, requests_per_s_per_replica=5.0,
    )  # fmt: skip
    return ReplicasNeeded(
        requests_per_s=30.0, busiest_requests_per_s=None, slos=(), confidence=0.9, stable=six,
        within_slo=None, reason=None,
    )  # fmt: skip


def compared_with_an_api(
    usd_per_request: float, run: ServedRun, needed: ReplicasNeeded | None = None
) -> Bill:
    """Two replicas for $2/h each serve 10 requests/s at most and 8 now; the API charges for output tokens."""
    full = Rates(requests_per_s=10.0, input_tokens=300, output_tokens=100, prefill_share=0.25)
    prices = {"api_input_price": 0.0, "api_output_price": usd_per_request * 1e4}
    return make_bill(
        price_of(2.0), Billing(replicas=2, **prices), deployment="d", gpus_per_replica=1, watts_per_gpu=1000,
        full=full, served=replace(full, requests_per_s=8.0), run=run, needed=needed,
    )  # fmt: skip


OVERLOADED = ServedRun(verdict="overloaded", offered_requests_per_s=30.0)


@pytest.mark.parametrize(("break_even_rate", "possible"), [(20.0, True), (40.0, False)])
def test_an_overloaded_deployment_is_compared_with_enough_replicas(
    break_even_rate: float, possible: bool
) -> None:
    """Six replicas for $12/h serve 30 requests/s."""
    usd_per_request = 12 / 3600 / break_even_rate
    found = compared_with_an_api(usd_per_request, OVERLOADED, replicas_needed(12.0)).break_even
    assert found is not None
    assert found.own_usd_per_month == pytest.approx(12 * 730)
    assert found.api_usd_per_month == pytest.approx(usd_per_request * 30 * 3600 * 730)
    assert found.requests_per_s == pytest.approx(break_even_rate)
    assert found.possible is possible


@pytest.mark.parametrize(
    ("run", "needed", "requests_per_s"),
    [
        (OVERLOADED, None, 30.0),
        (OVERLOADED, replicas_needed(None), 30.0),
        (ServedRun(verdict="overloaded"), replicas_needed(12.0), 8.0),
        (ServedRun(verdict="stable", offered_requests_per_s=30.0), replicas_needed(12.0), 8.0),
    ],
)
def test_an_api_is_compared_with_the_billed_replicas_without_a_larger_bill(
    run: ServedRun, needed: ReplicasNeeded | None, requests_per_s: float
) -> None:
    found = compared_with_an_api(0.001, run, needed).break_even
    assert found is not None
    assert found.own_usd_per_month == pytest.approx(4 * 730)
    assert found.api_usd_per_month == pytest.approx(0.001 * requests_per_s * 3600 * 730)


def test_a_load_that_almost_vanishes_keeps_one_replica() -> None:
    """After four months, 6 replicas x 0.001^4 are below the tolerance of the rounding."""
    billing = Billing(growth=-99.9, months=5)
    months = growth_months(price_of(2.0), billing, replicas_needed(12.0), 1)
    assert [month.replicas for month in months] == [6, 1, 1, 1, 1]
