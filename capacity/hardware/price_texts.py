"""Parse the values of `--price` and `--price-mix`."""

import math
import re

from capacity.base.errors import InvalidInput
from capacity.base.money import USD, Currency, display_currency, find_currency
from capacity.hardware import load_profile

_CODE = re.compile(r"(?<=[\d. ])[A-Za-z]{3}(?=\s*(?:,|$))")


def parse_prices(text: str, *, gpu: str | None = None) -> dict[str | None, float]:
    """Parse `--price` to US dollars: "2.50" for any GPU (key None), or "h100=2.50,b200=6EUR" by profile name.

    Accepts the name `gpu` even if it has no profile. Raises InvalidInput, and UnknownName for an unknown GPU.
    """
    prices: dict[str | None, float] = {}
    for item in text.split(","):
        name, equals, amount = item.rpartition("=")
        if equals and not name.strip():
            raise InvalidInput(f"--price {text!r} has no GPU before '='; write 2.50 or h100=2.50")
        named = name.strip()
        key = named if named == gpu or not equals else load_profile(named).name
        prices[key if equals else None] = _parse_usd(amount, text)
    return prices


def price_currencies(text: str) -> tuple[Currency, ...]:
    """Return the currencies other than US dollars that the amounts in `--price` name."""
    codes = dict.fromkeys(code.upper() for code in _CODE.findall(text))
    return tuple(currency for code in codes if (currency := _currency_of(code)) != USD)


def _currency_of(code: str) -> Currency:
    """Return the currency at the rate of `--currency` if it has the same code, else at the published rate."""
    shown = display_currency()
    try:
        return shown if shown.code == code.upper() else find_currency(code)
    except InvalidInput as error:
        known = str(error).removeprefix(f"--currency {code!r}: ").replace(", as ", " with --currency, as ")
        raise InvalidInput(f"--price: {code!r} is no known currency; {known}") from None


def _parse_usd(amount: str, text: str) -> float:
    code = _CODE.search(amount)
    rate = 1.0 if code is None else _currency_of(code[0]).rate
    try:
        usd = rate * float(_CODE.sub("", amount).strip().removeprefix("$"))
    except ValueError:
        raise InvalidInput(
            f"--price {text!r} is not a price per GPU-hour; write 2.50 (US dollars), 2.50EUR or h100=2.50"
        ) from None
    if not math.isfinite(usd) or usd < 0:
        raise InvalidInput(f"--price {text!r} must be a finite price of at least 0")
    return usd


def parse_price_mix(text: str) -> dict[str, float]:
    """Return the share of each tier in `--price-mix`. Raises InvalidInput unless the shares add up to 1."""
    shares: dict[str, float] = {}
    for item in text.split(","):
        tier, _, share = (part.strip() for part in item.partition("="))
        try:
            shares[tier] = shares.get(tier, 0.0) + float(share)
        except ValueError:
            raise InvalidInput(
                f"--price-mix has {item!r:.80}, which is not TIER=SHARE, such as reserved=0.6,spot=0.4"
            ) from None
    if not all(0 < share <= 1 for share in shares.values()) or not math.isclose(
        sum(shares.values()), 1, abs_tol=1e-6
    ):
        raise InvalidInput(f"--price-mix {text!r:.80}: shares must be above 0 and add up to 1")
    return shares
