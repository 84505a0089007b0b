"""One deployment on the real traffic: the arrivals split over its replicas, simulated, and held against the SLO.

Replicas are identical and share nothing. Until there are routers, request i goes to replica i mod R, as a
round-robin balancer sends it; turns of one session stay together; a closed loop's concurrency is split evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from capacity.errors import InvalidInput
from capacity.metrics import PERCENTILES, RequestTable
from capacity.planning.step_error import Factors, ScaledSteps
from capacity.resolve import ResolvedPool
from capacity.serving import serve
from capacity.simulator import SimulationResult
from capacity.step import PS_PER_S
from capacity.workload import Slo, Workload

Floats = npt.NDArray[np.float64]

Seen = Literal["all", "sample", "given up"]

NEVER_S = 1e9  # the latency of a request that was turned away or never ended, in percentiles
FIRST_LOOK = 6  # a long run is begun with the busiest one in so many of its requests
LONG_RUN = 1600  # requests
LEAST_SAMPLE = 400  # requests of one replica that may stand for all
BOOTSTRAP_BLOCKS = 20
BOOTSTRAP_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The service levels, and the share of requests that must meet those without a percentile."""

    slos: tuple[Slo, ...]
    goodput_target: float = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One service level held against a run. `value_s` is its percentile, or None for a limit owed to each request;
    `good_fraction` is the share of requests within the limit; `low_s` to `high_s` is the 90 % interval of
    `value_s` by resampling blocks of time, None where it was not asked for."""

    slo: str
    limit_s: float
    value_s: float | None
    good_fraction: float
    required_fraction: float
    met: bool
    low_s: float | None = None
    high_s: float | None = None

    @property
    def ratio(self) -> float:
        """Value over limit; above 1 is a miss. For limits owed to each request, bad share over what is allowed."""
        if self.value_s is not None:
            return self.value_s / self.limit_s
        allowed = 1 - self.required_fraction
        bad = 1 - self.good_fraction
        return bad / allowed if allowed > 0 else (1.0 if bad <= 0 else 1 + bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a deployment did. `seen`: "all" requests; a "sample" (one replica, for the others are like it); or it was
    "given up" once it could not meet the SLO any more, and its values are of the part that was simulated."""

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

    @property
    def ratio(self) -> float:
        """The worst level's value over its limit."""
        return max((level.ratio for level in self.levels), default=0.0)


def split(workload: Workload, replicas: int) -> Iterator[Workload]:
    """The part of each replica, in order. Raises InvalidInput for more replicas than requests at a time."""
    if replicas == 1:
        yield workload
        return
    most = len(workload) if workload.concurrency is None else workload.concurrency
    if replicas > most:
        raise InvalidInput(f"{replicas} replicas are more than the {most} requests there are at a time")
    places = np.arange(len(workload)) if workload.session is None else _ranks(workload.session)
    for replica in range(replicas):
        part = workload.take(np.flatnonzero(places % replicas == replica))
        if workload.concurrency is not None:
            share = workload.concurrency // replicas + (replica < workload.concurrency % replicas)
            part = replace(part, concurrency=share)
        yield part


def _ranks(sessions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Each request's session as a number, in the order in which sessions first appear."""
    _, first, inverse = np.unique(sessions, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    ranks: npt.NDArray[np.int64] = rank[inverse]
    return ranks


def most_replicas(workload: Workload) -> int:
    """Replicas beyond which some would have nothing to do."""
    if workload.concurrency is not None:
        return min(workload.concurrency, len(workload))
    return len(workload) if workload.session is None else len(np.unique(workload.session))


def simulate_trial(
    resolved: ResolvedPool,
    replicas: int,
    workloads: Sequence[Workload],
    goal: Goal,
    *,
    factors: Factors | None = None,
    give_up: bool = True,
    sample: bool = False,
    intervals: bool = False,
) -> Trial:
    """Serve each of `workloads` (replications of one traffic) with `replicas` engines; all requests are pooled.

    `factors` stretch the predicted step times. `give_up` stops as soon as the requests seen so far make a miss
    certain, in long runs as soon as they make it plain (`_hopeless`). `sample` simulates one replica of a long run
    in place of all. What stalls has failed.
    """
    steps = ScaledSteps(resolved.step_model, factors or Factors())
    total = sum(len(workload) for workload in workloads)
    parts = [part for workload in workloads for part in split(workload, replicas)]
    long = total >= LONG_RUN
    wanted = parts[:1] if sample and long and len(parts[0]) >= LEAST_SAMPLE else parts
    if give_up and long and not parts[0].is_closed_loop:
        look = [serve(resolved, _busiest(parts[0]), step_times=steps)]
        if _hopeless(look, goal, total, seen=1 / len(parts), parts=1):
            return _trial(look, 1, goal, seen="given up")
    runs: list[SimulationResult] = []
    for part in wanted:
        runs.append(serve(resolved, part, step_times=steps))
        if give_up and len(runs) < len(wanted):
            seen = len(runs) / len(parts) if long else 1.0
            if _hopeless(runs, goal, total, seen=seen, parts=len(runs)):
                return _trial(runs, 1, goal, seen="given up")
    if len(wanted) < len(parts):
        return _trial(runs, 1, goal, seen="sample", replicas=len(parts))
    return _trial(runs, len(workloads), goal, seen="all", intervals=intervals)


def _busiest(workload: Workload) -> Workload:
    """One in `FIRST_LOOK` of the requests: the stretch in which they come fastest, which alone fares no worse."""
    count = max(len(workload) // FIRST_LOOK, 1)
    spans_s = workload.arrival_s[count - 1 :] - workload.arrival_s[: len(workload) - count + 1]
    first = int(np.argmin(spans_s))
    return workload.take(np.arange(first, first + count))


def latencies_s(tables: Iterable[RequestTable], metric: str) -> Floats:
    """One metric of every request (TPOT: of those with two output tokens or more), `NEVER_S` for failed ones."""
    columns = [_column(table, metric) for table in tables]
    return np.concatenate(columns) if columns else np.empty(0)


def _column(table: RequestTable, metric: str) -> Floats:
    done = table.completed
    if metric == "tpot":
        several = done & (table.output_tokens > 1)
        decode_ps = (table.finish_ps - table.first_token_ps)[several]
        failed: Floats = np.full(int((~done).sum()), NEVER_S)
        return np.concatenate((decode_ps / PS_PER_S / (table.output_tokens[several] - 1), failed))
    end_ps = table.first_token_ps if metric == "ttft" else table.finish_ps
    values = (end_ps - table.arrival_ps) / PS_PER_S
    values[~done] = NEVER_S
    return np.asarray(values, dtype=np.float64)


def _hopeless(runs: Sequence[SimulationResult], goal: Goal, total: int, *, seen: float, parts: int) -> bool:
    """Whether too many requests are beyond a limit for the rest to make up for it.

    `seen` 1: certain, by counting: more are bad already than may be of all `total`. Below 1 it is the share of equal
    parts seen, and the rest is taken to be as bad: the share that is bad must exceed 1 + 1/parts times the allowed.
    """
    tables = [run.records for run in runs]
    for slo in goal.slos:
        if slo.metric == "itl":
            continue
        bad = int((latencies_s(tables, slo.metric) > slo.limit_s).sum())
        share = 1 - goal.goodput_target if slo.percentile is None else 1 - slo.percentile / 100
        allowed = total * share * min(1.0, seen * (1 + 1 / parts))
        if bad > math.ceil(allowed) + 1:
            return True
    return False


def _trial(
    runs: Sequence[SimulationResult],
    replications: int,
    goal: Goal,
    *,
    seen: Seen,
    replicas: int = 1,
    intervals: bool = False,
) -> Trial:
    """`replicas`: how many like the ones that ran there are, for the rates."""
    tables = [run.records for run in runs]
    tpot = latencies_s(tables, "tpot")
    together = _good_together(tables, goal)
    levels = tuple(_level(slo, runs, together, goal, intervals=intervals) for slo in goal.slos)
    each = len(runs) // replications
    duration_s = sum(_duration_s(tables[n * each : (n + 1) * each]) for n in range(replications))

    def rate(values: Iterable[int]) -> float:
        return sum(values) * replicas / duration_s if duration_s else 0.0

    return Trial(
        levels=levels,
        met=seen != "given up" and all(level.met for level in levels),
        seen=seen,
        requests=sum(len(table) for table in tables),
        output_tokens_per_s=rate(run.summary.total_output_tokens for run in runs),
        input_tokens_per_s=rate(run.summary.total_input_tokens for run in runs),
        requests_per_s=rate(run.summary.completed for run in runs),
        tokens_per_s_per_user=float(1 / np.median(tpot)) if len(tpot) else None,
        mean_e2e_s=float(latencies_s(tables, "e2el").mean()),
        mean_batch_size=sum(run.mean_batch_size * run.steps for run in runs)
        / max(sum(r.steps for r in runs), 1),
        kv_utilization_peak=max(run.kv_utilization_peak for run in runs),
        preemptions=sum(run.preemptions for run in runs),
    )


def _duration_s(tables: Sequence[RequestTable]) -> float:
    """From the first arrival to the last completion over the replicas of one run."""
    first = min(int(table.arrival_ps.min()) for table in tables)
    last = max(int(table.finish_ps.max()) for table in tables)  # MISSING is -1
    return max(last - first, 0) / PS_PER_S


def _good_together(tables: Sequence[RequestTable], goal: Goal) -> float | None:
    """Share of requests within every limit that is owed to each; None where none is."""
    owed = [slo for slo in goal.slos if slo.percentile is None]
    if not owed:
        return None
    good = total = 0
    for table in tables:
        within = table.completed.copy()
        for slo in owed:
            if slo.metric == "tpot":
                gaps = np.maximum(table.output_tokens - 1, 1)
                within &= (table.finish_ps - table.first_token_ps) / PS_PER_S <= slo.limit_s * gaps
            else:
                within &= _column(table, slo.metric) <= slo.limit_s
        good += int(within.sum())
        total += len(table)
    return good / total if total else 0.0


def _level(
    slo: Slo,
    runs: Sequence[SimulationResult],
    together: float | None,
    goal: Goal,
    *,
    intervals: bool,
) -> Level:
    if slo.metric == "itl":
        return _gap_level(slo, runs)
    blocks = [_column(run.records, slo.metric) for run in runs]
    values = np.concatenate(blocks)
    within = float((values <= slo.limit_s).mean()) if len(values) else 1.0
    if slo.percentile is None:
        assert together is not None
        return Level(
            slo=str(slo),
            limit_s=slo.limit_s,
            value_s=None,
            good_fraction=within,
            required_fraction=goal.goodput_target,
            met=together >= goal.goodput_target,
        )
    value_s = slo.value_s(values)
    low_s, high_s = _interval(blocks, slo.percentile) if intervals and len(values) else (None, None)
    return Level(
        slo=str(slo),
        limit_s=slo.limit_s,
        value_s=value_s or 0.0,
        good_fraction=within,
        required_fraction=slo.percentile / 100,
        met=slo.attained_by(value_s),
        low_s=low_s,
        high_s=high_s,
    )


def _gap_level(slo: Slo, runs: Sequence[SimulationResult]) -> Level:
    """Of gaps between tokens only fixed percentiles are kept, by replica: the worst replica's stands for all."""
    if slo.percentile not in PERCENTILES:
        known = ", ".join(f"p{p}" for p in PERCENTILES)
        raise InvalidInput(f"{slo}: percentiles of itl are kept at {known} only")
    found = [run.summary.itl_ms for run in runs if run.summary.itl_ms is not None]
    value_s = max((gaps.percentiles[int(slo.percentile)] * 1e-3 for gaps in found), default=None)
    met = slo.attained_by(value_s)
    return Level(
        slo=str(slo),
        limit_s=slo.limit_s,
        value_s=value_s or 0.0,
        good_fraction=float(met),
        required_fraction=slo.percentile / 100,
        met=met,
    )


def _interval(runs: Sequence[Floats], percentile: float) -> tuple[float, float]:
    """90 % interval of a percentile: blocks of consecutive requests are drawn anew, so that bursts stay whole."""
    blocks = [block for values in runs for block in np.array_split(values, BOOTSTRAP_BLOCKS) if len(block)]
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(blocks), size=(BOOTSTRAP_DRAWS, len(blocks)))
    values = [np.percentile(np.concatenate([blocks[i] for i in draw]), percentile) for draw in draws]
    return float(np.percentile(values, 5)), float(np.percentile(values, 95))
