"""Timing arithmetic."""

from __future__ import annotations

import pytest
from capacity_validate.timing import quantile, rotations, summarise_samples
from hypothesis import given
from hypothesis import strategies as st


def test_a_timing_is_a_median_with_its_spread_outliers_and_drift() -> None:
    timing = summarise_samples([1.0, 1.0, 1.0, 1.0, 5.0, 1.2, 1.2, 1.2, 1.2], "thread time")
    assert timing.seconds == 1.2
    assert timing.outliers == 1
    assert timing.drift == pytest.approx(0.2)


def test_quantiles_are_numpys() -> None:
    import numpy as np

    values = sorted([3.0, 1.0, 4.0, 1.5, 9.0])
    for fraction in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert quantile(values, fraction) == pytest.approx(float(np.quantile(values, fraction)))


@given(st.integers(1, 2**34), st.integers(1, 2**28))
def test_rotated_inputs_exceed_the_cache_twice_or_are_many(bytes_per_set: int, cache_bytes: int) -> None:
    count = rotations(bytes_per_set, cache_bytes)
    assert count * bytes_per_set >= 2 * cache_bytes or count == 32
