"""Gaps between deliveries in order of time, in batches of equally many: how much their percentiles vary by chance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MOST_BATCHES = 40  # two are made one when there are more: 20 or more of a long run
BIN_BITS = 8  # bins per octave of gap, as a power of two: a gap is known to 0.4 %
NUM_BINS = 64 << BIN_BITS
FIRST_SIZE = 16  # gaps of a batch at first
EXPANDED = 1 << 18  # gaps of series, spelled out at a time
HELD = 8  # arrays of series that wait to be counted


class GapBatches:
    """Histograms of successive batches of gaps, in bounded memory.

    Series are rows (first gap, growth, length, weight) as `metrics.GapCounter` takes them, in picoseconds.
    Gaps of one instant stay together, so a batch may have some more than another.
    """

    def __init__(self) -> None:
        self._waiting: list[Ints] = []
        self._counts: Ints | None = None  # by batch and bin
        self._size = FIRST_SIZE
        self._seen = 0

    def add(self, series: Ints) -> None:
        """Series in the order in which they were delivered."""
        self._waiting.append(series)
        if len(self._waiting) > HELD:
            self._count()

    def histograms(self) -> Ints:
        """Gaps by batch (rows, in order of time; the last may not be full) and bin; no rows without gaps."""
        self._count()
        if self._counts is None:
            return np.zeros((0, NUM_BINS), dtype=np.int64)
        return self._counts[: -(-self._seen // self._size)]

    def _count(self) -> None:
        if not self._waiting:
            return
        series = np.concatenate(self._waiting)
        self._waiting.clear()
        slices = np.cumsum(series[:, 2]) // EXPANDED
        for part in np.split(series, np.flatnonzero(np.diff(slices)) + 1):
            self._count_expanded(part)

    def _count_expanded(self, series: Ints) -> None:
        first, step, lengths, weights = series.T
        ends = np.cumsum(lengths)
        rank = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
        values = np.repeat(first, lengths) + np.repeat(step, lengths) * rank
        counts = np.repeat(weights, lengths)
        before = self._seen + np.cumsum(counts) - counts
        self._seen = int(before[-1] + counts[-1])
        if self._counts is None:
            self._counts = np.zeros((MOST_BATCHES, NUM_BINS), dtype=np.int64)
        while -(-self._seen // self._size) > MOST_BATCHES:
            merged = self._counts.reshape(MOST_BATCHES // 2, 2, NUM_BINS).sum(axis=1)
            self._counts = np.concatenate((merged, np.zeros_like(merged)))
            self._size *= 2
        place = before // self._size * NUM_BINS + bin_of(values)
        added = np.bincount(place, weights=counts, minlength=MOST_BATCHES * NUM_BINS)
        self._counts += added.astype(np.int64).reshape(MOST_BATCHES, NUM_BINS)


def bin_of(gaps_ps: Ints) -> Ints:
    """A gap's bin: its leading BIN_BITS + 1 bits."""
    shift = np.maximum(np.frexp(gaps_ps.astype(np.float64))[1] - (BIN_BITS + 1), 0).astype(np.int64)
    bins: Ints = (shift << BIN_BITS) + (gaps_ps >> shift)
    return bins


def bin_middles_ps() -> npt.NDArray[np.float64]:
    """The gap in the middle of each bin."""
    index = np.arange(NUM_BINS)
    shift = np.maximum((index >> BIN_BITS) - 1, 0)
    low = (index - (shift << BIN_BITS)).astype(np.float64)
    middles: npt.NDArray[np.float64] = (low + np.where(shift > 0, 0.5, 0.0)) * 2.0**shift
    return middles
