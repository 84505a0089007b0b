"""Confidence intervals of simulated metrics, from batches of one run and from runs with different seeds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from capacity.base.errors import InvalidInput
from capacity.simulator.gap_counter import BATCH_BIN_BITS, MAX_BATCHES, bin_middles_ps
from capacity.step import PS_PER_S
from capacity.workload.columns import FloatArray, IntArray

CONFIDENCE = 0.95
BATCHES = 20  # of one run: enough for a variance, and each longer than the correlation time of a queue
MIN_PER_BATCH = 5
MIN_VALUES_BEYOND = 5  # independent values beyond a percentile; with fewer, that bound is None
SPARSE_TAIL_FACTOR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value and its 95 % confidence interval; a bound is None if the data do not determine it."""

    value: float
    low: float | None
    high: float | None


def percentile_intervals(values: npt.NDArray[Any], percents: Sequence[float]) -> list[Interval | None]:
    """Return the confidence interval of each percentile in `percents` (ascending); None if there are no `values`.

    `values` are in time order and may be correlated. First, the interval of the share of values below the percentile
    is computed on the log-odds scale. Its standard error is from batch means, with a first-order autoregressive
    correction for correlation between batches. Then this interval of shares is converted to values. No distribution is
    assumed. Bounds ascend with the percentile. Source: Law, Simulation Modeling and Analysis, ch. 9.
    """
    count = len(values)
    if not count:
        return [None for _ in percents]
    ordered = np.sort(values)
    found = [float(value) for value in np.percentile(ordered, percents)]
    if count < BATCHES * MIN_PER_BATCH:
        return [Interval(value=value, low=None, high=None) for value in found]
    sizes = np.array([len(part) for part in np.array_split(ordered, BATCHES)])
    edges = np.cumsum(sizes) - sizes
    places = [
        _RankInterval.from_shares(
            np.add.reduceat(values <= value, edges, dtype=np.int64) / sizes, percent / 100, count
        )
        for value, percent in zip(found, percents, strict=True)
    ]

    def is_known(place: float, beyond: float) -> bool:
        return beyond >= MIN_VALUES_BEYOND and count * min(place, 1 - place) >= 1

    wanted = [(each.low, is_known(each.low, each.below)) for each in places]
    wanted += [(each.high, is_known(each.high, each.above)) for each in places]
    bounds = iter(np.quantile(ordered, [place for place, is_known in wanted if is_known]).tolist())
    ends = [next(bounds) if is_known else None for _, is_known in wanted]
    return _make_rising(
        Interval(value=value, low=low, high=high)
        for value, low, high in zip(found, ends[: len(places)], ends[len(places) :], strict=True)
    )


def _make_rising(intervals: Iterable[Interval]) -> list[Interval | None]:
    """Adjust the intervals of ascending percentiles so that their bounds ascend too."""
    found = list(intervals)
    for i in range(1, len(found)):
        below, low = found[i - 1].low, found[i].low
        if below is not None and low is not None and low < below:
            found[i] = replace(found[i], low=below)
    for i in range(len(found) - 2, -1, -1):
        above, high = found[i + 1].high, found[i].high
        if above is not None and high is not None and high > above:
            found[i] = replace(found[i], high=above)
    return [*found]


def gap_intervals_ms(batches: IntArray, percents: Sequence[float]) -> list[Interval | None]:
    """Return the interval (ms) of each gap percentile in `percents` (ascending), from the histograms of `GapBatches`.

    The precision is the width of a bin, 0.4 %. With fewer than 10 batches (a short run or a short steady part), the
    bounds of all intervals are None. Without gaps, the intervals themselves are None.
    """
    used = np.flatnonzero(batches.any(axis=0))
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, -1)
    batches = batches[:, first : last + 1]
    counts = batches.sum(axis=1)
    batches, counts = batches[counts > 0], counts[counts > 0]
    total = int(counts.sum())
    if not total:
        return [None for _ in percents]
    reached = np.cumsum(batches.sum(axis=0)) / total
    middles_ms = bin_middles_ps(np.arange(first, last + 1), BATCH_BIN_BITS) * (1e3 / PS_PER_S)

    def value_at(place: float) -> float:
        return float(middles_ms[min(int(np.searchsorted(reached, place)), len(middles_ms) - 1)])

    def interval(share: float) -> Interval:
        value = value_at(share)
        if len(batches) < MAX_BATCHES // 4 or total < BATCHES * MIN_PER_BATCH:
            return Interval(value=value, low=None, high=None)
        place = int(np.searchsorted(reached, share))
        below = batches[:, : place + 1].sum(axis=1) / counts
        places = _RankInterval.from_shares(below, share, total)
        return Interval(
            value=value,
            low=min(value_at(places.low), value) if places.below >= MIN_VALUES_BEYOND else None,
            high=max(value_at(places.high), value)
            if places.above >= MIN_VALUES_BEYOND and places.high < 1
            else None,
        )

    return _make_rising(interval(percent / 100) for percent in percents)


def share_interval(within: npt.NDArray[Any]) -> Interval | None:
    """Return the interval of the share of requests within an SLO's limit, by batch means on the log-odds scale.

    `within`: a bool per request, in time order. If the share is 0 or 1, one bound equals the share, and the other is
    computed as for independent requests.
    """
    count = len(within)
    if not count:
        return None
    value = float(np.mean(within))
    if count < BATCHES * MIN_PER_BATCH:
        return Interval(value=value, low=None, high=None)
    if value in (0.0, 1.0):
        open_end = (1 - CONFIDENCE) ** (
            1 / count
        )  # the share at which this many in a row have probability 1 - CONFIDENCE
        return Interval(value=value, low=open_end if value else 0.0, high=1.0 if value else 1 - open_end)
    batches = np.array([part.mean() for part in np.array_split(within, BATCHES)])
    places = _RankInterval.from_shares(batches, value, count, of_share=True)
    return Interval(value=value, low=places.low, high=places.high)


@dataclass(frozen=True, slots=True)
class _RankInterval:
    """Interval of a percentile's rank (0 to 1); `below`, `above`: effective numbers of values below and above it."""

    low: float
    high: float
    below: float
    above: float

    @classmethod
    def from_shares(
        cls, batch_shares: FloatArray, share: float, count: int, *, of_share: bool = False
    ) -> "_RankInterval":
        """Return the interval of a percentile's rank from the share of values below the percentile in each batch.

        The interval is computed on the log-odds scale. The few values beyond a percentile occur in even fewer clusters,
        and the number of clusters is random. So the distance of each bound is multiplied by 1 + 3 / (effective number
        of values on the side of this bound); without this factor, the intervals of M/M/1 at a load of 0.7 contain the
        true value in fewer than nine of ten runs. `of_share`: return the interval of the share itself. Few values above
        the percentile then widen the lower bound instead of the upper one.
        """
        # at least the error of independent values, because batches may agree by chance
        error = max(_standard_error(batch_shares), math.sqrt(share * (1 - share) / count))
        independent = share * (1 - share) / error**2
        below, above = independent * share, independent * (1 - share)
        half = t_quantile(CONFIDENCE, len(batch_shares) - 1) * error / (share * (1 - share))
        centre = math.log(share / (1 - share))
        rare = (above, below) if of_share else (below, above)
        wider = [1 + SPARSE_TAIL_FACTOR / max(number, MIN_VALUES_BEYOND) for number in rare]
        ends = centre - half * wider[0], centre + half * wider[1]
        low, high = (1 / (1 + math.exp(-min(at, 500.0))) if at > -500 else 0.0 for at in ends)
        return cls(low, high, below, above)


def _standard_error(batch_means: FloatArray) -> float:
    spread = batch_means - batch_means.mean()
    squares = float(spread @ spread)
    if not squares:
        return 0.0
    memory = min(max(float(spread[1:] @ spread[:-1]) / squares, 0.0), 0.8)
    count = len(batch_means)
    return math.sqrt(squares / (count - 1) / count * (1 + memory) / (1 - memory))


def mean_of_runs(values: Sequence[float]) -> Interval:
    """Return the mean over independent runs with Student's t interval; a single run has no bounds."""
    if not values:
        raise InvalidInput("the mean of a metric over runs needs at least 1 run")
    mean = fmean(values)
    if len(values) < 2:
        return Interval(value=mean, low=None, high=None)
    half = t_quantile(CONFIDENCE, len(values) - 1) * math.sqrt(variance(values) / len(values))
    return Interval(value=mean, low=mean - half, high=mean + half)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance of at least two values."""
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def t_quantile(confidence: float, degrees: int) -> float:
    """Return the two-sided quantile of Student's t distribution. Source: Hill, CACM Algorithm 396 (1970)."""
    n, tails = degrees, 1 - confidence
    if n == 1:
        return 1 / math.tan(tails * math.pi / 2)
    if n == 2:
        return math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (n - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * tails) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tails / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (
            n + 1
        ) / (n + 2) + 1 / y
    return math.sqrt(n * y)
