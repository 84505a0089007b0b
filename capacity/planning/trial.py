"""One deployment on the real traffic, through the simulator's own cluster and router, held against the SLO.

Equal replicas that take requests in turn share nothing: where arrivals do not wait for answers, replica 0 of R sees
every R-th request, and can stand for all at a first look. An answer is always of the whole deployment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from capacity.answers.deployment_run import kv_link
from capacity.answers.engine_setup import engine_frontend, engine_setup
from capacity.base.errors import InvalidInput
from capacity.deployment import Service
from capacity.planning.easing import MARGIN, Easier, easier
from capacity.planning.step_error import Factors, ScaledSteps
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.distribution import PERCENTILES
from capacity.simulator.metrics import RequestTable
from capacity.step import PS_PER_S
from capacity.workload import Slo, Workload

Floats = npt.NDArray[np.float64]

Seen = Literal["all", "sample", "given up", "at best"]
Role = Literal["both", "prefill", "decode"]

AS_PREDICTED = Factors()
NEVER_S = 1e9  # the latency of a request that was turned away or never ended, in percentiles
FIRST_LOOK = 12  # a long run is begun with the busiest one in so many of its requests
LOOKS = 6  # such stretches, at most, before the whole
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
    "given up" once it could not meet the SLO any more, and its values are of the part that was simulated; or missed
    even "at best", by an easier engine in its place."""

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

    @property
    def decode_missed(self) -> bool:
        """Whether a limit of decode alone was missed."""
        return any(level.slo.startswith(("tpot", "itl")) and level.ratio > 1 for level in self.levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Equal engines of a deployment; `factors` stretch their predicted step times. `steps`: these very times, kept."""

    resolved: ResolvedPool
    replicas: int = 1
    factors: Factors = AS_PREDICTED
    role: Role = "both"
    steps: ScaledSteps | None = None

    @property
    def scaled_steps(self) -> ScaledSteps:
        """Their step times."""
        return self.steps or scaled_steps(self.resolved, self.factors)

    def setup(self) -> EngineSetup:
        """One of them, as the simulator takes it."""
        return replace(engine_setup(self.resolved), step_times=self.scaled_steps, role=self.role)


def deployment_label(resolved: ResolvedPool, replicas: int) -> str:
    """Model, GPUs and engine in a line."""
    gpus = f"{replicas} x {resolved.pool.num_gpus} {resolved.profile.name}"
    return f"{resolved.model.name} on {gpus}, {resolved.engine.label}"


def scaled_steps(resolved: ResolvedPool, factors: Factors) -> ScaledSteps:
    """The step times of one of its engines, stretched."""
    return ScaledSteps(engine_setup(resolved).step_times, factors)


def most_replicas(workload: Workload) -> int:
    """Replicas beyond which some would have nothing to do."""
    if workload.concurrency is not None:
        return min(workload.concurrency, len(workload))
    return len(workload) if workload.session is None else len(np.unique(workload.session))


def run_engines(
    engines: Sequence[Engines], workload: Workload, *, router: str = "round-robin"
) -> SimulationResult:
    """The whole deployment on `workload`. Raises InvalidInput."""
    link = kv_link([pool.resolved for pool in engines], Service()) if len(engines) > 1 else None
    setups = [setup for pool in engines for setup in [pool.setup()] * pool.replicas]
    return simulate(
        workload,
        setups,
        router=router if len(setups) > 1 else None,
        frontend=engine_frontend(engines[0].resolved),
        link=link,
    )


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
    """As `try_engines`, of `replicas` equal engines that take requests in turn."""
    engines = (Engines(resolved=resolved, replicas=replicas, factors=factors or Factors()),)
    return try_engines(engines, workloads, goal, give_up=give_up, sample=sample, intervals=intervals)


def try_engines(
    engines: Sequence[Engines],
    workloads: Sequence[Workload],
    goal: Goal,
    *,
    router: str = "round-robin",
    give_up: bool = True,
    sample: bool = False,
    intervals: bool = False,
    first_draw: bool = False,
) -> Trial:
    """Serve each of `workloads` (replications of one traffic) with the deployment; all requests are pooled.

    `give_up` stops as soon as the requests seen so far make a miss certain, in long runs as soon as they make it
    plain (`_outlook`, `_hopeless`). `sample` simulates one replica of a long run in place of all, where replicas
    share nothing, and asks an easier engine first, where there is one. `first_draw`: of a short run, the first of
    `workloads` will do where the SLO is met on it. What stalls has failed.
    """
    total = sum(len(workload) for workload in workloads)
    first, long = workloads[0], total >= LONG_RUN
    alike = _alike(engines, router, first)
    part = first if alike == 1 else first.take(np.arange(0, len(first), alike))
    tried = [replace(engines[0], replicas=1)] if alike > 1 else engines
    sampled = sample and long and len(part) >= LEAST_SAMPLE
    if give_up and sample and len(engines) == 1:
        asker = tried[0] if sampled else engines[0]
        asked = [_busiest_first(part)[:1], [part]] if sampled else [workloads]
        share = len(part) / total if sampled else 1.0
        for requests in asked:
            decided = _by_stand_in(
                asker, requests, goal, total, seen=share, alike=alike if sampled else 1, router=router
            )
            if decided is not None and (not decided.met or requests is asked[-1]):
                return decided
    if give_up and long and not first.is_closed_loop:
        looks: list[SimulationResult] = []
        for stretch in _busiest_first(part)[:LOOKS]:
            looks.append(run_engines(tried, stretch, router=router))
            outlook = _outlook(looks, goal, total, seen=len(part) / total, alone=sampled)
            if outlook > 1:
                return _trial(looks, goal, seen="given up")
            if outlook * len(part) <= sum(len(look.records) for look in looks):
                break  # at this rate it may well do
    if sampled and alike * len(workloads) > 1:
        return _trial([run_engines(tried, part, router=router)], goal, seen="sample", replicas=alike)
    runs: list[SimulationResult] = []
    for workload in workloads:
        runs.append(run_engines(engines, workload, router=router))
        if first_draw and sample and len(runs) < len(workloads):
            trial = _trial(runs, goal, seen="sample")
            if trial.met:
                return trial
        if give_up and len(runs) < len(workloads):
            seen = len(runs) / len(workloads) if long else 1.0
            if _hopeless(runs, goal, total, seen=seen, parts=len(runs)):
                return _trial(runs, goal, seen="given up")
    return _trial(runs, goal, seen="all", intervals=intervals)


def _by_stand_in(
    engines: Engines,
    workloads: Sequence[Workload],
    goal: Goal,
    total: int,
    *,
    seen: float,
    alike: int,
    router: str,
) -> Trial | None:
    """What easier engines in place of these do, where that is plain: they miss, or meet, every limit by `MARGIN`.

    None where it is not, or there are none. `seen` is the share of all `total` requests whose verdict is asked for,
    and `alike` how many such shares there are.
    Gaps between tokens are theirs alone: with limits on these nothing is met.
    """
    stand_in = easier(engines.resolved, engines.scaled_steps, workloads[0])
    if stand_in is None:
        return None
    timed = replace(goal, slos=tuple(slo for slo in goal.slos if slo.metric != "itl"))
    lenient = replace(
        timed, slos=tuple(replace(slo, limit_s=slo.limit_s * (1 + MARGIN)) for slo in timed.slos)
    )
    runs: list[SimulationResult] = []
    for workload in workloads:
        runs.append(_run_easier(stand_in, engines, workload, router))
        if _outlook(runs, lenient, total, seen=seen, alone=True) > 1:
            return _trial(runs, timed, seen="at best")
    if timed != goal:
        return None
    trial = _trial(runs, goal, seen="sample", replicas=alike)
    return trial if trial.met and trial.ratio <= 1 - MARGIN else None


def _run_easier(stand_in: Easier, engines: Engines, workload: Workload, router: str) -> SimulationResult:
    run = simulate(
        stand_in.traffic(workload),
        [stand_in.setup] * engines.replicas,
        router=router if engines.replicas > 1 else None,
        frontend=engine_frontend(engines.resolved),
    )
    records = replace(run.records, output_tokens=workload.output_tokens)
    tokens = int(workload.output_tokens[records.completed].sum())
    return replace(run, records=records, summary=replace(run.summary, total_output_tokens=tokens))


def _alike(engines: Sequence[Engines], router: str, workload: Workload) -> int:
    """The replicas of which each sees as many of the requests, one after the other, and none acts on another."""
    in_turn = len(engines) == 1 and router == "round-robin"
    if not in_turn or workload.is_closed_loop or workload.session is not None:
        return 1
    return engines[0].replicas


def _busiest_first(workload: Workload) -> list[Workload]:
    """The requests in stretches of one in `FIRST_LOOK`, that in which they come fastest first, then the other ones.

    A stretch alone fares no worse than within the whole.
    """
    total = len(workload)
    count = max(total // FIRST_LOOK, 1)
    spans_s = workload.arrival_s[count - 1 :] - workload.arrival_s[: total - count + 1]
    first = int(np.argmin(spans_s))
    places = [np.arange(first, first + count)]
    for begin, end in ((0, first), (first + count, total)):
        pieces = max(round((end - begin) / count), 1)
        places += [piece for piece in np.array_split(np.arange(begin, end), pieces) if len(piece)]
    others = sorted(places[1:], key=lambda at: workload.arrival_s[at[-1]] - workload.arrival_s[at[0]])
    return [workload.take(at) for at in (places[0], *others)]


def _outlook(runs: Sequence[SimulationResult], goal: Goal, total: int, *, seen: float, alone: bool) -> float:
    """Requests beyond a limit over those that may be, in the worst level. Above 1 the deployment misses.

    The runs are stretches of a part that has the share `seen` of all `total` requests. `alone`: that part's own
    verdict is asked for; else the other parts may make up for one that is twice as bad as allowed.
    """
    worst = 0.0
    tables = [run.records for run in runs]
    for slo in goal.slos:
        if slo.metric == "itl":
            continue
        bad = int((latencies_s(tables, slo.metric) > slo.limit_s).sum())
        share = 1 - goal.goodput_target if slo.percentile is None else 1 - slo.percentile / 100
        allowed = math.ceil(total * share * min(1.0, seen * (1 if alone else 2))) + 1
        worst = max(worst, bad / allowed)
    return worst


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
    goal: Goal,
    *,
    seen: Seen,
    replicas: int = 1,
    intervals: bool = False,
) -> Trial:
    """`replicas`: how many like the one that ran there are, for the rates."""
    tables = [run.records for run in runs]
    tpot = latencies_s(tables, "tpot")
    together = _good_together(tables, goal)
    levels = tuple(_level(slo, runs, together, goal, intervals=intervals) for slo in goal.slos)
    duration_s = sum(_duration_s(table) for table in tables)

    def rate(values: Iterable[int]) -> float:
        return sum(values) * replicas / duration_s if duration_s else 0.0

    return Trial(
        levels=levels,
        met=seen not in ("given up", "at best") and all(level.met for level in levels),
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


def _duration_s(table: RequestTable) -> float:
    """From the first arrival to the last completion of one run."""
    first, last = int(table.arrival_ps.min()), int(table.finish_ps.max())  # MISSING is -1
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
    """Of gaps between tokens only fixed percentiles are kept: the worst run's stands for all."""
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
