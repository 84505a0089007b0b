"""Growth of a request rate: coverage of its interval, and forecasts of public traces."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capacity_validate.rate_growth import rate_growth
from long_forms import mostly_ci

from capacity.answers.records import Quantity
from capacity.workload.traces import read_trace


def growth_of(slope_per_hour: float, seed: int) -> Any:
    rng, at_s = np.random.default_rng(seed), np.arange(1, 61) * 60.0
    rates = rng.poisson(60 * (4 + slope_per_hour * (at_s - 30) / 3600)) / 60
    return rate_growth(at_s.tolist(), [60.0] * 60, rates.tolist())


@pytest.mark.parametrize("trials", mostly_ci((300, 1000), [300]))
def test_interval_of_growth_has_its_coverage_and_no_growth_is_none(trials: int) -> None:
    found = [growth_of(2.0, seed).per_hour for seed in range(trials)]
    covered = sum(each.low <= 2.0 <= each.high for each in found)
    assert abs(covered / trials - 0.9) < 3 * math.sqrt(0.9 * 0.1 / trials)
    flat = [growth_of(0.0, seed) for seed in range(trials)]
    assert sum(each.is_significant for each in flat) / trials < 0.1 + 3 * math.sqrt(0.9 * 0.1 / trials)
    limit = Quantity(value=10.0, low=9.0, high=11.0)
    assert all(each.hours_until(limit) is None for each in flat if not each.is_significant)


def test_hours_until_a_limit_follow_from_rate_and_forecast() -> None:
    growth = growth_of(2.0, 1)
    now, later = growth.rate_per_s.value, growth.forecast_per_s
    assert growth.horizon_h == pytest.approx(0.5)
    assert later.value == pytest.approx(now + growth.per_hour.value * 0.25, rel=0.02)
    limit = Quantity(value=6.5, low=6.4, high=6.6)
    hours = growth.hours_until(limit)
    assert hours.value == pytest.approx(0.25 * (6.5 - now) / (later.value - now))
    assert hours.low == pytest.approx(0.25 * (6.4 - now) / (later.high - now))
    assert hours.high is None
    assert growth.hours_until(Quantity(value=10.0, low=9.0, high=11.0)) is None  # beyond the horizon


@pytest.mark.parametrize(("walk", "slope"), [(0.0, 0.1), (0.5, 0.0), (0.5, 0.1)])
def test_forecast_covers_trends_and_random_walks(walk: float, slope: float) -> None:
    rng, inside = np.random.default_rng(4), 0
    ends = (np.arange(60) + 1) * 60.0
    for _ in range(100):
        rates = 40 + slope * np.arange(90) + walk * np.cumsum(rng.normal(size=90)) + rng.normal(0, 0.3, 90)
        forecast = rate_growth(ends.tolist(), [60.0] * 60, rates[:60].tolist()).forecast_per_s
        inside += forecast.low <= rates[60:].mean() <= forecast.high
    assert inside >= 78  # of 84 to 99 expected


def test_last_third_of_public_traces_is_forecast_from_the_first_two_or_refused(shared_dir: Path) -> None:
    known = {}
    for name in (
        "AzureLLMInferenceTrace_conv.csv",
        "AzureLLMInferenceTrace_code.csv",
        "mooncake_conversation_trace.jsonl",
    ):
        at_s = np.asarray(read_trace(shared_dir / "traces" / f"{name}.gz").arrival_s)
        edges = np.linspace(0, at_s[-1] * 2 / 3, 41)
        rates = np.histogram(at_s, edges)[0] / np.diff(edges)
        growth = rate_growth(edges[1:].tolist(), np.diff(edges).tolist(), rates.tolist())
        assert growth is not None
        forecast, actual = growth.forecast_per_s, float((at_s >= edges[-1]).sum() / (at_s[-1] / 3))
        assert (forecast.low or 0.0) <= actual <= (forecast.high or 0.0)
        known[name] = growth.is_known
        if growth.is_known:
            assert forecast.value == pytest.approx(actual, rel=0.05)
    assert list(known.values()) == [False, False, True]


def test_growth_of_several_days_ignores_the_time_of_day() -> None:
    at_s = np.arange(1, 24 * 6 + 1) * 3600.0
    rates = 10 + 5 * np.sin(at_s / 86400 * 2 * np.pi) + np.random.default_rng(0).normal(0, 0.1, len(at_s))
    found = rate_growth(at_s.tolist(), [3600.0] * len(at_s), rates.tolist())
    assert found is not None
    assert found.by_day
    assert abs(found.per_hour.value) < 0.01
