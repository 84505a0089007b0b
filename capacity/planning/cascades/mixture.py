"""Latency distribution of requests that follow different paths; a path is a sequence of stages.

Stage times of a path are assumed to be independent. Errors of the stages may have the same sign, so the 90 % interval
of the result is computed with all stages at the low end of their interval and with all at the high end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from capacity.answers.records import Quantity

Statistic = Literal["mean", "p95"]
Ends = tuple[float, float]  # of an interval, relative to the value
Times = npt.NDArray[np.float64]

EXACT: Ends = (1.0, 1.0)
MAX_POINTS = 512  # limit per stage when stages are added, because all pairs of points are formed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """Times of one processing stage in seconds, one for each simulated request. `mean_ends` and `p95_ends` are the
    relative 90 % intervals of the mean and of the p95; None if unknown."""

    seconds: Times
    mean_ends: Ends | None = EXACT
    p95_ends: Ends | None = EXACT

    @classmethod
    def constant(cls, seconds: float) -> "Stage":
        """Return a stage that takes `seconds` for every request, without error."""
        return cls(seconds=np.array([seconds]))

    def ends(self, statistic: Statistic) -> Ends | None:
        """Return the 90 % interval of the mean or the p95, relative to its value; None if unknown."""
        return self.mean_ends if statistic == "mean" else self.p95_ends


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPath:
    """Stages that a share of the requests passes through in sequence."""

    share: float
    stages: tuple[Stage, ...]


def mixture_latency(ways: Sequence[RequestPath], statistic: Statistic) -> Quantity:
    """Return the mean or the p95 latency of all requests in seconds; the shares of the paths add up to 1."""
    taken = [way for way in ways if way.share > 0]
    value = _statistic_at(taken, statistic, None)
    if any(stage.ends(statistic) is None for way in taken for stage in way.stages):
        return Quantity(value=value)
    return Quantity(
        value=value, low=_statistic_at(taken, statistic, 0), high=_statistic_at(taken, statistic, 1)
    )


def _statistic_at(ways: Sequence[RequestPath], statistic: Statistic, end: int | None) -> float:
    """Return the mean or p95 latency at the low (0) or high (1) end of all stage intervals, or as predicted (None)."""
    if statistic == "mean":
        return sum(
            way.share * sum(float(_times_at(stage, statistic, end).mean()) for stage in way.stages)
            for way in ways
        )
    times = []
    for way in ways:
        first, *others = (_times_at(stage, statistic, end) for stage in way.stages)
        for other in others:  # the distribution of a sum of independent times: all pairs of points
            first = (_thin_out(first)[:, None] + _thin_out(other)[None, :]).ravel()
        times.append(first)
    weights = [np.full(len(drawn), way.share / len(drawn)) for way, drawn in zip(ways, times, strict=True)]
    return _quantile(np.concatenate(times), np.concatenate(weights), 0.95)


def _times_at(stage: Stage, statistic: Statistic, end: int | None) -> Times:
    ends = stage.ends(statistic)
    return stage.seconds if end is None or ends is None else stage.seconds * ends[end]


def _thin_out(times: Times) -> Times:
    """Return at most `MAX_POINTS` times of the same distribution, at equally spaced quantiles."""
    if len(times) <= MAX_POINTS:
        return times
    return np.quantile(times, (np.arange(MAX_POINTS) + 0.5) / MAX_POINTS)


def _quantile(times: Times, weights: Times, part: float) -> float:
    """Return the weighted quantile at fraction `part`, interpolated between neighbouring times."""
    order = np.argsort(times, kind="stable")
    times, reached = times[order], np.cumsum(weights[order])
    middles = (reached - weights[order] / 2) / reached[-1]
    return float(np.interp(part, middles, times))
