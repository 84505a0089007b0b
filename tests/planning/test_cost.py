"""The bill of a deployment: at full load, as served, and what it refuses."""

from __future__ import annotations

import math

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Billing
from capacity.hardware.pricing import Price
from capacity.planning.billing import Rates, billed_gpus, load_cost
from capacity.planning.cost import cost


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
