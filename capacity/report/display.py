"""Numbers as text: GiB or GB, ms or s, $, %, tokens. Tables, charts and the dashboard format them identically.

A number with an interval is rounded to the digits that the interval supports (`last_supported_place`), and so are the
bounds of the interval. A number without its own interval is rounded `like` the prediction that it belongs to. JSON and
CSV contain all digits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from capacity.base.money import money_text
from capacity.base.quantity import Quantity

if TYPE_CHECKING:
    from capacity.hardware.cost_estimate import CostEstimate

MemoryUnit = Literal["GiB", "GB"]
TimeUnit = Literal["ms", "s"]
MEMORY_UNITS: tuple[MemoryUnit, ...] = get_args(MemoryUnit)
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)

_BYTES: dict[str, float] = {"GiB": 2**30, "GB": 1e9}
_SECONDS: dict[str, float] = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_TIME_DIGITS: dict[str, int] = {"ms": 1, "s": 4}
_LONGER_UNITS = (("s", 1.0), ("min", 600.0), ("h", 36_000.0))  # unit, seconds from which it is used
MAX_DIGITS = 4  # significant digits of a number with a narrow interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Units in which memory and latencies are shown."""

    memory: MemoryUnit = "GiB"
    time: TimeUnit = "ms"

    def convert_bytes(self, num_bytes: float) -> float:
        """Convert bytes to the memory unit."""
        return num_bytes / _BYTES[self.memory]

    def convert_seconds(self, seconds: float) -> float:
        """Convert seconds to the time unit."""
        return seconds / _SECONDS[self.time]

    def memory_text(self, num_bytes: float) -> str:
        """Return a number of bytes as text: `64.33 GiB`."""
        return f"{self.convert_bytes(num_bytes):,.2f} {self.memory}"

    def time_text(self, seconds: float, like: Quantity | None = None) -> str:
        """Return a time as text: `106.4 ms`, or `0.1064 s` with the same precision.

        `like` is the prediction in s that the time belongs to: its interval limits the digits (`110 ms`). If the
        interval does not support single ms, the unit is s for times from 1 s, min from 10 min, and h from 10 h.
        """
        return self._time_texts(seconds, like)[0]

    def time_interval(self, quantity: Quantity) -> str:
        """Return the interval of a time as text: `80 to 160 ms`; empty without an interval."""
        if quantity.interval is None or quantity.low == quantity.high:
            return ""
        _, low, high = self._time_texts(quantity.value, quantity)
        return f"{low.partition(' ')[0]} to {high}"

    def _time_texts(self, seconds: float, like: Quantity | None) -> list[str]:
        """Return a time and the bounds of `like`'s interval as texts in one unit, chosen as in `time_text`."""
        unit: str = self.time
        place = self._place(seconds, like, unit)
        for longer, least_s in _LONGER_UNITS if self.time == "ms" else ():
            if place is not None and place > 0 and abs(seconds) >= least_s:
                unit, place = longer, self._place(seconds, like, longer)
        ends = (like and like.interval) or ()
        return [
            f"{_format_to_place(t / _SECONDS[unit], place, _TIME_DIGITS.get(unit, 0))} {unit}"
            for t in (seconds, *ends)
        ]

    def _place(self, seconds: float, like: Quantity | None, unit: str) -> int | None:
        """Return the power of ten of the last digit that the interval of `like` supports, at most the first digit."""
        place = None if like is None else last_supported_place(like.scale(1 / _SECONDS[unit]))
        return (
            min(place, math.floor(math.log10(abs(seconds) / _SECONDS[unit]))) if place and seconds else place
        )


VerdictColour = Literal["green", "yellow", "red"]
# by verdict; green: steady state, red: no steady state
VERDICT_COLOURS: dict[str, VerdictColour] = {
    "stable": "green",
    "stable with bursts": "green",
    "not all served": "yellow",
    "saturated": "yellow",
    "overloaded": "red",
    "too short to tell": "yellow",
}


def verdict_text(judgement: str | None, reason: str | None) -> str:
    """Return a verdict with markup for its colour, followed by its reason; empty without a verdict."""
    if judgement is None:
        return ""
    colour = VERDICT_COLOURS[judgement]
    return f"[{colour}]{judgement}[/{colour}]: {reason or ''}"


STANDARD = Units()


def last_supported_place(quantity: Quantity) -> int | None:
    """Return the power of ten of the last digit that an interval supports; None without an interval.

    Let E be half the interval's width, or the distance to the bound if there is only one. If E begins with 100 to 354,
    the last digit is at the place of E's second digit, else of its first (rule of the Particle Data Group: Review of
    Particle Physics, introduction, 5.3). The number has at least its first digit and at most `MAX_DIGITS`.
    """
    ends = [end for end in (quantity.low, quantity.high) if end is not None and math.isfinite(end)]
    half = (ends[1] - ends[0]) / 2 if len(ends) == 2 else abs(quantity.value - ends[0]) if ends else 0.0
    if half <= 0:
        return None
    power = math.floor(math.log10(half))
    place = power - 1 if half < 3.545 * 10.0**power else power
    if not quantity.value:
        return place
    first = math.floor(math.log10(abs(quantity.value)))
    return max(min(place, first), first - MAX_DIGITS + 1)


def _format_to_place(value: float, place: int | None, usual: int, sign: str = "") -> str:
    """Format a number down to the digit 10^`place`, or with the `usual` number of decimals if `place` is None."""
    if place is None:
        return f"{value:{sign},.{usual}f}"
    return f"{round(value, -place):{sign},.{max(0, -place)}f}"


def text_and_interval(
    quantity: Quantity, scale: float = 1, digits: int = 2, unit: str = "", *, sign: str = ""
) -> tuple[str, str]:
    """Return a number and its interval as texts; the interval is `LOW to HIGH UNIT`.

    Without an interval, the number has `digits` decimals and the second text is empty.
    """
    shown = quantity.scale(scale)
    place = last_supported_place(shown)
    value = _format_to_place(shown.value, place, digits, sign) + unit
    if shown.interval is None or shown.low == shown.high:
        return value, ""
    low, high = (_format_to_place(end, place, digits, sign) for end in shown.interval)
    return value, f"{low} to {high}{unit}"


def number_text(value: float, like: Quantity | None = None, digits: int = 1) -> str:
    """Format a number with the precision of the prediction `like`, or with `digits` decimals."""
    return _format_to_place(value, None if like is None else last_supported_place(like), digits)


def round_like(value: float, like: Quantity | None = None, digits: int = 3) -> float:
    """Round a number for sortable tables: to the precision of `like`, else to `digits` significant digits."""
    place = None if like is None else last_supported_place(like)
    return float(f"{value:.{digits}g}") if place is None else round(value, -place)


def with_relative_interval(value: float, quantity: Quantity | None) -> Quantity:
    """Return `value` with the same relative interval as the prediction that it depends on."""
    if quantity is None or not quantity.value:
        return Quantity(value=value)
    return quantity.scale(value / quantity.value)


def time_and_interval(quantity: Quantity, units: Units = STANDARD) -> tuple[str, str]:
    """Return a latency and its interval as texts in the units of `units`."""
    return units.time_text(quantity.value, quantity), units.time_interval(quantity)


def seconds_and_interval(quantity: Quantity) -> tuple[str, str]:
    """Return a duration and its interval as texts, in s or a longer unit."""
    if quantity.value >= _LONGER_UNITS[1][1]:
        return time_and_interval(quantity)
    return text_and_interval(quantity, unit=" s")


def rate_and_interval(quantity: Quantity) -> tuple[str, str]:
    """Return a rate per second and its interval as texts."""
    return text_and_interval(quantity, digits=0 if quantity.value >= 100 else 2)


def basis_text(basis: str, gpu: str) -> str:
    """Return what the step times of an answer are based on, in words. `gpu`: name of the profile."""
    if basis != "calibrated":
        return basis
    return "calibrated on your measurements" if "@" in gpu else "fitted to published measurements"


def price_text(cost: "CostEstimate") -> str:
    """Return the price per GPU-hour with its tier and source; also the billed GPUs if more are billed than used."""
    price = f"{cost.tier}, {money_text(cost.usd_per_gpu_hour, '.2f')} per GPU-hour: {cost.source}"
    if cost.billed_gpus == cost.num_gpus:
        return price
    return f"{cost.billed_gpus} GPUs billed (whole instances), {cost.num_gpus} used; {price}"


def offers_text(usd_at_price: float, usd_per_gpu_hour: float, offers: tuple[float, float] | None) -> str:
    """Return a bill at the lowest and at the highest offer: `$5,107 to $32,265 by the offers`.

    `usd_per_gpu_hour`, at which `usd_at_price` was computed, is the median of the offers.
    """
    if offers is None:
        return ""
    low, high = (money_text(usd_at_price * offer / usd_per_gpu_hour, ",.0f") for offer in offers)
    return f"{low} to {high} across market offers"


def phrase(template: str, *values: Any) -> str:
    """Return a template filled with the values; empty if one of them is missing (None, False, 0, or empty)."""
    return template.format(*values) if all(values) else ""


def money_phrase(template: str, usd: float | None, form: str = ",.2f") -> str:
    """Return a template filled with an amount in the display currency; empty if the amount is unknown."""
    return "" if usd is None else template.format(money_text(usd, form))


def join_phrases(*phrases: str | None, separator: str = "; ") -> str:
    """Join the phrases that are not empty."""
    return separator.join(filter(None, phrases))


def count_noun(count: int, noun: str) -> str:
    """Return a number with its noun: `1 replica` or `3 replicas`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def join_words(names: Sequence[str]) -> str:
    """Return the names as one text: `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))
