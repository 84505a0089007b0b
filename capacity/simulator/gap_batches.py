"""Gaps between deliveries in order of time, in batches of equally many: how much their percentiles vary by chance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from capacity.workload.columns import IntArray

MOST_BATCHES = 40  # two are made one when there are more: 20 or more of a long run
BIN_BITS = 8  # bins per octave of gap, as a power of two: a gap is known to 0.4 %
NUM_BINS = 64 << BIN_BITS
FIRST_SIZE = 16  # gaps of a batch at first
HELD = 8  # arrays that wait to be counted


class GapBatches:
    """Histograms of successive batches of gaps, in bounded memory.

    Gaps are in picoseconds. Equal ones of one step stay together, so a batch may have some more than another.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[IntArray, IntArray]] = []
        self._counts: IntArray | None = None  # by batch and bin
        self._used: tuple[IntArray, int] | None = (
            None  # of the core: by batch and bin from this one on, no more yet
        )
        self._size = FIRST_SIZE
        self._seen = 0

    @classmethod
    def from_core(cls, used: IntArray, first_bin: int, *, size: int, seen: int) -> GapBatches:
        """What the compiled core holds: gaps by batch and bin from `first_bin` on, batches of `size` gaps, `seen` gaps.

        Few are asked for them, so all the bins that no gap fell in are added when that happens.
        """
        batches = cls()
        batches._used, batches._size, batches._seen = (used, first_bin), size, seen
        return batches

    def add(self, gaps_ps: IntArray, counts: IntArray) -> None:
        """Gaps, and how often each, in the order in which they were delivered."""
        self._waiting.append((gaps_ps, counts))
        if len(self._waiting) > HELD:
            self._count()

    def histograms(self) -> IntArray:
        """Gaps by batch (rows, in order of time; the last may not be full) and bin; no rows without gaps."""
        self._count()
        if self._counts is None:
            return np.zeros((0, NUM_BINS), dtype=np.int64)
        return self._counts[: -(-self._seen // self._size)]

    def _count(self) -> None:
        if self._used is not None:
            (used, first_bin), self._used = self._used, None
            self._counts = np.zeros((MOST_BATCHES, NUM_BINS), dtype=np.int64)
            self._counts[: used.shape[0], first_bin : first_bin + used.shape[1]] = used
        if not self._waiting:
            return
        gaps_ps, counts = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
        self._waiting.clear()
        self._count_gaps(gaps_ps, counts)

    def _count_gaps(self, values: IntArray, counts: IntArray) -> None:
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


def bin_of(gaps_ps: IntArray) -> IntArray:
    """A gap's bin: its leading BIN_BITS + 1 bits."""
    shift = np.maximum(np.frexp(gaps_ps.astype(np.float64))[1] - (BIN_BITS + 1), 0).astype(np.int64)
    bins: IntArray = (shift << BIN_BITS) + (gaps_ps >> shift)
    return bins


def bin_middles_ps() -> npt.NDArray[np.float64]:
    """The gap in the middle of each bin."""
    index = np.arange(NUM_BINS)
    shift = np.maximum((index >> BIN_BITS) - 1, 0)
    low = (index - (shift << BIN_BITS)).astype(np.float64)
    middles: npt.NDArray[np.float64] = (low + np.where(shift > 0, 0.5, 0.0)) * 2.0**shift
    return middles
