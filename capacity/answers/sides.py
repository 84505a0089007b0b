"""One figure on two sides: the difference, and whether the intervals leave it open."""

from dataclasses import dataclass

from capacity.answers.records import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure of two answers, in the units of its field; None where an answer has none.

    `outside`: the two 90 % intervals have nothing in common, so that the difference is more than they leave open.
    It is careful: errors that both sides share are counted on each. None where there is no interval.
    """

    figure: str
    first: Quantity | None
    second: Quantity | None

    @property
    def difference(self) -> float | None:
        """Second minus first."""
        if self.first is None or self.second is None:
            return None
        return self.second.value - self.first.value

    @property
    def ratio(self) -> float | None:
        """Second over first, less 1: +0.25 is a quarter more."""
        if self.first is None or self.second is None or not self.first.value:
            return None
        return self.second.value / self.first.value - 1

    @property
    def outside(self) -> bool | None:
        """Whether the intervals are apart."""
        ends = [end for q in (self.first, self.second) if q is not None for end in (q.low, q.high)]
        known = [end for end in ends if end is not None]
        if len(known) < 4:
            return None
        first_low, first_high, second_low, second_high = known
        return first_high < second_low or second_high < first_low
