"""Axes: equal steps, ticks within the span, categories in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.report.figures.svg_axis import axis_of

PIXELS = (0.0, 100.0)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5), st.booleans())
def test_every_value_is_in_sight_and_every_tick(values: list[float], from_zero: bool) -> None:
    axis = axis_of({}, values, PIXELS, from_zero=from_zero)
    for value in values:
        at = axis.at(value)
        assert at is not None
        assert -1e-6 <= at <= 100 + 1e-6
    assert all(-1e-4 <= axis.pixel(place) <= 100 + 1e-4 for place, _ in axis.ticks)
    assert not from_zero or axis.low <= 0 <= axis.high


@given(st.floats(1e-6, 1e6), st.floats(1.5, 1e5))
def test_a_logarithmic_axis_has_ticks_that_can_be_read(low: float, factor: float) -> None:
    axis = axis_of({"type": "log"}, [low, low * factor], PIXELS, from_zero=False)
    first, last = axis.at(low), axis.at(low * factor)
    assert first is not None
    assert last is not None
    assert 0 <= first < last <= 100
    assert axis.at(0.0) is None
    if factor > 10:
        assert len(axis.ticks) >= 2
    assert len(axis.ticks) <= 12


def test_a_tick_says_its_number() -> None:
    def said(layout: dict[str, object], values: list[float]) -> list[str]:
        return [text for _, text in axis_of(layout, values, PIXELS, from_zero=True).ticks]

    assert said({}, [0, 2500])[:3] == ["0", "500", "1,000"]
    assert said({"tickformat": ".0%"}, [0, 1])[-1] == "100%"
    assert said({"dtick": 4}, [0, 10]) == ["0", "4", "8"]
    assert said({"showticklabels": False}, [0, 10]) == []
    assert said({"range": [0, 1]}, [0, 10])[-1] == "1"


@pytest.mark.parametrize(("reversed_", "places"), [(False, (25.0, 75.0)), (True, (75.0, 25.0))])
def test_categories_stand_in_the_order_that_is_given(reversed_: bool, places: tuple[float, float]) -> None:
    layout = {"categoryarray": ["b", "a", "z"], **({"autorange": "reversed"} if reversed_ else {})}
    axis = axis_of(layout, ["a", "b", "a"], PIXELS, from_zero=False)
    assert axis.names == ("b", "a")
    assert (axis.at("b"), axis.at("a")) == places
    assert axis.at("c") is None
    assert axis.slot == 50
