"""Gaps between tokens in bins and batches: none is lost, each is known to its bin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capacity.simulator.gap_batches import MOST_BATCHES, GapBatches, bin_middles_ps, bin_of
from capacity.simulator.gap_counter import GapCounter


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=50))
def test_a_gap_is_known_to_its_bin(gaps: list[int]) -> None:
    values = np.array(gaps, dtype=np.int64)
    middles = bin_middles_ps()[bin_of(values)]
    assert (np.abs(middles - values) <= np.maximum(values * 2.0**-8, 0)).all()


@given(st.lists(st.tuples(st.integers(0, 10**11), st.integers(1, 9)), min_size=1, max_size=400))
def test_batches_lose_no_gap_and_keep_their_order(entries: list[tuple[int, int]]) -> None:
    batches, counter = GapBatches(), GapCounter()
    for part in np.array_split(np.array(entries, dtype=np.int64), 3):
        if len(part):
            batches.add(part[:, 0], part[:, 1])
    for gap_ps, count in entries:
        counter.add(gap_ps, count)
    histograms = batches.histograms()
    assert len(histograms) <= MOST_BATCHES
    assert int(histograms.sum()) == counter.count
    np.testing.assert_array_equal(histograms, counter.batches().histograms())
    values = np.concatenate([np.repeat(gap_ps, count) for gap_ps, count in entries])
    whole = np.bincount(bin_of(values), minlength=histograms.shape[1])
    np.testing.assert_array_equal(histograms.sum(axis=0), whole)
