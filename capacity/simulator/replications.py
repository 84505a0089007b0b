"""Simulation of one configuration with several seeds; all compared configurations use the same seeds.

Run k of every configuration has the arrivals, lengths and failures of seed k (common random numbers). So two
configurations do not differ because of random traffic, and their difference varies less than either result. Different
seeds give independent random streams.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.base.latency_metrics import METRICS
from capacity.base.record import WrittenRecord
from capacity.simulator.distribution import PERCENTILES
from capacity.simulator.intervals import CONFIDENCE, Interval, mean_of_runs, t_quantile, variance
from capacity.simulator.metrics import LatencySummary

MAX_REPLICATIONS = 1000
RATES = ("request_throughput", "output_throughput", "request_goodput")
LATENCIES = tuple(
    f"{statistic}_{metric}_ms"
    for metric in METRICS
    for statistic in ("mean", *(f"p{percent}" for percent in PERCENTILES))
)
METRIC_NAMES = (*RATES, *LATENCIES)


def check_replications(count: int) -> None:
    """Raise InvalidInput if the number of runs is out of range."""
    if not 1 <= count <= MAX_REPLICATIONS:
        raise InvalidInput(f"--replications must be from 1 to {MAX_REPLICATIONS}, not {count}")


def replication_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Return `count` seeds: `seed` itself, then independent streams derived from it. Raises InvalidInput."""
    check_replications(count)
    children = np.random.SeedSequence(seed).spawn(count - 1)
    return (seed, *(int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replications:
    """Mean of each metric over runs with these seeds and its 95 % interval; None for a metric that any run lacks."""

    seeds: tuple[int, ...]
    metrics: Mapping[str, Interval | None]


def summarize_runs(seeds: Sequence[int], summaries: Iterable[LatencySummary]) -> Replications:
    """Return the means and intervals of all metrics over runs with these seeds."""
    columns = _columns(summaries)
    return Replications(
        seeds=tuple(seeds),
        metrics={name: None if values is None else mean_of_runs(values) for name, values in columns.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedMetric(WrittenRecord):
    """One metric of two configurations over the same seeds: means, and second minus first with its 95 % interval.

    `independent_half`: half-width that this interval would have with independent seeds. Independent seeds would need
    `variance_ratio` times as many runs for the same precision. Both fields are None for a single run; `variance_ratio`
    is also None if all differences are equal.
    """

    LAST: ClassVar[tuple[str, ...]] = ("significant",)

    metric: str
    first: float
    second: float
    difference: Interval
    independent_half: float | None
    variance_ratio: float | None

    @property
    def significant(self) -> bool:
        """Whether the confidence interval of the difference excludes 0."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)


def pair_runs(first: Iterable[LatencySummary], second: Iterable[LatencySummary]) -> tuple[PairedMetric, ...]:
    """Compare each metric of two configurations; both contain one summary per seed, in the same order."""
    before, after = _columns(first), _columns(second)
    return tuple(
        _pair(name, a, b)
        for name in METRIC_NAMES
        if (a := before[name]) is not None and (b := after[name]) is not None
    )


def _pair(name: str, first: list[float], second: list[float]) -> PairedMetric:
    count = len(first)
    together = [b - a for a, b in zip(first, second, strict=True)]
    alone = half = ratio = None
    if count > 1:
        alone = variance(first) + variance(second)
        paired = variance(together)
        half = t_quantile(CONFIDENCE, 2 * (count - 1)) * math.sqrt(alone / count)
        ratio = alone / paired if paired else None
    return PairedMetric(
        metric=name,
        first=fmean(first),
        second=fmean(second),
        difference=mean_of_runs(together),
        independent_half=half,
        variance_ratio=ratio,
    )


def _columns(summaries: Iterable[LatencySummary]) -> dict[str, list[float] | None]:
    rows = [summary.to_dict() for summary in summaries]
    if not rows:
        raise InvalidInput("--replications needs at least 1 run")
    return {
        name: None if any(row[name] is None for row in rows) else [float(row[name]) for row in rows]
        for name in METRIC_NAMES
    }
