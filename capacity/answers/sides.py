"""Comparison of one metric in two answers: the difference, and whether it exceeds the intervals."""

from dataclasses import dataclass

from capacity.answers.records import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One metric in two answers, in the units of its field; None if an answer does not have the metric.

    `outside`: the two 90 % intervals do not overlap, so the difference is larger than the uncertainty. This is
    conservative, because errors that both answers share are counted in each. None without an interval.
    """

    figure: str
    first: Quantity | None
    second: Quantity | None

    @property
    def difference(self) -> float | None:
        """Return the second value minus the first."""
        if self.first is None or self.second is None:
            return None
        return self.second.value - self.first.value

    @property
    def ratio(self) -> float | None:
        """Return the relative change: second over first, minus 1."""
        if self.first is None or self.second is None or not self.first.value:
            return None
        return self.second.value / self.first.value - 1

    @property
    def outside(self) -> bool | None:
        """Return whether the intervals do not overlap."""
        ends = [end for q in (self.first, self.second) if q is not None for end in (q.low, q.high)]
        known = [end for end in ends if end is not None]
        if len(known) < 4:
            return None
        first_low, first_high, second_low, second_high = known
        return first_high < second_low or second_high < first_low
