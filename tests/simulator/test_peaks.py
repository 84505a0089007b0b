"""The worst stretch of arrivals: none in a steady stream, and where it is in a burst."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.simulator.peaks import local_variation, peak_load


def test_variation_of_gaps_is_that_of_their_distribution() -> None:
    """Squared coefficients of variation: 0 of a clock, 1 of a Poisson process, less a bit in 25 gaps."""
    rng = np.random.default_rng(2)
    assert local_variation(np.arange(1000.0)) == pytest.approx(0, abs=1e-12)
    assert local_variation(np.cumsum(rng.exponential(1.0, 100_000))) == pytest.approx(1.0, abs=0.12)
    assert local_variation(np.zeros(1000)) == 1.0, "all at once: nothing is known of the gaps"


def test_a_change_of_the_rate_is_no_variation() -> None:
    arrival = np.cumsum(np.repeat([1.0, 0.01], 5000))
    assert local_variation(arrival) < 0.01


def test_a_burst_is_found_where_it_is() -> None:
    """1/s for 1000 s, with 5/s from 500 s to 600 s, before a capacity of 2/s."""
    calm, burst = np.arange(0.0, 1000.0), np.arange(500.0, 600.0, 0.25)
    peak = peak_load(np.sort(np.concatenate((calm, burst))), 2.0, 1.0)
    assert peak is not None
    assert peak.start_s < 600
    assert peak.end_s > 500
    assert 1 < peak.load <= 2.6
    assert 0 < peak.excess <= 300
    assert peak.all_s >= peak.end_s - peak.start_s
    assert peak.all_excess >= peak.excess
    assert peak_load(calm, 2.0, 1.0) is None
    assert peak_load(calm, 2.0, 500.0) is None, "no stretch is long beside a request's stay"
