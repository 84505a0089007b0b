"""Numbers as people read them: GiB or GB, ms or s, $, %, tokens. Tables, charts and the dashboard say them alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from capacity.answers.records import Quantity
from capacity.hardware.cost_estimate import CostEstimate

MemoryUnit = Literal["GiB", "GB"]
TimeUnit = Literal["ms", "s"]
MEMORY_UNITS: tuple[MemoryUnit, ...] = get_args(MemoryUnit)
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)

_BYTES: dict[str, float] = {"GiB": 2**30, "GB": 1e9}
_SECONDS: dict[str, float] = {"ms": 1e-3, "s": 1.0}
_TIME_DIGITS: dict[str, int] = {"ms": 1, "s": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What memory and latencies are shown in."""

    memory: MemoryUnit = "GiB"
    time: TimeUnit = "ms"

    def of_bytes(self, num_bytes: float) -> float:
        """Bytes in the unit of memory."""
        return num_bytes / _BYTES[self.memory]

    def of_seconds(self, seconds: float) -> float:
        """Seconds in the unit of time."""
        return seconds / _SECONDS[self.time]

    def memory_text(self, num_bytes: float) -> str:
        """`64.33 GiB`."""
        return f"{self.of_bytes(num_bytes):,.2f} {self.memory}"

    def time_text(self, seconds: float) -> str:
        """`106.4 ms`, or `0.1064 s`: as exact in either unit."""
        return f"{self.of_seconds(seconds):,.{_TIME_DIGITS[self.time]}f} {self.time}"

    def time_interval(self, quantity: Quantity) -> str:
        """`80.3 to 160.8 ms`; empty without an interval."""
        return between(quantity, 1 / _SECONDS[self.time], _TIME_DIGITS[self.time], f" {self.time}")


VerdictColour = Literal["green", "yellow", "red"]
VERDICT_COLOURS: dict[
    str, VerdictColour
] = {  # by judgement; green: there is a steady state; red: there is none
    "stable": "green",
    "stable with bursts": "green",
    "not all served": "yellow",
    "saturated": "yellow",
    "overloaded": "red",
    "too short to tell": "yellow",
}


def verdict_text(judgement: str, reason: str | None) -> str:
    """The judgement in its colour, and why."""
    colour = VERDICT_COLOURS[judgement]
    return f"[{colour}]{judgement}[/{colour}]: {reason or ''}"


STANDARD = Units()


def between(quantity: Quantity, scale: float, digits: int, unit: str) -> str:
    """The 90 % interval, `low to high unit`; empty where there is none."""
    if quantity.low is None or quantity.high is None:
        return ""
    return f"{quantity.low * scale:,.{digits}f} to {quantity.high * scale:,.{digits}f}{unit}"


def time_and_interval(quantity: Quantity, units: Units = STANDARD) -> tuple[str, str]:
    """A latency and its interval."""
    return units.time_text(quantity.value), units.time_interval(quantity)


def seconds_and_interval(quantity: Quantity) -> tuple[str, str]:
    """A long duration, always in s, and its interval."""
    return f"{quantity.value:,.2f} s", between(quantity, 1, 2, " s")


def rate_and_interval(quantity: Quantity) -> tuple[str, str]:
    """A rate per second and its interval."""
    digits = 0 if quantity.value >= 100 else 2
    return f"{quantity.value:,.{digits}f}", between(quantity, 1, digits, "")


def usd_text(quantity: Quantity | None) -> str:
    """$ per million tokens."""
    return "-" if quantity is None else f"${quantity.value:,.3f}"


def usd_interval(quantity: Quantity | None) -> str:
    """Its interval."""
    return "" if quantity is None else between(quantity, 1, 3, "")


def bill_rows(cost: CostEstimate) -> list[tuple[str, str, str]]:
    """What a deployment costs by the hour and the month, and by which price."""
    whole = f"{cost.billed_gpus} GPUs in whole instances, {cost.num_gpus} used; " * (
        cost.billed_gpus > cost.num_gpus
    )
    price = f"{whole}{cost.tier}, ${cost.usd_per_gpu_hour:.2f} per GPU-hour: {cost.source}"
    return [
        ("cost", f"${cost.usd_per_hour:,.2f}/h", price),
        ("  month", f"${cost.usd_per_month:,.0f}", "730 h"),
    ]


def usd_and_interval(quantity: Quantity | None) -> tuple[str, str]:
    """Both, and whose price it is."""
    within = usd_interval(quantity)
    return usd_text(quantity), within and f"{within}, by share of GPU time"


def shown(value: float | None, form: str) -> str:
    """A number in a format of `format()`; "-" for None."""
    return "-" if value is None else format(value, form)
