"""Prices of hosted APIs: the dated list, one's own, and their cache discounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.deployment import Billing
from capacity.model import model_names
from capacity.planning.bills.cost import _apis, cost
from capacity.planning.bills.hosted_prices import api_price_list, find_api_prices, read_api_prices

CENT = 0.005

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
        cost("qwen3-8b", **load, api="A")
    bill = cost("qwen3-8b", **load, api="all")  # what is missing is said, and the bill stands
    assert bill.apis == ()
    assert any("The price list has no API price of qwen3-8b" in warning for warning in bill.warnings)


@pytest.mark.parametrize("model", model_names())
def test_all_listed_apis_of_every_preset(model: str) -> None:
    """Those that are listed, or one line that says what is missing; never an error."""
    found = find_api_prices(model, "all")
    assert {price.model for price in found} <= {model}
    assert (
        _apis(model, Billing(api="all"))[1] == ()
        if found
        else "The price list has no API price" in _apis(model, Billing(api="all"))[1][0]
    )


def test_every_listed_api_price_is_dated_sourced_and_of_a_known_model() -> None:
    for price in api_price_list():
        assert price.model in model_names()
        assert price.date.startswith("20")
        assert price.source
        assert 0 < price.usd_per_million_input <= price.usd_per_million_output


def test_a_provider_has_one_price_of_a_model_and_popular_models_have_several_providers() -> None:
    offers = [(price.provider, price.model) for price in api_price_list()]
    assert len(set(offers)) == len(offers)
    for model in ("llama-3.1-8b", "llama-3.3-70b", "gpt-oss-120b", "qwen3-32b", "deepseek-v3.2", "kimi-k2.6"):
        assert len(find_api_prices(model, "all")) >= 5, model


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
        ("A,m,-1,1,,,2026,s", "greater than or equal to 0"),
        ("A,m,1,inf,,,2026,s", "finite"),
        ("A,m,1,1,,,,s", "date is missing"),
        ("", "contains no price"),
    ],
)
def test_a_bad_api_price_list_is_refused(row: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "apis.csv"
    file.write_text(API_HEAD + row + "\n")
    with pytest.raises(MalformedFile, match=problem):
        read_api_prices(file)
