"""A day of load, by the hour."""

from __future__ import annotations

import math
from typing import Any

import pytest

from capacity.planning.curve import curve
from capacity.planning.day import day_of

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
