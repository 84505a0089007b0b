"""Arrival processes against their closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_workloads import MANY, check_refused, cv

from capacity.workload import (
    ArrivalProcess,
    PeriodicArrivals,
    RampArrivals,
    SteadyArrivals,
    diurnal,
    on_off,
    random_stream,
)


def times_s(process: ArrivalProcess, count: int, seed: int = 0) -> np.ndarray:
    return process.times_s(count, random_stream(seed, "arrivals"))


@given(
    count=st.integers(1, 300),
    rate=st.floats(1e-3, 1e4),
    burstiness=st.floats(0.05, 50),
    seed=st.integers(0, 2**64),
)
def test_the_last_request_is_sent_at_exactly_count_over_rate(
    count: int, rate: float, burstiness: float, seed: int
) -> None:
    arrival_s = times_s(SteadyArrivals(rate, burstiness), count, seed)
    assert arrival_s[-1] == count / rate
    assert (np.diff(arrival_s) >= 0).all()
    assert arrival_s[0] >= 0


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_burstiness_says(burstiness: float) -> None:
    gaps_s = np.diff(times_s(SteadyArrivals(2.0, burstiness), MANY))
    # the cv of n gaps has a standard error below 1/sqrt(n) * (1 + cv²); five of them
    assert cv(gaps_s) == pytest.approx(
        1 / math.sqrt(burstiness), abs=5 * (1 + 1 / burstiness) / math.sqrt(MANY)
    )


def test_extremes_of_burstiness_and_rate() -> None:
    assert times_s(SteadyArrivals(4.0, math.inf), 5).tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert times_s(SteadyArrivals(math.inf), 3).tolist() == [0, 0, 0]
    assert times_s(SteadyArrivals(math.inf, 7.0), 3).tolist() == [0, 0, 0]
    assert times_s(SteadyArrivals(1.0, 1e-6), 1).tolist() in ([1.0], [0.0])  # a gap of 0 cannot be rescaled


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.diff(times_s(SteadyArrivals(10.0), MANY)) * 10
    for quantile in (0.1, 0.5, 0.9, 0.99):
        expected = -math.log1p(-quantile)
        # standard error of a sample quantile: sqrt(q(1-q)/n)/density, and the density is 1-q
        error = math.sqrt(quantile * (1 - quantile) / MANY) / (1 - quantile)
        assert np.quantile(gaps_s, quantile) == pytest.approx(expected, abs=5 * error)


@given(start=st.floats(0, 50), end=st.floats(0.01, 50), ramp_s=st.floats(0.1, 1e4), count=st.integers(1, 200))
def test_a_ramp_inverts_its_integral(start: float, end: float, ramp_s: float, count: int) -> None:
    arrival_s = times_s(RampArrivals(start, end, ramp_s, burstiness=math.inf), count)
    inside_s = np.minimum(arrival_s, ramp_s)
    expected = start * inside_s + (end - start) * inside_s**2 / (2 * ramp_s) + end * (arrival_s - inside_s)
    np.testing.assert_allclose(expected, np.arange(1, count + 1), rtol=1e-6)


def test_on_off_is_silent_when_off() -> None:
    process = on_off(10.0, on_s=2.0, off_s=3.0)
    arrival_s = times_s(process, 10_000)
    assert ((arrival_s % 5.0 <= 2.0 + 1e-9) | (arrival_s % 5.0 > 5.0 - 1e-9)).all()
    assert process.mean_rate_per_s == 4.0
    assert len(arrival_s) / arrival_s[-1] == pytest.approx(4.0, rel=5 / math.sqrt(10_000))
    metronome_s = times_s(replace(process, burstiness=math.inf), 40)
    np.testing.assert_allclose(metronome_s[:20], np.arange(1, 21) / 10)
    np.testing.assert_allclose(metronome_s[20:], 5 + np.arange(1, 21) / 10)


def test_a_day_peaks_when_it_should_and_keeps_its_mean() -> None:
    process = diurnal(2.0, peak_to_mean=1.8, period_s=3600, peak_at_s=900)
    assert process.mean_rate_per_s == pytest.approx(2.0)
    arrival_s = times_s(process, 200_000)
    phase = np.exp(2j * np.pi * (arrival_s[arrival_s < 25 * 3600] - 900) / 3600).mean()
    # the first Fourier moment of density (1 + a cos)/T is a/2, here 0.4; standard error 1/sqrt(2n)
    assert phase.real == pytest.approx(0.4, abs=5 / math.sqrt(2 * 180_000))
    assert phase.imag == pytest.approx(0.0, abs=5 / math.sqrt(2 * 180_000))
    flat = times_s(diurnal(2.0, peak_to_mean=1.0, period_s=3600, burstiness=math.inf), 100)
    np.testing.assert_allclose(flat, np.arange(1, 101) / 2)


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (lambda: SteadyArrivals(0.0), "above 0 requests/s, not 0.0"),
        (lambda: SteadyArrivals(-1.0), "above 0 requests/s, not -1.0"),
        (lambda: SteadyArrivals(math.nan), "not nan"),
        (lambda: SteadyArrivals(1.0, 0.0), "burstiness must be above 0"),
        (lambda: SteadyArrivals(1.0, math.nan), "burstiness must be above 0"),
        (lambda: RampArrivals(0.0, 0.0, 1.0), "ramp end rate"),
        (lambda: RampArrivals(1.0, math.inf, 1.0), "must be finite"),
        (lambda: on_off(1.0, on_s=0.0, off_s=1.0), "finite time above 0 s"),
        (lambda: PeriodicArrivals((1.0,), (0.0,)), "at some time of its period"),
        (lambda: PeriodicArrivals((1.0, 2.0), (1.0,)), "one rate per duration"),
        (lambda: diurnal(1.0, peak_to_mean=2.5), "from 1 (flat) to 2"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(build: Callable[[], object], part: str) -> None:
    check_refused(build, part)
