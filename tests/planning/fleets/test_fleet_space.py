"""Replicas in reserve: the binomial by enumeration, and the fewest that do."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.deployment import build
from capacity.planning.fleets.fleet_space import Split, availability_of_pool


def reserve(up: float, **asked: float) -> Split:
    """Of replicas that are up for this share of the time."""
    return Split(mean_time_between_failures_s=up, recovery_s=1 - up, **asked)


@given(st.integers(1, 9), st.integers(0, 4), st.floats(0.5, 1.0))
def test_enough_are_up_as_often_as_all_states_together_say(needed: int, spare: int, up: float) -> None:
    count = needed + spare
    states = itertools.product((True, False), repeat=count)
    all_told = math.fsum(
        up ** sum(state) * (1 - up) ** (count - sum(state)) for state in states if sum(state) >= needed
    )
    assert availability_of_pool(count, needed, up) == pytest.approx(all_told, abs=1e-12)


@given(st.integers(1, 60), st.integers(0, 3), st.floats(0.6, 0.9999), st.floats(0.5, 0.999999))
def test_the_reserve_does_and_one_less_would_not(needed: int, spare: int, up: float, target: float) -> None:
    asked = reserve(up, spare_replicas=spare, availability=target)
    replicas = asked.with_reserve(needed)
    up = asked.replica_availability or 0.0
    assert availability_of_pool(replicas, needed, up) >= target
    assert replicas >= needed + spare
    assert replicas == needed + spare or availability_of_pool(replicas - 1, needed, up) < target
    assert Split(spare_replicas=spare).with_reserve(needed) == needed + spare


def test_a_day_of_repair_a_month() -> None:
    """One of 30 days down is 1/31 of the time; two replicas, one needed: both down 0.104 % of the time."""
    month = {"mean_time_between_failures_s": 30 * 86_400.0, "recovery_s": 86_400.0}
    up = Split(**month).replica_availability
    assert up == pytest.approx(30 / 31)
    assert availability_of_pool(2, 1, 30 / 31) == pytest.approx(1 - (1 / 31) ** 2)
    assert Split(availability=0.99, **month).with_reserve(1) == 2
    assert Split(availability=0.9999, **month).with_reserve(1) == 3


@pytest.mark.parametrize("bad", [(0.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0)])
def test_times_that_cannot_be(bad: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match=r"(mean_time_between_failures|recovery)_s is"):
        build(Split, {"mean_time_between_failures_s": bad[0], "recovery_s": bad[1]})


def test_what_no_reserve_reaches() -> None:
    with pytest.raises(InvalidInput, match="availability is"):
        build(Split, {"availability": 1.0})
    with pytest.raises(InvalidInput, match="takes more spare replicas than 512"):
        reserve(1e-6, availability=0.99).with_reserve(1)
