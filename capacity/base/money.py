"""Amounts of money as text. Answers are in US dollars; what people read shows them in the display currency.

Texts in records contain dollars (`usd_text`); `convert_amounts` converts the amounts in them when they are shown.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from capacity.base.data_files import Table, read_data
from capacity.base.errors import InvalidInput

# an amount, or the sign in a heading; not a variable of a shell command
_DOLLARS = re.compile(r"""(?<![\w"'])\$(?:(\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?)|(?=[\s/<]|$))""")
_CODE = re.compile(r"[A-Z]{3}")
_RATES = 1e-6, 1e6  # US dollars for one unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Currency:
    """A currency in which amounts are shown; `rate`: US dollars for one unit of it, and `source` of the rate."""

    code: str = "USD"
    symbol: str = "$"
    rate: float = 1.0
    source: str = ""

    def text(self, usd: float, form: str) -> str:
        """Return an amount in US dollars as text in this currency, with the format specification `form`."""
        return f"{self.symbol}{usd / self.rate:{form}}"


USD = Currency()
_shown: ContextVar[Currency] = ContextVar("display currency", default=USD)


def display_currency() -> Currency:
    """Return the currency in which amounts are shown."""
    return _shown.get()


def set_display_currency(currency: Currency) -> None:
    """Show amounts in this currency from now on, in this thread."""
    _shown.set(currency)


@contextmanager
def use_currency(currency: str) -> Iterator[None]:
    """Show answers in this currency, such as `EUR` or `EUR=1.08` (US dollars per EUR), until the `with` block ends.

    Their fields stay in US dollars. Raises InvalidInput for an unknown currency or a rate that is not positive.
    """
    token = _shown.set(find_currency(currency))
    try:
        yield
    finally:
        _shown.reset(token)


def money_text(usd: float, form: str = ",.2f") -> str:
    """Return an amount in US dollars as text in the display currency."""
    return _shown.get().text(usd, form)


def usd_text(usd: float, form: str = ",.2f") -> str:
    """Return an amount in US dollars as text for a record, whose texts do not depend on the display currency."""
    return USD.text(usd, form)


def convert_amounts(text: str) -> str:
    """Return a text or heading with its dollar amounts and dollar signs in the display currency.

    An amount keeps its number of decimals.
    """
    currency = _shown.get()
    if currency == USD or "$" not in text:
        return text

    def convert(found: re.Match[str]) -> str:
        amount = found[1]
        if amount is None:
            return currency.symbol.strip()
        form = ",.3g" if "e" in amount else f",.{len(amount.partition('.')[2])}f"
        return currency.text(float(amount.replace(",", "")), form)

    return _DOLLARS.sub(convert, text)


def currency_note() -> str:
    """Return the display currency with its rate and source as a line; empty for US dollars."""
    currency = _shown.get()
    if currency == USD:
        return ""
    code = currency.code
    return f"amounts in {code} at {currency.rate:.6g} US dollars per {code} ({currency.source})"


def currency_codes() -> tuple[str, ...]:
    """Return the codes of the currencies with a published rate."""
    return tuple(_currency_data()["units_per_euro"])


def find_currency(text: str) -> Currency:
    """Return the currency `EUR`, at its published rate, or `EUR=1.08`, at a rate in US dollars for one unit.

    Raises InvalidInput for an unknown code, or a rate that is not a number from 1e-6 to 1e6.
    """
    code, has_rate, typed = str(text).strip().partition("=")
    code = code.strip().upper()
    data = _currency_data()
    rates: Mapping[str, float] = data["units_per_euro"]
    if not _CODE.fullmatch(code) or (code not in rates and not has_rate):
        known = ", ".join(rates)
        raise InvalidInput(
            f"--currency {text!r}: use one of {known}, or give a rate, as SEK=0.11 (US dollars per SEK)"
        )
    rate, source = rates["USD"] / rates.get(code, math.nan), f"{data['source']} of {data['date']}"
    if has_rate:
        rate, source = _own_rate(text, typed), "your own rate"
    if code == "USD":
        if rate != 1:
            raise InvalidInput(f"--currency {text!r}: the rate of USD is 1")
        return USD
    return Currency(code=code, symbol=data["symbols"].get(code, f"{code} "), rate=rate, source=source)


def _own_rate(text: str, typed: str) -> float:
    try:
        rate = float(typed)
    except ValueError:
        rate = math.nan
    if not _RATES[0] <= rate <= _RATES[1]:
        raise InvalidInput(
            f"--currency {text!r}: the rate must be a positive number of US dollars, from 1e-6 to 1e6, as EUR=1.08"
        )
    return rate


@cache
def _currency_data() -> Table:
    return read_data(Path(__file__).with_name("currencies.toml"))
