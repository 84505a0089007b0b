"""Numbers as people read them: units, and intervals."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.answers.records import Quantity
from capacity.report.display import (
    MAX_DIGITS,
    STANDARD,
    VERDICT_COLOURS,
    Units,
    last_supported_place,
    number_text,
    round_like,
    seconds_and_interval,
    text_and_interval,
    time_and_interval,
    verdict_text,
    with_relative_interval,
)
from capacity.simulator.verdict import STABLE, Judgement


@given(st.floats(0, 1e15))
def test_units_change_the_unit_alone(value: float) -> None:
    other = Units(memory="GB", time="s")
    assert STANDARD.convert_bytes(value) * 2**30 == pytest.approx(other.convert_bytes(value) * 1e9)
    assert STANDARD.convert_seconds(value) / 1e3 == pytest.approx(other.convert_seconds(value))


def test_numbers_carry_their_unit_and_interval() -> None:
    assert STANDARD.memory_text(2**30) == "1.00 GiB"
    assert Units(memory="GB").memory_text(2**30) == "1.07 GB"
    assert (STANDARD.time_text(0.01234), Units(time="s").time_text(0.01234)) == ("12.3 ms", "0.0123 s")
    quantity = Quantity(value=2.0, low=1.0, high=4.0)
    assert STANDARD.time_interval(quantity) == "1.0 to 4.0 s"
    assert text_and_interval(quantity.inverse(8.0)) == ("4.0", "2.0 to 8.0")
    assert text_and_interval(Quantity(value=2.0), digits=1, unit=" J") == ("2.0 J", "")


@pytest.mark.parametrize(
    ("value", "low", "high", "place"),
    [
        (2037.0, 1538.0, 3079.0, 2),  # half a width of 770: one digit of it
        (8.21, 7.02, 9.9, -1),  # 1.44: two digits
        (100.0, 96.46, 103.54, -1),  # 3.54 is the last that has two
        (100.0, 96.4, 103.6, 0),
        (100.0, 90.5, 109.5, 0),  # 9.5 rounds to 10, of which two digits are the same place
        (0.3, 0.1, 9.0, -1),  # a first digit is always shown
        (123456.0, 123455.9, 123456.1, 2),  # and no more than four
        (0.0, -1.0, 1.0, -1),
        (-40.0, -60.0, -20.0, 0),
    ],
)
def test_the_interval_says_how_many_digits_a_number_has(
    value: float, low: float, high: float, place: int
) -> None:
    assert last_supported_place(Quantity(value=value, low=low, high=high)) == place


@pytest.mark.parametrize("high", [None, math.inf])
def test_of_an_open_interval_the_known_end_counts(high: float | None) -> None:
    open_ended = Quantity(value=2037.0, low=1538.0, high=high)
    assert last_supported_place(open_ended) == 2
    assert STANDARD.time_text(2.037, Quantity(value=2.037, low=1.538, high=high)) == "2.0 s"


@pytest.mark.parametrize(("low", "high"), [(None, None), (1.0, None), (1.0, 1.0), (1.0, math.inf)])
def test_no_interval_says_nothing_of_digits(low: float | None, high: float | None) -> None:
    assert last_supported_place(Quantity(value=1.0, low=low, high=high)) is None


def test_times_change_their_unit_where_ms_would_hold_a_place_alone() -> None:
    long = Quantity(value=2.037, low=1.538, high=3.079)
    assert time_and_interval(long) == ("2.0 s", "1.5 to 3.1 s")
    assert time_and_interval(long, Units(time="s")) == ("2.0 s", "1.5 to 3.1 s")
    assert [STANDARD.time_text(part_s, like=long) for part_s in (1.83, 0.263, 0.0035, 0.0)] == [
        "1.8 s",
        "300 ms",
        "4 ms",  # a part below the last digit has its first
        "0 ms",
    ]
    assert time_and_interval(Quantity(value=0.1064, low=0.0803, high=0.1608)) == ("110 ms", "80 to 160 ms")
    assert time_and_interval(Quantity(value=1.2345, low=1.2344, high=1.2346)) == (
        "1,234 ms",
        "1,234 to 1,235 ms",
    )


def test_a_number_that_hangs_on_a_prediction_is_no_surer() -> None:
    mean = Quantity(value=100.0, low=70.0, high=130.0)
    assert number_text(412.3, with_relative_interval(412.3, mean)) == "410"
    assert (
        number_text(412.3, with_relative_interval(412.3, Quantity(value=100.0, low=97.0, high=103.0)))
        == "412"
    )
    assert number_text(412.34, with_relative_interval(412.34, None)) == "412.3"


@given(st.floats(1e-9, 1e12), st.floats(0.001, 0.9), st.floats(1.001, 10.0))
def test_what_is_shown_is_within_a_tenth_of_the_intervals_width(
    value: float, below: float, above: float
) -> None:
    """Rounding hides no more than the interval leaves open, and shows no digit that is a tenth of a tenth of it."""
    quantity = Quantity(value=value, low=value * below, high=value * above)
    half = value * (above - below) / 2
    place = last_supported_place(quantity)
    assert place is not None
    if math.log10(value) - place < MAX_DIGITS - 1:  # not cut to four digits
        assert 10.0**place <= half
    assert 10.0**place >= min(half / 36, 10 ** math.floor(math.log10(value)))


def test_every_verdict_has_one_colour() -> None:
    assert set(VERDICT_COLOURS) == set(get_args(Judgement))
    green = {judgement for judgement, colour in VERDICT_COLOURS.items() if colour == "green"}
    assert green == set(STABLE)
    assert verdict_text("stable with bursts", "why") == "[green]stable with bursts[/green]: why"
    assert verdict_text("overloaded", None) == "[red]overloaded[/red]: "


def test_long_times_are_minutes_and_hours() -> None:
    """2,700,000 ms is a number that nobody reads; in s where somebody asked for them."""
    naive = Quantity(value=2712.0, low=1500.0, high=4900.0)
    assert time_and_interval(naive) == ("45 min", "25 to 82 min")
    assert seconds_and_interval(naive) == ("45 min", "25 to 82 min")
    assert time_and_interval(naive, Units(time="s")) == ("2,700 s", "1,500 to 4,900 s")
    assert time_and_interval(naive.scale(0.1)) == ("270 s", "150 to 490 s")
    assert time_and_interval(naive.scale(20)) == ("15 h", "8 to 27 h")


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (2064.5, None, None, 2060.0),
        (2064.5, 1538.0, 3079.0, 2100.0),
        (22.04, 21.1, 23.2, 22.0),
        (0.0, None, None, 0.0),
        (0.01234, 0.0122, 0.0125, 0.01234),
    ],
)
def test_a_number_of_a_table_has_the_digits_of_its_interval_or_three(
    value: float, low: float | None, high: float | None, shown: float
) -> None:
    like = Quantity(value=value, low=low, high=high)
    assert round_like(value, like) == shown
    if low is not None:
        assert shown == float(number_text(value, like).replace(",", ""))
