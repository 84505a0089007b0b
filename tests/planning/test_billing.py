"""The bill: identities to the cent, the literature's examples, and what a bill refuses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity import estimate
from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.deployment import Billing
from capacity.hardware.pricing import Price, gpu_hours
from capacity.model import model_names
from capacity.planning.billing import Rates, batch_job, billed_gpus, load_cost, make_bill, spot_cost
from capacity.planning.cost import cost
from capacity.planning.hosted_prices import api_price_list, read_api_prices

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
    hours = gpu_hours(tokens, 100)
    assert hours == pytest.approx(13.89, abs=0.005)
    assert hours * 3 == pytest.approx(41.67, abs=CENT)
    assert hours * 3 / tokens * 1000 == pytest.approx(0.0083, abs=0.00005)
    batched = estimate("llama-2-7b", gpu="h100", input_len=250, output_len=250, concurrency=64, price="3")
    rate = batched.output_tokens_per_s.value
    assert rate > 20 * 100  # the 100 tok/s are one user's
    assert gpu_hours(tokens / 2, rate) * 3 < 41.67 / 20


def test_whole_nodes_are_billed() -> None:
    assert billed_gpus(price_of(2, 8), 1) == 8
    assert billed_gpus(price_of(2, 8), 9) == 16
    bill = cost(
        "llama-3.1-8b",
        gpu="h100",
        price_tier="on-demand",
        price_provider="AWS",
        input_len=500,
        output_len=100,
    )
    assert (bill.num_gpus, bill.billed_gpus) == (1, 8)
    assert (bill.provider, bill.product, bill.gpus_per_instance, bill.tier) == (
        "AWS",
        "p5.48xlarge",
        8,
        "on-demand",
    )
    assert bill.usd_per_month == pytest.approx(8 * 6.88 * 730)


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
    with pytest.raises(InvalidInput, match="two prices"):
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


def test_served_load_costs_more_than_full_load() -> None:
    bill = cost(
        "llama-3.1-8b", gpu="h100", price="2.5", input_len=500, output_len=100, request_rate=4.0, num_prompts=200,
        requests_per_user_hour=20, co2_g_per_kwh=400,
    )  # fmt: skip
    assert bill.served is not None
    assert bill.utilization is not None
    assert bill.served.requests_per_s == pytest.approx(4.0, rel=0.05)
    assert bill.served.usd_per_request * bill.utilization == pytest.approx(bill.full.usd_per_request)
    assert bill.full.co2_g_per_million_tokens == pytest.approx(bill.full.kwh_per_million_tokens * 400)
    double = cost(
        "llama-3.1-8b",
        gpu="h100",
        price="2.5",
        input_len=500,
        output_len=100,
        request_rate=4.0,
        num_prompts=200,
        replicas=2,
    )
    assert double.usd_per_hour == pytest.approx(5.0)
    assert double.full.requests_per_s == pytest.approx(2 * bill.full.requests_per_s)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="--price-tier"):
        cost("llama-3.1-8b", gpu="h100", input_len=500, output_len=100)
    with pytest.raises(InvalidInput, match="no load"):
        cost("llama-3.1-8b", gpu="h100", price="2")
    with pytest.raises(InvalidInput, match="both --documents"):
        cost("llama-3.1-8b", gpu="h100", price="2", input_len=500, output_len=100, documents=5)
    with pytest.raises(InvalidInput, match="above 0"):
        load_cost(
            1.0, 1.0, Rates(requests_per_s=0.0, input_tokens=1, output_tokens=1, prefill_share=0), Billing()
        )
    assert not math.isnan(
        cost("llama-3.1-8b", gpu="h100", price="0", input_len=9, output_len=1).full.usd_per_request
    )


API_COLUMNS = (
    "provider", "model", "usd_per_million_input", "usd_per_million_output", "cached_multiple", "cache_write_multiple",
    "date", "source",
)  # fmt: skip
API_HEAD = ",".join(API_COLUMNS) + "\n"


def test_an_api_price_list_with_cache_discounts(tmp_path: Path) -> None:
    """By hand: 1,000 in and 100 out at $1 and $4, half of it cached: 500 x 1.25 + 500 x 0.1 + 100 x 4 = 1,075."""
    file = tmp_path / "apis.csv"
    file.write_text(
        API_HEAD
        + "A,llama-3.1-8b,1,4,0.1,1.25,2026-11-01,its page\nB,llama-3.1-8b,2,2,,,2026-11-02,its page\n"
    )
    load = {"gpu": "h100", "price": "2", "input_len": 1000, "output_len": 100, "api_price_file": str(file)}
    first, second = cost("llama-3.1-8b", **load, api_cached_fraction=0.5).apis
    assert first.api_usd_per_request == pytest.approx(1075e-6)
    assert second.api_usd_per_request == pytest.approx(2200e-6)  # no discount is published: paid in full
    assert "2026-11-01" in first.api
    assert first.requests_per_month * first.api_usd_per_request == pytest.approx(2 * 730, abs=CENT)
    (uncached,) = cost("llama-3.1-8b", **load, api="a").apis
    assert uncached.api_usd_per_request == pytest.approx(
        1400e-6
    )  # nothing is written where nothing is cached
    with pytest.raises(UnknownName, match="from 'C'"):
        cost("llama-3.1-8b", **load, api="C")
    with pytest.raises(InvalidInput, match="no price of qwen3-8b"):
        cost("qwen3-8b", **load, api="all")


def test_every_listed_api_price_is_dated_sourced_and_of_a_known_model() -> None:
    for price in api_price_list():
        assert price.model in model_names()
        assert price.date.startswith("20")
        assert price.source
        assert 0 < price.usd_per_million_input <= price.usd_per_million_output


def test_a_published_discount_on_cached_input() -> None:
    """DeepSeek's own list: $0.27 per 1M of input, $0.07 where the cache hits, $1.10 of output."""
    (price,) = (
        price for price in api_price_list() if price.provider == "DeepSeek" and price.model == "deepseek-v3"
    )
    usd = price.usd_per_request(input_tokens=1e6, output_tokens=1e5, cached_fraction=0.6)
    assert usd == pytest.approx(0.4 * 0.27 + 0.6 * 0.07 + 0.11, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("A,m,x,1,,,2026,s", "usd_per_million_input is 'x'"),
        ("A,m,-1,1,,,2026,s", "at least 0"),
        ("A,m,1,inf,,,2026,s", "finite"),
        ("A,m,1,1,,,,s", "date is missing"),
        ("", "holds no price"),
    ],
)
def test_a_bad_api_price_list_is_refused(row: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "apis.csv"
    file.write_text(API_HEAD + row + "\n")
    with pytest.raises(MalformedFile, match=problem):
        read_api_prices(file)


def test_interruptions_at_a_price_that_is_not_interrupted_are_said() -> None:
    load = {"gpu": "h100", "input_len": 500, "output_len": 100, "interruptions_per_hour": 0.1}
    assert any(
        "--price-tier spot" in text for text in cost("llama-3.1-8b", price_tier="on-demand", **load).warnings
    )
    assert not any(
        "--price-tier" in text for text in cost("llama-3.1-8b", price_tier="spot", **load).warnings
    )
