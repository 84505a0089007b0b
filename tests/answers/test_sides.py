"""A figure on two sides: differences are plain, and `outside` means that the intervals are apart."""

from __future__ import annotations

from capacity.answers.records import Quantity
from capacity.answers.sides import Change

Q = Quantity


def test_outside_means_that_the_intervals_are_apart() -> None:
    first = Q(value=2.0, low=1.0, high=3.0)
    for second, outside in (
        (Q(value=5.0, low=3.1, high=6.0), True),
        (Q(value=0.5, low=0.1, high=0.9), True),
        (Q(value=5.0, low=2.9, high=6.0), False),
        (Q(value=5.0), None),
        (None, None),
    ):
        assert Change(figure="x", first=first, second=second).outside is outside
    change = Change(figure="x", first=first, second=Q(value=3.0, low=2.0, high=4.0))
    assert (change.difference, change.ratio) == (1.0, 0.5)
    assert Change(figure="x", first=None, second=first).ratio is None
