"""Gaps between successive deliveries of requests, in bounded memory: their mean and percentiles."""

from __future__ import annotations

import math

import numpy as np

from capacity.simulator.distribution import PERCENTILES, Distribution
from capacity.simulator.gap_batches import GapBatches
from capacity.step import PS_PER_S
from capacity.workload.columns import IntArray

EXACT_GAPS = 1 << 16  # distinct gaps kept exactly; beyond, they are counted in bins
BIN_BITS = 11  # bins per octave of gap, as a power of two: a gap is known to 2**-11, 0.05 %
NUM_BINS = 64 << BIN_BITS


class GapCounter:
    """The multiset of gaps between deliveries, in bounded memory: exact at first, then in narrow bins.

    The mean is that of the exact gaps throughout; percentiles and the standard deviation are known to `resolution`.
    """

    _FLUSH = 2 << 15

    def __init__(self) -> None:
        self.count = 0
        self.total_ps = 0
        self.resolution = 0.0  # relative width of a bin; 0: exact
        self._new: list[int] = []  # gap, how often, gap, ...: numpy reads no tuples quickly
        self._chunks: list[tuple[IntArray, IntArray]] = []  # (gaps, how often), as they came
        self._raw = self._distinct = 0
        self._bins: IntArray | None = None
        self._batches = GapBatches()

    @classmethod
    def from_core(
        cls,
        multiset: tuple[IntArray, IntArray] | None,
        bins: IntArray | None,
        *,
        total_ps: int,
        batches: GapBatches,
    ) -> GapCounter:
        """What the compiled core holds: either (different gaps in rising order, how often each) or the bins."""
        gaps = cls()
        gaps.total_ps, gaps._batches = total_ps, batches
        if multiset is not None and len(multiset[0]):
            gaps.count = int(multiset[1].sum())
            gaps._chunks, gaps._raw = [multiset], len(multiset[0])
            gaps._distinct = gaps._raw
        if bins is not None:
            gaps.count = int(bins.sum())
            gaps._bins, gaps.resolution = bins, 2.0**-BIN_BITS
        return gaps

    def batches(self) -> GapBatches:
        """The same gaps in order of time, for intervals of their percentiles."""
        self._flush()
        return self._batches

    def add(self, gap_ps: int, count: int = 1) -> None:
        """So many equal gaps that end at one instant."""
        self.count += count
        self.total_ps += gap_ps * count
        self._new += (gap_ps, count)
        if len(self._new) >= self._FLUSH:
            self._flush()

    def _flush(self) -> None:
        if not self._new:
            return
        values, counts = np.array(self._new, dtype=np.int64).reshape(-1, 2).T
        self._new.clear()
        self._batches.add(values, counts)
        self._count(values, counts)

    def _count(self, values: IntArray, counts: IntArray) -> None:
        if self._bins is not None:
            self._bins += _binned(values, counts)
            return
        self._chunks.append((values, counts))
        self._raw += len(values)
        if self._raw > 2 * max(self._distinct, EXACT_GAPS // 2):
            self._compress()

    def _compress(self) -> None:
        """Count equal gaps together; more than EXACT_GAPS different ones go into bins for good."""
        if self._raw == self._distinct and self._chunks:
            return
        values = np.concatenate([chunk[0] for chunk in self._chunks])
        counts = np.concatenate([chunk[1] for chunk in self._chunks])
        order = np.argsort(values, kind="stable")
        values, counts = values[order], counts[order]
        first = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
        values, counts = values[first], np.add.reduceat(counts, first)
        self._chunks = [(values, counts)]
        self._raw = self._distinct = len(values)
        if len(values) > EXACT_GAPS:
            self.resolution = 2.0**-BIN_BITS
            self._bins = _binned(values, counts)
            self._chunks.clear()

    def _multiset(self) -> tuple[IntArray, IntArray]:
        """(gaps in rising order, how often each)."""
        self._flush()
        if self._bins is None:
            self._compress()
        if self._bins is None:
            return self._chunks[0]
        filled = np.flatnonzero(self._bins)
        return _bin_middles(filled), self._bins[filled]

    def distribution_ms(self) -> Distribution | None:
        """Statistics over all gaps, in ms; None without any.

        Ranks are among the gaps that are held: an interrupt may have come between counting one and holding it.
        """
        if not self.count:
            return None
        values, counts = self._multiset()
        if not len(values):
            return None
        mean_ps = self.total_ps / self.count
        variance = math.fsum(((values - mean_ps) ** 2 * counts).tolist()) / self.count
        ends = np.cumsum(counts)
        held = int(ends[-1])

        def percentile_ps(percent: float) -> float:
            rank = (held - 1) * percent / 100
            low = int(rank)
            below = int(values[np.searchsorted(ends, low, side="right")])
            above = int(values[np.searchsorted(ends, min(low + 1, held - 1), side="right")])
            return below + (above - below) * (rank - low)

        scale = 1e3 / PS_PER_S
        percentiles = {p: percentile_ps(p) * scale for p in PERCENTILES}
        return Distribution(mean=mean_ps * scale, std=variance**0.5 * scale, percentiles=percentiles)


def _binned(values: IntArray, counts: IntArray) -> IntArray:
    """How many gaps fall into each bin: a bin keeps a gap's leading BIN_BITS + 1 bits, so small ones are exact."""
    shift = np.maximum(np.frexp(values.astype(np.float64))[1] - (BIN_BITS + 1), 0).astype(np.int64)
    index = (shift << BIN_BITS) + (values >> shift)
    bins: IntArray = np.bincount(index, weights=counts, minlength=NUM_BINS).astype(np.int64)
    return bins


def _bin_middles(index: IntArray) -> IntArray:
    shift = np.maximum((index >> BIN_BITS) - 1, 0)
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    middles: IntArray = ((index - (shift << BIN_BITS)) << shift) + half
    return middles
