"""A predicted number and its interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A predicted number with its 90 % interval; an end is None if no evidence gives one."""

    value: float
    low: float | None = None
    high: float | None = None

    def scale(self, factor: float) -> Quantity:
        """Return the prediction and its interval times `factor`, for example in another unit."""
        return Quantity(
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )

    def cover(self, *others: Quantity | None) -> Quantity:
        """Return the same value with an interval extended to include the intervals of `others`. An end is None if it
        is None in any of them."""
        spans = [self, *(other for other in others if other is not None)]
        lows, highs = [each.low for each in spans], [each.high for each in spans]
        return Quantity(
            value=self.value,
            low=None if None in lows else min(low for low in lows if low is not None),
            high=None if None in highs else max(high for high in highs if high is not None),
        )

    def inverse(self, numerator: float) -> Quantity:
        """Return `numerator` divided by this quantity. The interval ends swap; a lower end of 0 gives no upper end."""
        return Quantity(
            value=numerator / self.value,
            low=None if self.high is None else numerator / self.high,
            high=numerator / self.low if self.low else None,
        )
