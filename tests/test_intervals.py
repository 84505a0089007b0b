"""Confidence intervals: coverage on queues whose answer is known, and Student's quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.errors import InvalidInput
from capacity.simulator.intervals import (
    mean_interval,
    paired_difference,
    percentile_interval,
    replicated,
    t_quantile,
)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 19, 100])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_students_quantiles_are_those_of_scipy(degrees: int, confidence: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(confidence, degrees) == pytest.approx(
        stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-4
    )


def sojourn_times(rho: float, count: int, seed: int) -> np.ndarray:
    """M/M/1 with service rate 1, from its Lindley recursion, after a warm-up."""
    rng = np.random.default_rng(seed)
    warm = 5_000
    service = rng.exponential(1.0, count + warm)
    gaps = rng.exponential(1 / rho, count + warm)
    steps = np.concatenate(([0.0], service[:-1] - gaps[1:]))
    walk = np.cumsum(steps)
    waits = walk - np.minimum.accumulate(np.minimum(walk, 0.0))
    return (waits + service)[warm:]


@pytest.mark.parametrize("percent", [50, 90, 99])
def test_intervals_of_a_dependent_sequence_hold_the_truth(percent: int) -> None:
    """Sojourn times of M/M/1 are exponential with rate 1 - rho: of 95 % intervals, at least 90 % must hold.

    At rho = 0.7 and 20,000 customers the times are correlated over tens of customers; an interval that took them
    for independent would hold the median in about half of the runs.
    """
    rho, runs = 0.7, 100
    truth = -math.log(1 - percent / 100) / (1 - rho)
    held = naive = 0
    for seed in range(runs):
        times = sojourn_times(rho, 20_000, seed)
        found = percentile_interval(times, percent)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
        half = 1.96 * math.sqrt(percent / 100 * (1 - percent / 100) / len(times))
        low, high = np.quantile(times, [percent / 100 - half, percent / 100 + half])
        naive += low <= truth <= high
    assert held >= 0.9 * runs
    assert naive < held


def test_too_little_data_gives_no_bound() -> None:
    assert percentile_interval(np.empty(0), 50) is None
    few = percentile_interval(np.arange(50.0), 50)
    assert few is not None
    assert (few.value, few.low, few.high) == (24.5, None, None)
    tail = percentile_interval(np.random.default_rng(1).random(150), 99)
    assert tail is not None
    assert tail.high is None, "150 values do not bound the 99th percentile from above"


@given(st.lists(st.floats(0, 1e6), min_size=100, max_size=300), st.sampled_from([50, 90, 95, 99]))
def test_an_interval_holds_its_own_value(values: list[float], percent: int) -> None:
    found = percentile_interval(np.array(values), percent)
    assert found is not None
    assert found.low is None or found.low <= found.value + 1e-9
    assert found.high is None or found.value <= found.high + 1e-9


def test_the_mean_of_constants_is_certain() -> None:
    found = mean_interval(np.full(1000, 3.0))
    assert found is not None
    assert (found.low, found.value, found.high) == (3.0, 3.0, 3.0)


def test_replications_and_pairs() -> None:
    found = replicated([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), rel=1e-5)
    assert replicated([5.0]).low is None
    with pytest.raises(InvalidInput):
        replicated([])
    difference = paired_difference([1.0, 5.0, 9.0], [1.5, 5.5, 9.5])
    assert (difference.low, difference.value, difference.high) == (0.5, 0.5, 0.5)
