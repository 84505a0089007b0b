"""Records of answers: intervals that stay in order, and JSON that its schema describes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.answers.records import Quantity, Simulation

ABOVE_0 = st.floats(1e-3, 1e3)


@given(ABOVE_0, st.floats(0.1, 1), st.floats(1, 10), ABOVE_0)
def test_an_interval_holds_its_value_in_every_unit(
    value: float, low: float, high: float, factor: float
) -> None:
    """Scaling multiplies all three; an inverse turns the interval round, and its inverse is the first again."""
    quantity = Quantity(value=value, low=value * low, high=value * high)
    scaled, inverse = quantity.scale(factor), quantity.inverse(factor)
    for found in (scaled, inverse):
        assert found.low is not None
        assert found.high is not None
        assert found.low * (1 - 1e-12) <= found.value <= found.high * (1 + 1e-12)
    assert inverse.low == pytest.approx(factor / (value * high))
    again = inverse.inverse(factor)
    assert (again.low, again.value, again.high) == pytest.approx((quantity.low, value, quantity.high))


def test_what_has_no_interval_has_none_in_another_unit() -> None:
    plain = Quantity(value=2.0)
    assert plain.scale(3.0) == Quantity(value=6.0)
    assert plain.inverse(3.0) == Quantity(value=1.5)


def test_the_schema_requires_what_every_engine_says() -> None:
    schema = Simulation.json_schema()
    own = {"kv_tiers", "data_parallel_requests", "pools", "cascade"}  # of those that have several of them
    assert set(schema["properties"]) - set(schema["required"]) == own
    assert schema["properties"]["schema"] == {"const": Simulation.SCHEMA}


def test_an_interval_down_to_nothing_has_no_most_when_turned_round() -> None:
    """A tiny model under a load: its time may be nearly all the front end's, so that the lower end is 0."""
    assert Quantity(value=2.0, low=0.0, high=4.0).inverse(8.0) == Quantity(value=4.0, low=2.0, high=None)
