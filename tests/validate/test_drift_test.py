"""False alarms and power of the drift test, with independent and with correlated windows."""

import math
from typing import Any

import numpy as np
import pytest
from capacity_validate.drift_test import (
    FALSE_ALARMS,
    SIDED_TESTS,
    cusum_limit,
    find_drift,
    first_change,
    recursive_quantiles,
)


def false_alarm_share(windows: float, length: int, trials: int) -> float:
    rng, load = np.random.default_rng(1), np.linspace(0.0, 1.0, length)
    limit, alarms = cusum_limit(windows * SIDED_TESTS), 0
    for _ in range(trials):
        errors = rng.normal(3.0, 2.0, (2, length)) + 5 * load
        alarms += any(first_change(recursive_quantiles(each, load), limit) for each in errors)
    return alarms / trials


def test_false_alarm_rate_is_the_stated_one() -> None:
    trials = 300
    expected = 1 - math.exp(-200 / 200)
    found = false_alarm_share(200, 200, trials)
    assert abs(found - expected) < 3 * math.sqrt(expected * (1 - expected) / trials)


@pytest.mark.ci
def test_false_alarm_rate_of_the_alarm_is_the_stated_one() -> None:
    expected = 1 - math.exp(-0.1)
    assert abs(false_alarm_share(10_000, 1000, 1000) - expected) < 3 * math.sqrt(expected / 1000)


def correlated_errors(correlation: float, length: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    errors = rng.normal(size=length)
    for at in range(1, length):
        errors[at] = correlation * errors[at - 1] + math.sqrt(1 - correlation**2) * errors[at]
    return errors, rng.normal(size=length)


def test_correlated_windows_raise_no_more_false_alarms_than_stated() -> None:
    series = [correlated_errors(0.6, 64, seed) for seed in range(500)]
    limit, expected = cusum_limit(10_000 * SIDED_TESTS), 64 / 20_000
    alone = sum(first_change(recursive_quantiles(*each), limit) is not None for each in series)
    assert alone / len(series) > 0.2
    found = sum(find_drift(*each) is not None for each in series)
    assert found / len(series) < expected + 3 * math.sqrt(expected / len(series))


@pytest.mark.slow
@pytest.mark.parametrize(("correlation", "windows"), FALSE_ALARMS.items())
def test_false_alarm_rate_of_rolling_windows_is_the_stated_one(correlation: float, windows: int) -> None:
    """As `watch` does: after each new window the last 64 are tested, and the alarm also needs a large change."""
    length = 20_000
    errors = [correlated_errors(correlation, length, seed) for seed in (1, 2)]
    alarms, before = 0, False
    for end in range(64, length):
        now = False
        for series, loads in errors:
            values = series[end - 64 : end]
            if drift := find_drift(values, loads[end - 64 : end]):
                change = values[drift.start :].mean() - values[: drift.start].mean()
                now = now or abs(change) > 1.645
        alarms, before = alarms + (now and not before), now
    expected = length / windows
    assert alarms < expected + 3 * math.sqrt(2 * expected)  # alarms come in groups


def test_recursive_quantiles_are_standard_normal_while_nothing_changes() -> None:
    rng = np.random.default_rng(2)
    load = rng.normal(size=4000)
    found = recursive_quantiles(rng.normal(size=4000) * 0.01 + 3 * load, load)[4:]
    assert abs(found.mean()) < 0.05
    assert abs(found.std() - 1) < 0.05
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.05


def test_cusum_limit_is_the_published_one() -> None:
    assert cusum_limit(930.9) == pytest.approx(
        5.0, abs=0.02
    )  # Hawkins and Olwell 1998, table 3.1: k 0.5, h 5


def test_change_of_three_deviations_is_found_within_ten_windows() -> None:
    rng = np.random.default_rng(3)
    errors = rng.normal(size=60) + 3.0 * (np.arange(60) >= 30)
    drift = find_drift(errors, rng.normal(size=60))
    assert drift is not None
    assert abs(drift.start - 30) <= 1
    assert drift.detected < 40
    assert find_drift(errors[:30], rng.normal(size=30)) is None
