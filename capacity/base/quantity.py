"""Predicted numbers with their intervals, and numbers of bytes as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIZE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def size_text(num_bytes: float) -> str:
    """Return a number of bytes as text in B, kB, MB or GB: `1.2 MB`, `131 MB`."""
    for unit, size in SIZE_UNITS:
        if num_bytes >= size:
            shown = num_bytes / size
            return f"{shown:,.1f} {unit}" if shown < 9.95 else f"{shown:,.0f} {unit}"
    return f"{num_bytes:,.0f} B"


def sum_if_known(values: Sequence[float | None]) -> float | None:
    """Return the sum of the values; None if any of them is unknown or there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A predicted number with its 90 % interval; an interval end is None if it is unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return both ends of the interval; None if an end is unknown."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def scale(self, factor: float) -> Quantity:
        """Return the number and its interval multiplied by `factor`, for example to change the unit."""
        return Quantity(
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )

    def cover(self, *others: Quantity | None) -> Quantity:
        """Return the same number with an interval that includes the intervals of `others`. An interval end is None if
        it is None in any of them."""
        spans = [self, *(other for other in others if other is not None)]
        lows, highs = [each.low for each in spans], [each.high for each in spans]
        return Quantity(
            value=self.value,
            low=None if None in lows else min(low for low in lows if low is not None),
            high=None if None in highs else max(high for high in highs if high is not None),
        )

    def inverse(self, numerator: float) -> Quantity:
        """Return `numerator` divided by this number. The interval ends swap; a lower end of 0 becomes None."""
        return Quantity(
            value=numerator / self.value,
            low=None if self.high is None else numerator / self.high,
            high=numerator / self.low if self.low else None,
        )
