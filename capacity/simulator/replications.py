"""One configuration simulated with several seeds, the same seeds for all configurations that are compared.

Run k of any configuration sees the arrivals, lengths and failures of seed k: common random numbers. What two
configurations differ by is then theirs and not the draw's, and the difference of a pair of runs varies less than
either run. The seeds themselves are independent streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.base.latency_metrics import METRICS
from capacity.base.record import Written
from capacity.simulator.distribution import PERCENTILES
from capacity.simulator.intervals import CONFIDENCE, Interval, mean_of_runs, paired_difference, t_quantile
from capacity.simulator.metrics import LatencySummary

MOST_REPLICATIONS = 1000
RATES = ("request_throughput", "output_throughput", "request_goodput")
LATENCIES = tuple(
    f"{statistic}_{metric}_ms"
    for metric in METRICS
    for statistic in ("mean", *(f"p{percent}" for percent in PERCENTILES))
)
FIGURES = (*RATES, *LATENCIES)


def check_replications(count: int) -> None:
    """Raises InvalidInput for a number of runs that is none, or more than anybody waits for."""
    if not 1 <= count <= MOST_REPLICATIONS:
        raise InvalidInput(f"--replications must be from 1 to {MOST_REPLICATIONS}, not {count}")


def replication_seeds(seed: int, count: int) -> tuple[int, ...]:
    """`count` seeds: `seed` itself, then independent streams that depend on it alone. Raises InvalidInput."""
    check_replications(count)
    children = np.random.SeedSequence(seed).spawn(count - 1)
    return (seed, *(int(child.generate_state(1, np.uint64)[0] >> np.uint64(1)) for child in children))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replications:
    """Every metric's mean over runs with these seeds, with its 95 % interval; None where a run does not have it."""

    seeds: tuple[int, ...]
    metrics: Mapping[str, Interval | None]


def over_runs(seeds: Sequence[int], summaries: Iterable[LatencySummary]) -> Replications:
    """What runs with these seeds say together."""
    columns = _columns(summaries)
    return Replications(
        seeds=tuple(seeds),
        metrics={name: None if values is None else mean_of_runs(values) for name, values in columns.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedMetric(Written):
    """One metric of two configurations over the same seeds: means, and second less first with its 95 % interval.

    `independent_half` is the half-width that runs with seeds of their own would have had, and `variance_ratio` how many
    times as many of those it would take; None where one run, or none that differ, say nothing.
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
        """Whether the interval leaves 0 out."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)


def pair_runs(first: Iterable[LatencySummary], second: Iterable[LatencySummary]) -> tuple[PairedMetric, ...]:
    """Seed by seed: runs of the first and of the second configuration, in the same order."""
    before, after = _columns(first), _columns(second)
    return tuple(
        _pair(name, a, b)
        for name in FIGURES
        if (a := before[name]) is not None and (b := after[name]) is not None
    )


def _pair(name: str, first: list[float], second: list[float]) -> PairedMetric:
    count = len(first)
    together = [b - a for a, b in zip(first, second, strict=True)]
    alone = half = ratio = None
    if count > 1:
        alone = _variance(first) + _variance(second)
        paired = _variance(together)
        half = t_quantile(CONFIDENCE, 2 * (count - 1)) * math.sqrt(alone / count)
        ratio = alone / paired if paired else None
    return PairedMetric(
        metric=name,
        first=math.fsum(first) / count,
        second=math.fsum(second) / count,
        difference=paired_difference(first, second),
        independent_half=half,
        variance_ratio=ratio,
    )


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _columns(summaries: Iterable[LatencySummary]) -> dict[str, list[float] | None]:
    rows = [summary.to_dict() for summary in summaries]
    if not rows:
        raise InvalidInput("no runs to put together")
    return {
        name: None if any(row[name] is None for row in rows) else [float(row[name]) for row in rows]
        for name in FIGURES
    }
