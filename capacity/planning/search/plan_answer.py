"""Run a search and build its answer: ranking, Pareto fronts, rejections, notes and counts."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from capacity.base.record import make_from
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.evaluation_context import EvaluationContext, EvaluationRequest
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.records import Conditional, Kind, Plan, Point, Ranked, Rejection, SearchCounts
from capacity.planning.search.candidate_family import CandidateFamily
from capacity.planning.search.candidate_generator import CandidateGenerator
from capacity.planning.search.conditions import conditions_of
from capacity.planning.search.nearest_miss import misses_of, nearest_miss, remedies
from capacity.planning.search.plan_notes import (
    lighter_misses,
    not_searched,
    require_options,
    response_note,
    warnings_of,
)
from capacity.planning.search.plan_request import PlanRequest
from capacity.planning.search.plan_search import PlanSearch
from capacity.planning.search.ranking import Ranking
from capacity.planning.search.rejection_reasons import not_recommended, rejections
from capacity.planning.search.replica_search import ReplicaSearch
from capacity.planning.search.snapshot import Progress
from capacity.planning.space import Candidate
from capacity.planning.workers.environment_fingerprint import NamedInputs
from capacity.workload import Workload

# answers evaluated again in full, with intervals
CLOSER_EVALUATIONS = {"done": 4, "time limit": 1, "interrupted": 0}
EXCLUDED: tuple[Kind, ...] = ("impossible", "does not fit", "quality", "no price", "conditional")
BOUNDED: tuple[Kind, ...] = ("unmeetable", "limit", "costlier")


def run_search(
    asked: PlanRequest,
    *,
    workers: int = 1,
    cluster: str | None = None,
    progress: Progress | None = None,
    started_s: float | None = None,
    explain: bool = True,
) -> Plan:
    """Run the search that `asked` describes and return the plan.

    With `explain`, a plan in which no deployment meets the SLO has the nearest miss and remedies. Raises DoesNotFit if
    the model fits no engine, and InvalidInput if no engine can run or `cluster` does not exist. Ctrl-C ends the search
    early, like the time limit.
    """
    with _opened_search(asked, workers, cluster, progress, started_s) as state:
        state.run()
        return _plan(state, explain=explain)


def find_conditional(
    asked: PlanRequest, *, least: float, workers: int = 1, progress: Progress | None = None
) -> tuple[Conditional, ...]:
    """Return deployments whose value of the objective is below `least` but that have a disadvantage to accept.

    Disadvantages are quality loss, a checkpoint that the user must provide, and drafts not measured for the model. If
    the time limit or Ctrl-C ends the search, return the deployments found so far.
    """
    with _opened_search(asked, workers, None, progress, None) as state:
        state.run(savings_below=least)
        return _conditional(state, make_from(Ranking, state))


@contextmanager
def _opened_search(
    asked: PlanRequest, workers: int, cluster: str | None, progress: Progress | None, started_s: float | None
) -> Iterator[PlanSearch]:
    search, context, load, market = asked.search, asked.context(), asked.load, asked.market()
    named = NamedInputs(
        profiles=None if asked.profiles is None else str(asked.profiles),
        models=() if search.draft is None else (search.draft,),
    )
    with EvaluationPool(context=context, workers=workers, cluster=cluster, named=named) as evaluator:
        busy_load = context.busy_load(load)
        yield PlanSearch(
            search=search,
            load=load,
            generator=CandidateGenerator(context=context, search=search, load=busy_load, market=market),
            evaluator=evaluator,
            progress=progress,
            started_s=time.monotonic() if started_s is None else started_s,
        )


def _conditional(state: PlanSearch, ranking: Ranking) -> tuple[Conditional, ...]:
    return tuple(
        Conditional(
            conditions=conditions_of(state.search, state.context.model, tried.option.pool), answer=answer
        )
        for tried in state.savings.values()
        for answer in ranking.rank((), (tried,), closer=0)
    )


def _plan(state: PlanSearch, *, explain: bool) -> Plan:
    """Build the plan; as time allows, evaluate the best deployments more closely.

    The load in the plan, such as the request rate, is that of the requests on which the best deployment was evaluated.
    """
    search, best, load = state.search, state.best, state.load
    context = state.context if best is None else state.context.context_of(best.candidate)
    if context is not state.context:
        load = Load.average(context.whole or context.workloads, endless=load.endless)
    survey, market = state.generator.survey, state.generator.market
    if state.ended == "done":
        require_options(survey, context)
    ranking = make_from(Ranking, state, context=context, load=load)
    ranked = _rank_answers(state, ranking)
    points = points_of(state.evaluator.trials, survey.options)
    rejected = _all_rejections(state)
    unanswered = not ranked and state.ended != "interrupted"
    nearest = nearest_miss(state) if explain and unanswered else None  # simulates more deployments
    first = context.workloads[0]
    return make_from(
        Plan,
        state,
        load,
        search,
        model=context.model.name,
        workload=first.name,
        requests_per_s=_requests_per_s(load, first, ranked),
        concurrency=first.concurrency,
        slos=tuple(str(slo) for slo in context.goal.slos),
        slo_window=search.slo_window if context.windows else "trace",
        busiest_window=context.windows[0] if context.windows else None,
        ranked=ranked,
        misses=misses_of(nearest, survey) if unanswered else (),
        nearest=nearest,
        remedies=remedies(state, nearest) if explain and unanswered else (),
        conditional=_conditional(state, ranking),
        rejected=rejected,
        speed_front=speed_front(points),
        cost_front=cost_front(points),
        counts=_counts(state, rejected),
        proved=state.all is not None and state.all.done and not state.cut,
        prices=tuple(price.quote for price in market.quotes.values() if price is not None),
        not_searched=not_searched(search, load, context.model),
        warnings=_warnings(state, context, ranked),
    )


def _rank_answers(state: PlanSearch, ranking: Ranking) -> tuple[Ranked, ...]:
    leaders = [*([] if state.best is None else [state.best]), *state.leaders.values()]
    contenders = [entry for entry in state.all_entries if isinstance(entry, ReplicaSearch)]
    return ranking.rank(contenders, leaders, closer=CLOSER_EVALUATIONS[state.ended])


def _all_rejections(state: PlanSearch) -> tuple[Rejection, ...]:
    """Return all rejections: by checks and bounds, by simulation, and because of quality loss or unmeasured drafts."""
    return (
        *state.generator.survey.rejected,
        *rejections(state.all_entries, state.best, state.leaders, state.ratio_limit),
        *not_recommended(state.conditional),
    )


def _counts(state: PlanSearch, rejected: Sequence[Rejection]) -> SearchCounts:
    kinds = Counter(rejection.kind for rejection in rejected)
    return make_from(
        SearchCounts,
        state.generator.survey,
        state,
        excluded=sum(kinds[kind] for kind in EXCLUDED),
        bounded=sum(kinds[kind] for kind in BOUNDED),
        unresolved=kinds["unresolved"],
    )


def _warnings(state: PlanSearch, context: EvaluationContext, ranked: Sequence[Ranked]) -> tuple[str, ...]:
    return (
        *(f"{gpu} is left out: {reason}" for gpu, reason in state.generator.market.unpriced.items()),
        *state.notes,
        *lighter_misses(state.best),
        *warnings_of(context, ranked),
        *response_note(context, ranked),
        *state.evaluator.remarks,
    )


def _requests_per_s(load: Load, workload: Workload, ranked: Sequence[Ranked]) -> float:
    """Return the offered request rate; for users who wait for responses, the rate that the best deployment serves."""
    if workload.think_s is not None and ranked:
        return (ranked[0].predicted or ranked[0].trial).requests_per_s
    return load.requests / load.span_s if load.span_s else float("inf")


def points_of(
    trials: Mapping[EvaluationRequest, Evaluation], options: Iterable[CandidateFamily]
) -> list[Point]:
    """Return one Pareto point for each candidate that was simulated to the end, from its most complete simulation."""
    by_engine = {option.candidate_at(0): option for option in options}
    latest = {
        ask.candidate: trial
        for ask, trial in trials.items()
        if trial.seen in ("all", "sample") and not ask.first_tokens
    }
    return [
        _point(by_engine[replace(candidate, replicas=0)], candidate, trial)
        for candidate, trial in latest.items()
    ]


def _point(option: CandidateFamily, candidate: Candidate, trial: Evaluation) -> Point:
    return make_from(
        Point,
        candidate,
        trial,
        gpu=candidate.pool.gpu,
        usd_per_hour=option.usd_per_hour(candidate.replicas),
        tokens_per_s_per_gpu=trial.output_tokens_per_s / candidate.num_gpus,
    )


def speed_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the Pareto front of output tokens/s per user against output tokens/s per GPU."""
    known = [point for point in points if point.tokens_per_s_per_user is not None]
    return _front(known, lambda point: (-(point.tokens_per_s_per_user or 0.0), -point.tokens_per_s_per_gpu))


def cost_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the Pareto front of cost ($/h, or GPUs without a price) and the highest ratio of latency to limit."""

    def values(point: Point) -> tuple[float, float]:
        price = point.usd_per_hour if point.usd_per_hour is not None else float(point.num_gpus)
        return price, point.worst_ratio

    return _front(points, values)


def _front(points: Sequence[Point], values: Callable[[Point], tuple[float, float]]) -> tuple[Point, ...]:
    """Return the points that no other point beats in both values (lower is better), sorted by the first."""
    front: list[Point] = []
    for point in sorted(points, key=values):
        if not front or values(point)[1] < values(front[-1])[1]:
            front.append(point)
    return tuple(front)
