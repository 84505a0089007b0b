"""Two estimates side by side: differences are plain, and `outside` means that the intervals are apart."""

from __future__ import annotations

import pytest

import capacity
from capacity.answers.records import Quantity
from capacity.answers.sides import Change, changes

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


def test_every_figure_of_two_estimates() -> None:
    asked = {"gpu": "h100-sxm-80gb", "input_len": 1024, "output_len": 256, "batch_size": 8}
    first = capacity.estimate("llama-3.1-8b", price_tier="on-demand", **asked)
    second = capacity.estimate("llama-3.1-8b", quantization="fp8", **asked)
    found = {change.figure: change for change in changes(first, second)}
    assert first.tpot_s is not None
    assert second.tpot_s is not None
    assert found["tpot_s"].difference == pytest.approx(second.tpot_s.value - first.tpot_s.value)
    assert found["usd_per_month"].second is None
    assert found["usd_per_month"].ratio is None
    assert {change.ratio for change in changes(first, first)} == {0.0}
    assert not any(change.outside for change in changes(first, first))
