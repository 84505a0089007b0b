"""Compare simulation results with the SLO, and detect early that it cannot be met."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from capacity.base.latency_metrics import METRICS
from capacity.simulator import SimulationResult
from capacity.simulator.levels import gap_percentile_ms
from capacity.simulator.metrics import RequestTable
from capacity.step import PS_PER_S
from capacity.workload import Slo, Workload
from capacity.workload.windows import Window, evaluated_windows, window_rows

Floats = npt.NDArray[np.float64]
Seen = Literal["all", "sample", "given up"]

FAILED_LATENCY_S = 1e9  # latency of a rejected or unfinished request, in percentiles
BOOTSTRAP_BLOCKS = 20
BOOTSTRAP_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """SLOs to meet; `goodput_target` is the fraction of requests that must meet the SLOs without a percentile."""

    slos: tuple[Slo, ...]
    goodput_target: float = 0.99

    def may_miss(self, slo: Slo) -> float:
        """Return the fraction of requests that may exceed the limit of an SLO."""
        return 1 - self.goodput_target if slo.percentile is None else 1 - slo.percentile / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Result for one SLO in a simulation.

    `value_s` is the latency at the SLO's percentile; None for a limit on each request. `good_fraction` is the fraction
    of requests within the limit. `ratio` is latency divided by limit (above 1: missed). For a limit on each request,
    this latency is that of the slowest of the `required_fraction` fastest requests. `low_s` to `high_s` is the 90 %
    interval of `value_s` from a bootstrap over blocks of consecutive requests; None if not requested.
    """

    slo: str
    limit_s: float
    value_s: float | None
    good_fraction: float
    required_fraction: float
    ratio: float
    met: bool
    low_s: float | None = None
    high_s: float | None = None

    @property
    def includes_wait(self) -> bool:
        """Return whether the latency is measured from the arrival, so that it includes queueing."""
        return METRICS[self.slo.partition(":")[0]].from_arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLevels:
    """SLO results over the requests of one window; `judged`: the SLO must be met in this window."""

    window: Window
    judged: bool
    levels: tuple[Level, ...]

    @property
    def ratio(self) -> float:
        """Return the highest ratio of latency to limit of all SLOs."""
        return max((level.ratio for level in self.levels), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Result of a simulated deployment.

    `seen` is "all" (all requests were simulated), "sample" (one replica or one sample represented all), or "given
    up" (the simulation stopped because the SLO could no longer be met; values then cover the simulated part).
    """

    levels: tuple[Level, ...]
    met: bool
    seen: Seen
    requests: int
    output_tokens_per_s: float
    input_tokens_per_s: float
    requests_per_s: float
    tokens_per_s_per_user: float | None
    mean_e2e_s: float
    mean_batch_size: float
    kv_utilization_peak: float
    preemptions: int
    hit_fraction: float = 0.0  # fraction of prompt tokens from the prefix cache
    joint_ratio: float = 0.0  # as a level's ratio, of all limits on each request together
    window: Window | None = None  # the worst judged window of the whole traffic, which `levels` describe
    windows: tuple[WindowLevels, ...] = ()  # in time order; empty if traffic was not judged by window

    @property
    def ratio(self) -> float:
        """Return the highest ratio of latency to limit of all SLOs; at most 1 if all are met."""
        return max((self.joint_ratio, *(level.ratio for level in self.levels)))

    @property
    def decode_missed(self) -> bool:
        """Return whether a limit on a latency without queueing, such as TPOT, was missed."""
        return any(level.ratio > 1 and not level.includes_wait for level in self.levels)


def evaluate_slos(
    runs: Sequence[SimulationResult],
    goal: Goal,
    *,
    seen: Seen,
    replicas: int = 1,
    intervals: bool = False,
    users: bool = False,
) -> Evaluation:
    """Return the evaluation of `runs`; one run represents `replicas` replicas, so throughputs are multiplied.

    `users`: the runs are closed loops of users with think times. Throughput is then computed from the middle 80 % of
    the requests sent, because the last responses of a closed loop take long.
    """
    tables = [run.records for run in runs]
    tpot = latencies_s(tables, "tpot")
    levels, joint = _levels(runs, goal, intervals=intervals)
    # from the first arrival to the last completion of each run; MISSING is -1
    spans_ps = (int(table.finish_ps.max()) - int(table.arrival_ps.min()) for table in tables)
    duration_s = sum(max(span_ps, 0) / PS_PER_S for span_ps in spans_ps)
    if users:
        duration_s = sum(map(_steady_span_s, tables))

    def sum_completed(column: str) -> int:
        return sum(int(getattr(table, column)[table.completed].sum()) for table in tables)

    def rate(count: int) -> float:
        return count * replicas / duration_s if duration_s else 0.0

    prompt_tokens = sum_completed("prompt_tokens")
    return Evaluation(
        levels=levels,
        met=seen != "given up" and all(level.met for level in levels),
        seen=seen,
        requests=sum(len(table) for table in tables),
        output_tokens_per_s=rate(sum_completed("output_tokens")),
        input_tokens_per_s=rate(prompt_tokens),
        requests_per_s=rate(sum_completed("completed")),
        tokens_per_s_per_user=float(1 / np.median(tpot)) if len(tpot) else None,
        mean_e2e_s=float(latencies_s(tables, "e2el").mean()),
        mean_batch_size=sum(run.mean_batch_size * run.steps for run in runs)
        / max(sum(r.steps for r in runs), 1),
        kv_utilization_peak=max(run.kv_utilization_peak for run in runs),
        preemptions=sum(run.preemptions for run in runs),
        hit_fraction=sum_completed("cached_tokens") / prompt_tokens if prompt_tokens else 0.0,
        joint_ratio=joint,
    )


def _steady_span_s(table: RequestTable) -> float:
    """Return the seconds in which all requests would be sent at the rate of the middle 80 % of the requests."""
    low, high = np.quantile(table.arrival_ps, (0.1, 0.9))
    return float(high - low) / 0.8 / PS_PER_S


def evaluate_windows(
    runs: Sequence[SimulationResult],
    workloads: Sequence[Workload],
    windows: Sequence[Window],
    goal: Goal,
    busiest: Evaluation,
) -> Evaluation:
    """Compare runs of the whole `workloads` with the SLO in each of `windows`; return the result of the worst window
    in which the SLO must be met.

    `busiest` is the result of simulating the busiest window alone. SLOs on gaps between tokens take their value from
    it, because runs do not record the time of each gap.
    """
    owed = replace(goal, slos=tuple(slo for slo in goal.slos if slo.applies_to_requests))
    found: list[tuple[WindowLevels, list[SimulationResult]]] = []
    owing = evaluated_windows(windows)
    for window in windows:
        parts = [
            replace(run, records=run.records.rows(window_rows(workload, window)))
            for run, workload in zip(runs, workloads, strict=True)
        ]
        parts = [part for part in parts if len(part.records)]
        levels, _ = _levels(parts, owed, intervals=False)
        found.append((WindowLevels(window=window, judged=window in owing, levels=levels), parts))
    worst, parts = max((each for each in found if each[0].judged), key=lambda each: each[0].ratio)
    trial = evaluate_slos(parts, owed, seen="all", intervals=True)
    known = {level.slo: level for level in (*busiest.levels, *trial.levels)}
    return replace(
        trial,
        levels=tuple(known[str(slo)] for slo in goal.slos),
        met=busiest.met and all(level.met for each, _ in found if each.judged for level in each.levels),
        window=worst.window,
        windows=tuple(sorted((each for each, _ in found), key=lambda each: each.window.start_s)),
    )


def _levels(
    runs: Sequence[SimulationResult], goal: Goal, *, intervals: bool
) -> tuple[tuple[Level, ...], float]:
    """Return the result of each SLO, and the joint ratio of all SLOs without a percentile.

    Each request's highest ratio of latency to limit is computed; the joint ratio is the `goal.goodput_target` quantile
    of these values over the requests.
    """
    tables = [run.records for run in runs]
    each = {slo: _ratios_of_requests(tables, slo) for slo in goal.slos if slo.percentile is None}
    joint = _ratio_at(np.max(list(each.values()), axis=0), goal.goodput_target) if each else 0.0
    levels = tuple(
        _level(slo, runs, intervals=intervals)
        if slo.percentile is not None
        else _level_of_each(slo, each[slo], goal, met=joint <= 1)
        for slo in goal.slos
    )
    return levels, joint


def _ratios_of_requests(tables: Sequence[RequestTable], slo: Slo) -> Floats:
    """Return each request's latency divided by the limit; a failed request has latency `FAILED_LATENCY_S`, a request
    with one output token has TPOT 0."""
    ratios = []
    for table in tables:
        time_ps, parts = table.span_ps(slo.metric)
        limits_s = slo.limit_s * np.maximum(parts, 1)
        ratios.append(
            np.where(table.completed, time_ps / PS_PER_S / limits_s, FAILED_LATENCY_S / slo.limit_s)
        )
    return np.concatenate(ratios)


def _ratio_at(ratios: Floats, share: float) -> float:
    """Return the `share` quantile: the smallest ratio that at least this fraction of requests does not exceed."""
    count = len(ratios)
    if not count:
        return FAILED_LATENCY_S
    needed = math.ceil(share * count)
    needed -= (needed - 1) / count >= share
    needed += needed / count < share
    return float(np.partition(ratios, needed - 1)[needed - 1])


def _level_of_each(slo: Slo, ratios: Floats, goal: Goal, *, met: bool) -> Level:
    """Return the result for an SLO without percentile; `met`: enough requests meet all such SLOs together."""
    return Level(
        slo=str(slo),
        limit_s=slo.limit_s,
        value_s=None,
        good_fraction=float((ratios <= 1).mean()) if len(ratios) else 0.0,
        required_fraction=goal.goodput_target,
        ratio=_ratio_at(ratios, goal.goodput_target),
        met=met,
    )


def _level(slo: Slo, runs: Sequence[SimulationResult], *, intervals: bool) -> Level:
    assert slo.percentile is not None
    low_s, high_s = None, None
    if not slo.applies_to_requests:
        gaps_ms = [gap_percentile_ms(slo, run.summary) for run in runs]
        value_s = max((each * 1e-3 for each in gaps_ms if each is not None), default=None)
        within = float(slo.is_met(value_s))
    else:
        blocks = [_column(run.records, slo.metric) for run in runs]
        values = np.concatenate(blocks)
        within = float((values <= slo.limit_s).mean()) if len(values) else 1.0
        value_s = slo.value_s(values)
        if intervals and len(values):
            low_s, high_s = _interval(blocks, slo.percentile)
    return Level(
        slo=str(slo),
        limit_s=slo.limit_s,
        value_s=value_s or 0.0,
        good_fraction=within,
        required_fraction=slo.percentile / 100,
        ratio=(value_s or 0.0) / slo.limit_s,
        met=slo.is_met(value_s),
        low_s=low_s,
        high_s=high_s,
    )


def _interval(runs: Sequence[Floats], percentile: float) -> tuple[float, float]:
    """Return the 90 % bootstrap interval of a percentile, from blocks of consecutive requests to keep bursts intact."""
    blocks = [block for values in runs for block in np.array_split(values, BOOTSTRAP_BLOCKS) if len(block)]
    draws = np.random.default_rng(0).integers(0, len(blocks), size=(BOOTSTRAP_DRAWS, len(blocks)))
    values = percentiles_of_draws(blocks, draws, percentile / 100)
    return float(np.percentile(values, 5)), float(np.percentile(values, 95))


def percentiles_of_draws(blocks: Sequence[Floats], draws: npt.NDArray[np.int64], share: float) -> Floats:
    """Return `np.quantile(np.concatenate([blocks[i] for i in draw]), share)` of each draw; values are sorted once."""
    lengths = np.array([len(block) for block in blocks])
    values = np.concatenate(blocks)
    order = np.argsort(values, kind="stable")
    owner = np.repeat(np.arange(len(blocks)), lengths)[order]
    reached = np.cumsum(owner[:, None] == np.arange(len(blocks)), axis=0)  # cumulative values of each block
    times = np.stack([np.bincount(draw, minlength=len(blocks)) for draw in draws])
    at = (times @ lengths - 1) * share
    low = np.floor(at).astype(np.int64)
    below, above = (values[order][_index_of_rank(reached, times, rank)] for rank in (low, np.ceil(at)))
    part, step = at - low, above - below
    between: Floats = np.where(part < 0.5, below + step * part, above - step * (1 - part))  # as numpy does
    return between


def _index_of_rank(
    reached: npt.NDArray[np.int64], times: npt.NDArray[np.int64], ranks: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Return the index of the value with rank `ranks[i]` of each resample i, in the sorted values of all blocks."""
    low = np.zeros(len(times), dtype=np.int64)
    high = np.full(len(times), len(reached) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        enough = (reached[middle] * times).sum(axis=1) > ranks
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return low


def projected_miss_ratio(
    runs: Sequence[SimulationResult], goal: Goal, total: int, *, share: float, alone: bool
) -> float:
    """Return the number of requests that exceed a limit divided by the permitted number, the highest over all SLOs.

    Above 1, the SLO counts as missed. `runs` simulate some requests of a subset of the traffic, such as those of one
    replica; the subset has the fraction `share` of all `total` requests. With `alone`, the permitted number is that
    for the subset; otherwise it is twice that, because other subsets may have fewer misses.
    """
    part = min(1.0, share * (1 if alone else 2))
    return max(
        (bad / (math.ceil(total * permitted * part) + 1) for bad, permitted in _misses(runs, goal)),
        default=0.0,
    )


def cannot_meet_slo(
    runs: Sequence[SimulationResult], goal: Goal, total: int, *, share: float, parts: int
) -> bool:
    """Return whether the SLO cannot be met because too many requests exceed a limit.

    With `share` 1, the number of requests that exceed a limit is compared with the number permitted among all `total`
    requests. With `share` below 1, it is compared with 1 + 1/`parts` times the number permitted among the fraction
    `share` of all requests, which were simulated so far in `parts` equal traffic samples; True is then an
    extrapolation. In both cases, one request more than permitted is tolerated.
    """
    part = min(1.0, share * (1 + 1 / parts))
    return any(bad > math.ceil(total * permitted * part) + 1 for bad, permitted in _misses(runs, goal))


def _misses(runs: Sequence[SimulationResult], goal: Goal) -> Iterator[tuple[int, float]]:
    """Yield, for each limit, the number of requests that exceed it and the permitted fraction of requests."""
    tables = [run.records for run in runs]
    for slo in goal.slos:
        if slo.applies_to_requests:
            yield int((latencies_s(tables, slo.metric) > slo.limit_s).sum()), goal.may_miss(slo)


def latencies_s(tables: Iterable[RequestTable], metric: str) -> Floats:
    """Return the latency of each request (TPOT: with two or more output tokens); `FAILED_LATENCY_S` if it failed."""
    columns = [_column(table, metric) for table in tables]
    return np.concatenate(columns) if columns else np.empty(0)


def _column(table: RequestTable, metric: str) -> Floats:
    values = np.where(table.completed, table.latency_s(metric), FAILED_LATENCY_S)
    return values[~np.isnan(values)]
