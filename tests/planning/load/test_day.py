"""A day of load, by the hour."""

from __future__ import annotations

import math
from typing import Any

import pytest

from capacity.base.errors import InvalidInput
from capacity.planning.load.curve import curve, day_of, replicas_by_hour

SMALL: dict[str, Any] = {"gpu": "h100", "input_len": 300, "output_len": 40, "num_prompts": 400}


def test_a_day_by_the_hour() -> None:
    assert max(day_of(10, 1.5)) == pytest.approx(15)
    assert sum(day_of(10, 1.5)) == pytest.approx(240)
    found = curve("llama-3.1-8b", slo="e2el:p90:1s", price="2", peak_rate=500, **SMALL)
    assert found.highest is not None
    day = found.day
    assert day is not None
    assert day.peak_replicas == math.ceil(500 / found.highest.at_confidence)
    assert day.fixed_usd_per_month == pytest.approx(day.peak_replicas * 2 * 730)
    assert day.autoscaled_usd_per_month == pytest.approx(day.autoscaled_replica_hours / 24 * 2 * 730)
    assert day.autoscaled_usd_per_month < day.fixed_usd_per_month  # type: ignore[operator]


def test_replicas_by_hand() -> None:
    """Two replicas carry 10 a second; 26 need six of them, and a silent night needs one."""
    day = replicas_by_hour([0.0] * 23 + [26.0], 10.0, replicas=2, gpus_per_replica=1, price=None)
    assert [hour.replicas for hour in day.hours] == [1] * 23 + [6]
    assert (day.autoscaled_replica_hours, day.fixed_replica_hours) == (29, 144)
    assert (day.autoscaled_usd_per_month, day.fixed_usd_per_month) == (None, None)


def test_what_is_no_day_is_refused() -> None:
    with pytest.raises(InvalidInput, match="from 1"):
        day_of(10.0, 2.5)
    with pytest.raises(InvalidInput, match="give --slo"):
        replicas_by_hour([1.0] * 24, None, replicas=1, gpus_per_replica=1, price=None)
    with pytest.raises(InvalidInput, match="23 hourly rates are given: a day needs 24"):
        replicas_by_hour([1.0] * 23, 1.0, replicas=1, gpus_per_replica=1, price=None)
