"""The display currency: amounts and headings are converted, records stay in US dollars, wrong input is one line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.base.money import (
    USD,
    convert_amounts,
    currency_codes,
    currency_note,
    display_currency,
    find_currency,
    money_text,
    usd_text,
    use_currency,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("code", [code for code in currency_codes() if code != "USD"])
def test_amount_times_the_rate_is_the_amount_in_dollars(code: str) -> None:
    currency = find_currency(code.lower())
    assert currency.code == code
    with use_currency(code):
        shown = money_text(12345.678, ",.9f")
        assert currency_note().startswith(
            f"amounts in {code} at {currency.rate:.6g} US dollars per {code} (ECB"
        )
        assert re.search(r" of \d{4}-\d\d-\d\d\)$", currency_note())
    assert shown.startswith(currency.symbol)
    amount = float(shown.removeprefix(currency.symbol).replace(",", ""))
    assert amount * currency.rate == pytest.approx(12345.678)
    assert usd_text(12345.678) == money_text(12345.678) == "$12,345.68"
    assert currency_note() == ""


def test_published_rates_are_dollars_for_one_unit() -> None:
    """ECB reference rates of 2026-05-08: 1 EUR = 1.1761 USD = 184.37 JPY."""
    assert find_currency("EUR").rate == 1.1761
    assert find_currency("JPY").rate == pytest.approx(1.1761 / 184.37)
    assert find_currency("USD") is USD


def test_own_rate_replaces_the_published_one() -> None:
    assert find_currency("EUR=1.08").rate == 1.08
    assert find_currency("EUR=1.08").source == "your own rate"
    own = find_currency("sek=0.1")  # a currency without a published rate
    assert (own.code, own.text(1.0, ".2f")) == ("SEK", "SEK 10.00")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("XYZ", "use one of USD, EUR, GBP, .*, or give a rate, as SEK=0.11"),
        ("euro", "use one of"),
        ("", "use one of"),
        ("=2", "use one of"),
        ("EUR=", "the rate must be a positive number of US dollars, from 1e-6 to 1e6, as EUR=1.08"),
        ("EUR=x", "positive number"),
        ("EUR=0", "positive number"),
        ("EUR=-1", "positive number"),
        ("EUR=nan", "positive number"),
        ("EUR=inf", "positive number"),
        ("EUR=1e-300", "from 1e-6"),
        ("USD=2", "the rate of USD is 1"),
    ],
)
def test_wrong_currency_is_rejected_in_one_line(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        find_currency(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("code", ["EUR", "CAD", "AUD", "SGD", "CHF"])
def test_texts_of_records_are_converted_when_they_are_shown(code: str) -> None:
    with use_currency(f"{code}=0.5"):
        symbol = display_currency().symbol
        shown = convert_amounts("$/h: $1,234.50 (up to $3), $ per 1M<br>$ a month")
        unit = symbol.strip()
        assert shown == f"{unit}/h: {symbol}2,469.00 (up to {symbol}6), {unit} per 1M<br>{unit} a month"
        assert convert_amounts(shown) == shown
        command = """ollama create x -f "$(dirname "$0")/Modelfile" --token '$1' $HF_TOKEN ${A}"""
        assert convert_amounts(command) == command


def test_in_currency_changes_what_an_answer_shows_and_not_its_fields() -> None:
    answer = capacity.cost("llama-3.1-8b", gpu="h100", input_len=64, output_len=8, request_rate=1, price="2")
    plain, record = str(answer), answer.to_dict()
    with capacity.use_currency("EUR=0.5"):
        assert "€4.00 per GPU-hour" in str(answer)
        assert "$" not in str(answer) + answer._repr_html_() + repr(answer)
        assert answer.to_dict() == record
    assert str(answer) == plain
    assert "$2.00 per GPU-hour" in plain


def test_concurrent_threads_keep_their_own_currency() -> None:
    from threading import Thread

    seen: list[str] = []
    with use_currency("EUR=1"):
        thread = Thread(target=lambda: seen.append(money_text(1)))
        thread.start()
        thread.join()
        assert (money_text(1), seen) == ("€1.00", ["$1.00"])


def formatted_dollars(code: str) -> Iterator[int]:
    """Yield the lines at which a text has a dollar sign before a replacement field: `f"${usd:.2f}"`, `"${:.2f}"`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "${:" in node.value:
            yield node.lineno
        elif isinstance(node, ast.JoinedStr):
            for text, field in pairwise(node.values):
                signs = isinstance(text, ast.Constant) and str(text.value).endswith("$")
                if signs and isinstance(field, ast.FormattedValue):
                    yield node.lineno


def test_amounts_are_formatted_in_one_place() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in ("capacity", "app", "validate")
        for path in sorted(ROOT.joinpath(package).rglob("*.py"))
        for line in formatted_dollars(path.read_text(encoding="utf-8"))
    ]
    assert not places, "use money_text or usd_text of capacity.base.money"


def test_formatted_dollars_are_found() -> None:
    code = 'x = f"{y} ${y:,.2f}"\nz = "${:,.2f}/h"\nw = "$ per hour"\nv = f"$ {y} ${{A}}"\n'
    assert list(formatted_dollars(code)) == [1, 2]
