"""The bill of a deployment: at full load, as served, and what it refuses."""

from __future__ import annotations

import math

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Billing
from capacity.hardware.pricing import Price
from capacity.planning.bills.billing import Rates, billed_gpus, load_cost
from capacity.planning.bills.cost import cost


def price_of(usd: float, instance: int = 1) -> Price:
    return Price(
        gpu="h100-sxm-80gb", provider="p", product="n", tier="on-demand", usd_per_gpu_hour=usd,
        gpus_per_instance=instance, date="2026-11-01", source="test",
    )  # fmt: skip


def test_whole_nodes_are_billed() -> None:
    assert billed_gpus(price_of(2, 8), 1) == 8
    assert billed_gpus(price_of(2, 8), 9) == 16
    bill = cost(
        "llama-3.1-8b",
        gpu="h100",
        price_tier="on-demand",
        price_instance="p5.48xlarge",
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


def test_interruptions_at_a_price_that_is_not_interrupted_are_said() -> None:
    load = {"gpu": "h100", "input_len": 500, "output_len": 100, "interruptions_per_hour": 0.1}
    assert any(
        "--price-tier spot" in text for text in cost("llama-3.1-8b", price_tier="on-demand", **load).warnings
    )
    assert not any(
        "--price-tier" in text for text in cost("llama-3.1-8b", price_tier="spot", **load).warnings
    )


def test_overloaded_cost_names_replicas_needed_and_prices_nothing_below_full_load() -> None:
    """2,000 chat users on one engine: no served price below full load, APIs at the load that is offered."""
    bill = cost(
        "llama-3.3-70b", gpu="h100", tensor_parallel_size=4, use_case="chat", users=2000,
        price_tier="on-demand", api="all",
    )  # fmt: skip
    assert bill.verdict == "overloaded"
    assert not bill.serves
    assert bill.served is not None
    assert bill.utilization is not None
    assert bill.utilization <= 1
    for name in ("usd_per_request", "usd_per_million_input_tokens", "usd_per_million_output_tokens"):
        assert getattr(bill.served, name) >= getattr(bill.full, name)
    assert bill.needed is not None
    assert bill.needed.within_slo is None  # an empty engine is too slow for the p99 TTFT
    stable = bill.needed.stable
    assert stable is not None
    assert stable.replicas == 8
    for api in bill.apis:
        assert api.api_usd_per_month == pytest.approx(api.api_usd_per_request * 2000 / 30 * 730 * 3600)
        assert api.own_usd_per_month == stable.usd_per_month


def test_cost_checks_service_levels_of_use_case_and_slo() -> None:
    asked = {"gpu": "h100", "use_case": "chat", "users": 120, "price": "3"}
    own = cost("llama-3.1-8b", **asked)
    assert [level.slo for level in own.levels] == ["ttft:p99:450ms", "tpot:p99:40ms"]
    assert own.serves
    strict = cost("llama-3.1-8b", slo="ttft:p99:1ms", **asked)
    assert strict.verdict == "stable"
    assert not strict.serves
    with pytest.raises(InvalidInput, match="--slo needs a load"):
        cost("llama-3.1-8b", slo="ttft:p99:1ms", gpu="h100", price="3", input_len=100, output_len=10)


def test_input_token_price_does_not_fall_with_utilization() -> None:
    """The bill is split as at full load, so an idle server makes every token dearer by the same factor."""
    bill = cost(
        "llama-3.1-70b", gpu="h100", tensor_parallel_size=4, price="3.9", input_len=1024, output_len=256,
        random_range_ratio=0.0, request_rate=2,
    )  # fmt: skip
    assert bill.served is not None
    dearer = bill.full.requests_per_s / bill.served.requests_per_s
    for name in ("usd_per_million_input_tokens", "usd_per_million_output_tokens"):
        assert getattr(bill.served, name) == pytest.approx(getattr(bill.full, name) * dearer)
