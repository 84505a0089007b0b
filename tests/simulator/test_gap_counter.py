"""Gaps between deliveries: equal to numpy on all of them, bounded in memory; in batches none is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.simulator import gap_counter
from capacity.simulator.distribution import PERCENTILES
from capacity.simulator.gap_counter import BATCH_BIN_BITS, MAX_BATCHES, GapCounter, bin_index, bin_middles_ps

entries = st.lists(st.tuples(st.integers(0, 10**11), st.integers(1, 30)), min_size=1, max_size=200)


def expand(rows: list[tuple[int, int]]) -> np.ndarray:
    return np.array([gap for gap, count in rows for _ in range(count)], dtype=np.float64)


@given(entries)
def test_gaps_equal_numpy_on_the_expanded_multiset(rows: list[tuple[int, int]]) -> None:
    gaps = GapCounter()
    for row in rows:
        gaps.add(*row)
    values = expand(rows) / 1e9
    found = gaps.distribution_ms()
    assert found is not None
    assert gaps.resolution == 0
    assert gaps.count == len(values)
    assert found.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-12)
    assert found.std == pytest.approx(values.std(), rel=1e-6, abs=1e-6)
    for percent in PERCENTILES:
        assert found.percentiles[percent] == pytest.approx(
            np.percentile(values, percent), rel=1e-12, abs=1e-12
        )


@given(entries)
def test_binned_gaps_stay_within_their_resolution(rows: list[tuple[int, int]]) -> None:
    gaps = GapCounter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_counter, "EXACT_GAPS", 3)
        for row in rows:
            gaps.add(*row)
        found = gaps.distribution_ms()
    assert found is not None
    values = expand(rows) / 1e9
    assert found.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-12)  # exact all the same
    for percent in PERCENTILES:
        assert found.percentiles[percent] == pytest.approx(
            np.percentile(values, percent), rel=2**-11, abs=1e-12
        )


def test_gaps_that_were_counted_but_not_yet_held_are_left_out() -> None:
    """Ctrl-C between the two: a partial run is still summarized."""
    gaps = GapCounter()
    for gap_ps in (10**9, 2 * 10**9, 3 * 10**9):
        gaps.add(gap_ps)
    gaps.count += 5
    found = gaps.distribution_ms()
    assert found is not None
    assert found.percentiles[99] == pytest.approx(2.98)


@given(st.integers(0, 10**15))
def test_a_gap_is_known_to_its_bin(gap_ps: int) -> None:
    (middle,) = bin_middles_ps(np.array([bin_index(gap_ps, BATCH_BIN_BITS)]), BATCH_BIN_BITS)
    assert abs(middle - gap_ps) <= gap_ps * 2.0**-8


@given(entries)
def test_batches_lose_no_gap(rows: list[tuple[int, int]]) -> None:
    counter = GapCounter()
    for gap_ps, count in rows:
        counter.add(gap_ps, count)
    histograms = counter.batches().histograms()
    assert len(histograms) <= MAX_BATCHES
    bins = [bin_index(gap_ps, BATCH_BIN_BITS) for gap_ps, count in rows for _ in range(count)]
    whole = np.bincount(bins, minlength=histograms.shape[1])
    np.testing.assert_array_equal(histograms.sum(axis=0), whole)
