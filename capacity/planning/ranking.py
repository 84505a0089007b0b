"""The ranking: the best of each family, then other deployments, the first ones looked at closely; or what is missed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

from capacity.answers.costs import cost_of
from capacity.hardware.cost_estimate import CostEstimate
from capacity.planning.arena import Arena, Task, run_all
from capacity.planning.bounds import Load
from capacity.planning.family import Family, Tried
from capacity.planning.judging import Level, Trial
from capacity.planning.option import Survey
from capacity.planning.plan_cost import trial_load
from capacity.planning.records import Miss, Ranked
from capacity.planning.space import Candidate, Search
from capacity.planning.step_error import LEVELS

TOP = 8  # answers that are ranked


class Shown(NamedTuple):
    """An answer that is ranked; `best` of its family, or beside it."""

    tried: Tried
    best: bool

    @property
    def order(self) -> tuple[float, bool, float, float]:
        """By objective; among equals what was simulated in full first, then by loss of quality and margin."""
        tried = self.tried
        return (tried.objective, tried.trial.seen != "all", tried.loss, tried.trial.ratio)


class Closer(NamedTuple):
    """A closer look: the trial, with step times as predicted, and the highest confidence at which the SLO holds."""

    trial: Trial
    predicted: Trial | None
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Ranks what a search tried; simulates only for a closer look."""

    arena: Arena
    search: Search
    load: Load
    executor: Executor | None

    def ranked(self, families: Iterable[Family], *, closer: int) -> tuple[Ranked, ...]:
        """The best of each family, then other deployments on other hardware, by objective; the first ones in full."""
        shown = _shown(families)
        looks = self._look_closer([answer.tried for answer in shown[:closer]])
        rest = [Closer(answer.tried.trial, None, self.search.confidence) for answer in shown[closer:]]
        return tuple(self._answer(answer, look) for answer, look in zip(shown, looks + rest, strict=True))

    def _look_closer(self, answers: Sequence[Tried]) -> list[Closer]:
        required = self.search.confidence
        higher = [level for level in LEVELS if level > required]
        tasks = []
        for tried in answers:
            candidate = tried.candidate
            if _wants_intervals(tried.trial):
                tasks.append(Task(candidate=candidate, confidence=required, intervals=True))
            tasks.append(Task(candidate=candidate, confidence=None, sample=True, give_up=False))
            tasks += [Task(candidate=candidate, confidence=level, sample=True) for level in higher]
        trials = iter(run_all(self.arena, tasks, self.executor))
        looks = []
        for tried in answers:
            trial = next(trials) if _wants_intervals(tried.trial) else tried.trial
            predicted = next(trials)
            held = [level for level in higher if next(trials).met]
            looks.append(Closer(trial, predicted, _highest(held, required)))
        return looks

    def _answer(self, answer: Shown, look: Closer) -> Ranked:
        option, replicas, _ = answer.tried
        trial = look.trial
        steps = self.arena.resolved(option.pool).step_model
        watts = option.watts(replicas)
        return Ranked(
            candidate=answer.tried.candidate,
            num_gpus=option.gpus(replicas),
            billed_gpus=option.billed_gpus(replicas),
            objective=Tried(option, replicas, trial).objective,
            trial=trial,
            predicted=look.predicted,
            confidence=look.confidence,
            cost=self._cost(answer.tried, look.predicted or trial),
            watts=watts,
            joules_per_output_token=watts / trial.output_tokens_per_s if trial.output_tokens_per_s else None,
            quality=option.quality,
            basis=steps.basis,
            step_error_assumed=steps.residuals("decode").fit.basis == "assumed",
            best_of_its_kind=answer.best,
        )

    def _cost(self, tried: Tried, trial: Trial) -> CostEstimate | None:
        """At the load that is served: idle time and whole instances are paid for."""
        pools = [(self.arena.resolved(pool), pool.replicas) for pool in tried.candidate.pools]
        workload = self.arena.workloads[0]
        load = trial_load(pools, trial, workload, offered_per_s=self.load.offered_per_s)
        return None if load is None else cost_of(tried.option.price, pools, load)

    def misses(self, families: Iterable[Family], survey: Survey) -> tuple[Miss, ...]:
        """The parts of the SLO that stay out of reach, on the candidate that comes nearest to all of it."""
        missed = [tried for family in families for tried in family.missed]
        if not missed:
            return _bound_misses(survey)
        candidate = min(missed, key=lambda tried: tried.trial.ratio).candidate
        task = Task(candidate=candidate, confidence=self.search.confidence, give_up=False)
        (trial,) = run_all(self.arena, [task], self.executor)
        return tuple(_miss(level, candidate.label) for level in trial.levels if level.ratio > 1)


def _shown(families: Iterable[Family]) -> list[Shown]:
    """One answer of each shape of hardware, the best of each family among them."""
    chosen: dict[tuple[object, ...], Shown] = {}
    for family in families:
        best = family.incumbent
        for tried in family.met:
            is_best = best is not None and tried.option is best.option and tried.replicas == best.replicas
            answer, shape = Shown(tried, is_best), _shape(tried)
            rival = chosen.get(shape)
            if rival is None or is_best or (not rival.best and answer.order < rival.order):
                chosen[shape] = answer
    order = sorted(chosen.values(), key=lambda answer: answer.order)
    leaders = [answer for answer in order if answer.best]
    rest = [answer for answer in order if not answer.best]
    return sorted((leaders + rest)[: max(TOP, len(leaders))], key=lambda answer: answer.order)


def _shape(tried: Tried) -> tuple[object, ...]:
    option, pool = tried.option, tried.option.pool
    return (
        pool.gpu,
        pool.quantization,
        pool.tensor_parallel_size,
        pool.pipeline_parallel_size,
        pool.enable_expert_parallel,
        pool.speculator,
        option.prefill and option.prefill.tensor_parallel_size,
        option.router,
    )


def _wants_intervals(trial: Trial) -> bool:
    return trial.seen == "all" and all(level.low_s is None for level in trial.levels)


def _highest(held: Sequence[float], required: float) -> float:
    """The highest level that held together with all levels below it."""
    highest = required
    for level in (level for level in LEVELS if level > required):
        if level not in held:
            break
        highest = level
    return highest


def _bound_misses(survey: Survey) -> tuple[Miss, ...]:
    """Where nothing was worth a simulation: the nearest of the bounds, or the limits of the space."""
    if survey.least_ratio is not None:
        ratio, candidate, reason = survey.least_ratio
        slo = reason.split(" cannot be met: ")[0]
        best = reason.split("needs ")[-1] + " on an empty engine"
        return (Miss(slo=slo, limit=slo.split(":")[-1], best=best, factor=ratio, candidate=candidate.label),)
    blocked = next((rejection for rejection in survey.rejected if rejection.kind == "limit"), None)
    if blocked is None:
        return ()
    label = Candidate(pool=blocked.pool, replicas=1).label
    limits, never = "--max-gpus or --budget", float("inf")
    return (Miss(slo="capacity", limit=limits, best=blocked.reason, factor=never, candidate=label),)


def _miss(level: Level, candidate: str) -> Miss:
    if level.value_s is None:
        best, limit = f"{level.good_fraction:.1%} of requests", f"{level.required_fraction:.1%}"
    else:
        best, limit = f"{level.value_s * 1e3:,.0f} ms", f"{level.limit_s * 1e3:,.0f} ms"
    return Miss(slo=level.slo, limit=limit, best=best, factor=level.ratio, candidate=candidate)
