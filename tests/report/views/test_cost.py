"""The bill as tables and pictures: what has no value has no row, and what the bars say is the bill."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity import cost
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.drawing import draw_charts
from capacity.report.tables import render
from capacity.report.views.cost import bill_view

POOL: dict[str, Any] = {"gpu": "h100", "input_len": 500, "output_len": 100}


def test_a_bill_at_full_load_alone() -> None:
    bill = cost("llama-3.1-8b", **POOL, price="2.5")
    text = render(bill, "table")
    assert "$2.50" in text
    assert f"${730 * 2.5:,.2f}" in text
    for absent in ("at this load", "utilization", "users", "CO2", "Comparison with an API", "Batch job"):
        assert absent not in text


def test_each_part_that_is_wanted_has_a_table() -> None:
    bill = cost(
        "llama-3.1-8b", **POOL, price="2.5", request_rate=4.0, num_prompts=60, requests_per_user_hour=20,
        co2_g_per_kwh=400, api_input_price=0.2, api_output_price=0.6, interruptions_per_hour=0.5, documents=1000,
        deadline_hours=2,
    )  # fmt: skip
    text = render(bill, "table")
    for part in (
        "at this load",
        "utilization",
        "users",
        "g CO2",
        "Comparison with an API",
        "On spot capacity",
        "Batch job at full load",
    ):
        assert part in text
    assert bill.break_even is not None
    assert f"{bill.break_even.requests_per_s:,.3f}" in text


def test_whole_instances_are_named() -> None:
    bill = cost("llama-3.1-8b", **POOL, price_tier="on-demand", price_instance="p5.48xlarge")
    assert "8 billed (whole instances), 1 used" in render(bill, "table")


def test_a_day_and_a_thousand_requests() -> None:
    """Of a rate that a day is given as: what a day costs, over as many thousands of requests."""
    bill = cost("llama-3.1-8b", **POOL, price="2.5", requests_per_day=86_400, num_prompts=120)
    assert bill.served is not None
    assert bill.served.requests_per_day == 86_400
    assert bill.served.usd_per_thousand_requests == bill.usd_per_day / 86.4 == 60 / 86.4
    text = render(bill, "table")
    for part in ("$60.00", "86,400", f"{60 / 86.4:.4f}", "GPU time for input tokens"):
        assert part in text


def test_a_job_that_may_wait_by_batch_api_and_in_idle_hours() -> None:
    bill = cost(
        "llama-3.1-8b", gpu="h100", price="2", input_len=800, output_len=100, documents=200_000, deadline_hours=6.0,
        api_input_price=1.0, api_output_price=4.0, batch_api="openai,deepseek-off-peak", idle_hours_per_day=2.0,
    )  # fmt: skip
    text = render(bill, "table")
    assert "24 h, too late" in text
    assert "openai: 2026-11 (" in text
    assert "% busy" in text
    assert bill.idle is not None
    assert f"{bill.idle.kwh:,.1f} kWh" in text


def test_bill_energy_rows_share_one_token_basis_and_are_called_provisioned() -> None:
    bill = cost("llama-3.1-8b", **POOL, price="2.5", request_rate=4.0, num_prompts=60, random_range_ratio=0)
    assert bill.served is not None
    joules_of_a_million_s = bill.watts / bill.served.output_tokens_per_s * 1e6
    assert bill.served.kwh_per_million_output_tokens * 3.6e6 == pytest.approx(joules_of_a_million_s)
    text = render(bill, "table")
    for label in (
        "provisioned power",
        "provisioned J per output token",
        "provisioned kWh per 1M output tokens",
    ):
        assert label in text
    assert f"{bill.served.kwh_per_million_output_tokens:,.4f}" in text


@pytest.fixture(scope="module")
def bill() -> capacity.Bill:
    return capacity.cost(
        "llama-3.1-8b", gpu="h100", input_len=200, output_len=20, num_prompts=200, request_rate=4.0, price="2.50",
        api_input_price=0.5, api_output_price=1.0,
    )  # fmt: skip


def test_a_price_at_full_load_is_never_above_the_one_as_served(bill: capacity.Bill) -> None:
    rows = {row["$ per 1M"]: row for row in answer_charts(bill)[0].rows}
    assert rows["output"]["at full load"] <= rows["output"]["at this load"]
    assert rows["blended"]["at this load"] == pytest.approx(bill.served.usd_per_million_tokens, rel=5e-3)


def test_a_month_is_730_hours_beside_the_api(bill: capacity.Bill) -> None:
    _, month = answer_charts(bill)
    own, api = month.rows
    assert own["bill"] == f"this deployment, ${730 * 2.50:,.0f}"
    assert own["$ a month"] == pytest.approx(730 * 2.50, rel=5e-3)
    assert api["bill"].startswith("the API, $")
    assert month.alt.startswith(f"this deployment, ${730 * 2.50:,.0f} and the API, $")


def test_whiskers_of_prices_go_from_the_cheapest_to_the_dearest_offer(bill: capacity.Bill) -> None:
    price, month = draw_charts(bill_view(bill, (1.25, 7.5)), bill)
    own, _ = month.figure.data[0].x
    assert own == pytest.approx(730 * 2.50)
    assert own + month.figure.data[0].error_x.array[0] == pytest.approx(730 * 7.5)
    assert own - month.figure.data[0].error_x.arrayminus[0] == pytest.approx(730 * 1.25)
    assert month.figure.data[0].customdata[0] == "$1,825 ($912 to $5,475)"
    assert month.figure.layout.xaxis.range[1] > 730 * 7.5
    assert "most expensive offer" in price.title
