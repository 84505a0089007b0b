"""Counter of gaps between token deliveries (ITL) in bounded memory: mean, percentiles, confidence intervals."""

import math
from collections import Counter

import numpy as np

from capacity.simulator.distribution import PERCENTILES, Distribution
from capacity.step import PS_PER_S
from capacity.workload.columns import IntArray

EXACT_GAPS = 1 << 16  # distinct gaps kept exactly; more are counted in bins
BIN_BITS = 11  # bins per octave, as a power of two: precision 2**-11, 0.05 %
MAX_BATCHES = 40  # with more, pairs are merged: a long run has at least 20
BATCH_BIN_BITS = 8  # of a batch: precision 0.4 %
NUM_BATCH_BINS = 64 << BATCH_BIN_BITS
FIRST_SIZE = 16  # initial gaps per batch


class GapBatches:
    """Histograms of gaps (ps) in successive batches with equal numbers of gaps, for the variance of percentiles.

    Equal gaps of one step stay in one batch, so a batch may have slightly more gaps than another.
    """

    def __init__(self) -> None:
        self._batches: list[Counter[int]] = [Counter() for _ in range(MAX_BATCHES)]  # how often, by bin
        self._size = FIRST_SIZE
        self._seen = 0
        self._of_core: tuple[IntArray, int] | None = None

    @classmethod
    def from_core(cls, used: IntArray, first_bin: int, *, size: int) -> "GapBatches":
        """Return batches of the compiled core: row i of `used` has the counts of batch i from bin `first_bin` on."""
        batches = cls()
        batches._of_core, batches._size = (used, first_bin), size
        return batches

    def add(self, gap_ps: int, count: int) -> None:
        """Add `count` equal gaps; calls must be in the order of the deliveries."""
        first = self._seen
        self._seen += count
        while self._seen > MAX_BATCHES * self._size:
            merged = [one + other for one, other in zip(self._batches[::2], self._batches[1::2])]
            self._batches = merged + [Counter() for _ in merged]
            self._size *= 2
        self._batches[first // self._size][bin_index(gap_ps, BATCH_BIN_BITS)] += count

    def histograms(self) -> IntArray:
        """Return gap counts as an array: a row per batch in time order (the last may be partial), a column per bin."""
        if self._of_core is not None:
            used, first_bin = self._of_core
            counts = np.zeros((len(used), NUM_BATCH_BINS), dtype=np.int64)
            counts[:, first_bin : first_bin + used.shape[1]] = used
            return counts
        counts = np.zeros((-(-self._seen // self._size), NUM_BATCH_BINS), dtype=np.int64)
        for row, batch in zip(counts, self._batches):
            row[list(batch)] = list(batch.values())
        return counts


class GapCounter:
    """Counts of gaps between deliveries in bounded memory: by exact value, or by histogram bin if there are many.

    The mean is always exact; percentiles and the standard deviation have the relative precision `resolution`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total_ps = 0
        self.resolution = 0.0  # relative width of a bin; 0: exact
        self._times: Counter[int] = Counter()  # how often each gap, or each bin
        self._batches = GapBatches()
        self._of_core: tuple[IntArray, IntArray] | None = None

    @classmethod
    def from_core(
        cls,
        multiset: tuple[IntArray, IntArray],
        *,
        resolution: float,
        total_ps: int,
        batches: GapBatches,
    ) -> "GapCounter":
        """Return a counter with the compiled core's data: `multiset` is (gaps in ascending order, their counts)."""
        gaps = cls()
        gaps.count, gaps.total_ps, gaps.resolution = int(multiset[1].sum()), total_ps, resolution
        gaps._of_core, gaps._batches = multiset, batches
        return gaps

    def batches(self) -> GapBatches:
        """Return the gaps as batches in time order, for confidence intervals of percentiles."""
        return self._batches

    def add(self, gap_ps: int, count: int = 1) -> None:
        """Add `count` equal gaps that end at the same time."""
        self.count += count
        self.total_ps += gap_ps * count
        self._batches.add(gap_ps, count)
        self._times[bin_index(gap_ps, BIN_BITS) if self.resolution else gap_ps] += count
        if len(self._times) > EXACT_GAPS and not self.resolution:
            self.resolution = 2.0**-BIN_BITS
            exact, self._times = self._times, Counter()
            for gap, times in exact.items():
                self._times[bin_index(gap, BIN_BITS)] += times

    def _multiset(self) -> tuple[IntArray, IntArray]:
        """Return the gaps in ascending order and their counts."""
        if self._of_core is not None:
            return self._of_core
        values, counts = np.array(sorted(self._times.items()), dtype=np.int64).reshape(-1, 2).T
        return bin_middles_ps(values, BIN_BITS) if self.resolution else values, counts

    def distribution_ms(self) -> Distribution | None:
        """Return statistics over all gaps in ms; None if there are none.

        Percentiles use the number of stored gaps: after an interrupt, `count` may include a gap that is not stored yet.
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


def bin_index(gap_ps: int, bits: int) -> int:
    """Return a gap's bin number, from its leading `bits` + 1 bits and their position; small gaps are exact."""
    shift = max(gap_ps.bit_length() - (bits + 1), 0)
    return (shift << bits) + (gap_ps >> shift)


def bin_middles_ps(bins: IntArray, bits: int) -> IntArray:
    """Return the gap in the middle of each bin, rounded down."""
    shift = np.maximum((bins >> bits) - 1, 0)
    middles: IntArray = ((bins - (shift << bits)) << shift) + ((1 << shift) >> 1)
    return middles
