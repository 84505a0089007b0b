"""Money as pictures: what the bars say is the bill."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.costs import month_chart, price_chart


@pytest.fixture(scope="module")
def bill() -> capacity.Bill:
    return capacity.cost(
        "llama-3.1-8b", gpu="h100", input_len=200, output_len=20, num_prompts=200, request_rate=4.0, price="2.50",
        api_input_price=0.5, api_output_price=1.0,
    )  # fmt: skip


def test_a_price_at_full_load_is_never_above_the_one_as_served(bill: capacity.Bill) -> None:
    served, full = price_chart(bill).rows
    assert (served["load"], full["load"]) == ("as served", "at full load")
    assert full["$ per 1M output"] <= served["$ per 1M output"]
    assert served["$ per 1M blended"] == bill.served.usd_per_million_tokens


def test_a_month_is_730_hours_beside_the_api(bill: capacity.Bill) -> None:
    own, api = month_chart(bill).rows
    assert own["$ a month"] == pytest.approx(730 * 2.50)
    assert api["bill"] == "the API"
    assert f"this deployment ${own['$ a month']:,.0f} a month" in month_chart(bill).alt
