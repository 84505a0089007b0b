"""The currency of the sidebar: every amount, heading and download of a page, with the rate under the selector."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from capacity.base.money import find_currency

Open = Callable[..., Any]
LOAD = {"rate": "2", "tier": "on-demand"}


def amounts(opened: Any) -> dict[str, float]:
    """The amounts of the key metrics by their labels without the symbol."""
    return {
        label.lstrip("$£ "): float(value[1:].removesuffix("/h").replace(",", ""))
        for label, value in opened.kpis.items()
        if value[:1] in ("$", "£")
    }


def test_amounts_times_the_rate_are_those_in_dollars(dashboard: Open) -> None:
    dollars, pounds = (dashboard("cost", **LOAD, currency=currency).settled() for currency in ("USD", "GBP"))
    assert pounds.refusals == []
    rate = find_currency("GBP").rate
    assert amounts(dollars)
    assert amounts(pounds) == {
        label: pytest.approx(usd / rate, rel=0.01, abs=0.005) for label, usd in amounts(dollars).items()
    }
    assert not any("$" in label + value for label, value in pounds.kpis.items())
    assert not any("amounts in" in caption.value for caption in dollars.at.sidebar.caption)
    assert any(
        f"amounts in GBP at {rate:.6g} US dollars per GBP" in caption.value
        for caption in pounds.at.sidebar.caption
    )


def test_charts_and_tables_have_the_symbol_of_the_currency(dashboard: Open) -> None:
    opened = dashboard("cost", **LOAD, currency="JPY").settled()
    figures = [json.loads(chart.proto.spec) for chart in opened.at.get("plotly_chart")]
    axes = [figure["layout"]["xaxis"]["title"]["text"] for figure in figures]
    assert "¥ per 1M tokens" in axes
    assert not any("$" in str(heading) for frame in opened.at.dataframe for heading in frame.value)


def test_selector_changes_the_page_and_back(dashboard: Open) -> None:
    opened = dashboard("estimate", **LOAD).settled()
    before = opened.kpis
    opened.inputs()["currency"].set_value("EUR").run()
    assert any(value.startswith("€") for value in opened.kpis.values())
    opened.inputs()["currency"].set_value("USD").run()
    assert opened.kpis == before


def test_unknown_currency_of_a_link_is_reported(dashboard: Open) -> None:
    opened = dashboard("cost", **LOAD, currency="XYZ").settled()
    assert opened.inputs()["currency"].value == "USD"
    assert any("currency" in message for message in opened.refusals)
