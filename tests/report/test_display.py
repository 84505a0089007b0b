"""Numbers as people read them: units, and intervals."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.answers.records import Quantity
from capacity.report.display import STANDARD, VERDICT_COLOURS, Units, between, verdict_text
from capacity.simulator.verdict import STABLE, Judgement


@given(st.floats(0, 1e15))
def test_units_change_the_unit_alone(value: float) -> None:
    other = Units(memory="GB", time="s")
    assert STANDARD.of_bytes(value) * 2**30 == pytest.approx(other.of_bytes(value) * 1e9)
    assert STANDARD.of_seconds(value) / 1e3 == pytest.approx(other.of_seconds(value))


def test_numbers_carry_their_unit_and_interval() -> None:
    assert STANDARD.memory_text(2**30) == "1.00 GiB"
    assert Units(memory="GB").memory_text(2**30) == "1.07 GB"
    assert (STANDARD.time_text(0.01234), Units(time="s").time_text(0.01234)) == ("12.3 ms", "0.0123 s")
    quantity = Quantity(value=2.0, low=1.0, high=4.0)
    assert STANDARD.time_interval(quantity) == "1,000.0 to 4,000.0 ms"
    assert between(quantity.inverse(8.0), 1, 1, "") == "2.0 to 8.0"
    assert between(Quantity(value=2.0), 1, 1, "") == ""


def test_every_verdict_has_one_colour() -> None:
    assert set(VERDICT_COLOURS) == set(get_args(Judgement))
    green = {judgement for judgement, colour in VERDICT_COLOURS.items() if colour == "green"}
    assert green == set(STABLE)
    assert verdict_text("stable with bursts", "why") == "[green]stable with bursts[/green]: why"
    assert verdict_text("overloaded", None) == "[red]overloaded[/red]: "
