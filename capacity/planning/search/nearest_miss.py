"""Results if no deployment meets the SLO: the nearest deployment, and changes with which the SLO is met.

Every change is verified by simulation: more GPUs by a second search without the limits, a lower confidence and a lower
request rate by further evaluations of the nearest deployment.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from capacity.base.record import make_from
from capacity.planning.evaluation.evaluate import TOLERANCE, highest_rate
from capacity.planning.evaluation.evaluation_context import EvaluationRequest, OutOfTime
from capacity.planning.evaluation.slo_evaluation import FAILED_LATENCY_S, Evaluation, Level
from capacity.planning.evaluation.step_error import LEVELS
from capacity.planning.records import Miss, NearestMiss, Remedy
from capacity.planning.search.candidate_family import CandidateRecord, EvaluatedCandidate
from capacity.planning.search.candidate_generator import CandidateGenerator, with_context
from capacity.planning.search.plan_search import PlanSearch
from capacity.planning.search.replica_search import ReplicaSearch
from capacity.planning.space import Candidate
from capacity.planning.workers.worker_pool import run_in_parallel

# the search for more GPUs allows MORE_GPUS times --max-gpus, or TIMES_BOUND times the lower bound if that is more
MORE_GPUS = 16
TIMES_BOUND = 4
MORE_GPUS_S = 30.0  # longest search for more GPUs
LOWEST_RATE = 1e-3  # fraction of the request rate at which requests no longer queue


def nearest_miss(state: PlanSearch) -> NearestMiss | None:
    """Return the simulated deployment nearest to the SLO.

    None if the limits permit no deployment, or if the time limit or Ctrl-C prevents its simulation.
    """
    required, whole = state.search.confidence, bool(state.context.windows)
    tried = _nearest_candidates(state)
    if not tried:
        return None
    state.stage = "the nearest miss"
    candidates = list(tried)
    tasks = [EvaluationRequest(each, required, give_up=False, whole=whole) for each in candidates]
    simulated = [
        (found, candidate)
        for trial, candidate in zip(state.evaluator.run_all(tasks), candidates, strict=True)
        if isinstance(found := trial or tried[candidate], Evaluation) and not found.met
    ]
    if not simulated:
        return None
    trial, candidate = min(simulated, key=lambda each: each[0].ratio)
    (predicted,) = state.evaluator.run_all([EvaluationRequest(candidate, None, give_up=False, whole=whole)])
    own = _deployment(state, candidate)
    excluded = tried[candidate]
    reason = excluded if isinstance(excluded, str) else None
    return make_from(NearestMiss, own, candidate=candidate, trial=trial, predicted=predicted, reason=reason)


def remedies(state: PlanSearch, nearest: NearestMiss | None) -> tuple[Remedy, ...]:
    """Return changes with which the SLO is met, as far as the time limit and Ctrl-C permit.

    More GPUs, a lower confidence or a lower request rate are tried first; a higher latency limit only if none suffices.
    """
    found: list[Remedy] = []
    try:
        if state.ended == "done":
            for remedy in _remedies(state, nearest):
                found.append(remedy)
    except (OutOfTime, KeyboardInterrupt):
        return tuple(found)
    slo = None if nearest is None or found else _relaxed_slo(nearest.trial)
    if nearest is not None and slo is not None:
        found.append(replace(_deployment(state, nearest.candidate), change={"slo": slo}))
    return tuple(found)


def misses_of(nearest: NearestMiss | None, survey: CandidateRecord) -> tuple[Miss, ...]:
    """Return the missed SLOs of the nearest deployment; without one, the bound that excludes all deployments."""
    if nearest is None:
        return _bound_misses(survey)
    return tuple(_miss(level, nearest.label) for level in nearest.trial.levels if not level.met)


def _nearest_candidates(state: PlanSearch) -> dict[Candidate, Evaluation | str]:
    """Return the candidate with the lowest ratio of latency to limit, and its evaluation.

    If none was simulated, return the candidates nearest to the bounds that excluded them, each with as many replicas
    as the limits permit and the reason of its exclusion.
    """
    missed = _missed_candidates(state)
    if missed:
        nearest = min(missed, key=lambda tried: tried.trial.ratio)
        return {nearest.candidate: nearest.trial}
    generator = state.generator
    found: dict[Candidate, Evaluation | str] = {}
    for _, candidate, reason in generator.survey.nearest.values():
        pools = [with_context(state.context, pool, generator.load)[0] for pool, _, _ in candidate.parts]
        prefill = pools[0] if candidate.prefill is not None else None
        most = 1 if prefill is not None else generator.most_replicas(pools[-1])
        within = candidate.num_gpus <= generator.most_gpus(candidate.pool.gpu)
        if most and within:
            found[replace(candidate, pool=pools[-1], prefill=prefill, replicas=most)] = reason
    return found


def _missed_candidates(state: PlanSearch) -> list[EvaluatedCandidate]:
    contenders = (entry for entry in state.all_entries if isinstance(entry, ReplicaSearch))
    return [tried for contender in contenders for tried in contender.missed]


def _remedies(state: PlanSearch, nearest: NearestMiss | None) -> Iterator[Remedy]:
    reasons = {rejection.kind for rejection in state.generator.survey.rejected}
    if "limit" in reasons or _missed_candidates(state):
        yield from _more_gpus(state)
    if nearest is None:
        return
    candidate, predicted = nearest.candidate, nearest.predicted
    own = _deployment(state, candidate)
    if predicted is not None and predicted.met:
        for confidence in (level for level in reversed(LEVELS) if level < state.search.confidence):
            ask = EvaluationRequest(candidate, confidence, whole=bool(state.context.windows))
            if state.evaluator.trial(ask).met:
                yield make_from(Remedy, own, change={"confidence": confidence})
                break
    rate = _lower_rate(state, candidate)
    if rate is not None:
        yield make_from(Remedy, own, change={"request_rate": rate})


def _relaxed_slo(trial: Evaluation) -> str | None:
    """Return the SLO with every missed limit raised to the simulated latency, rounded up to two significant digits.

    None if requests fail, or if an SLO limits each request.
    """
    slos = []
    for level in trial.levels:
        if level.value_s is None or level.value_s >= FAILED_LATENCY_S:
            return None
        slos.append(
            level.slo
            if level.met
            else f"{level.slo.rpartition(':')[0]}:{_round_to(math.ceil, level.value_s * 1e3, 2):.10g}ms"
        )
    return " ".join(slos)


def _more_gpus(state: PlanSearch) -> Iterator[Remedy]:
    """Yield the best deployment that the search finds without the limits --max-gpus and --budget."""
    search, generator = state.search, state.generator
    bound = generator.survey.nearest.get("limit")
    most = search.max_gpus * max(MORE_GPUS, math.ceil(TIMES_BOUND * (1.0 if bound is None else bound[0])))
    now_s = time.monotonic()
    left_s = min(state.until_s - now_s, MORE_GPUS_S)
    if left_s <= 0:
        return
    wider = search.model_copy(
        update={
            "max_gpus": most,
            "budget": None,
            "alternatives": False,
            "time_limit_s": left_s,
            "objective": "gpus" if search.objective == "latency" else search.objective,
        }
    )
    larger = PlanSearch(
        search=wider,
        load=state.load,
        generator=CandidateGenerator(
            context=state.context, search=wider, load=generator.load, market=generator.market
        ),
        evaluator=state.evaluator,
        progress=None,
        started_s=now_s,
    )
    larger.run()
    state.evaluator.until_s = state.until_s
    best, found = larger.best, larger.all
    if best is None or found is None or not found.verified:
        return
    own = _deployment(state, best.candidate)
    change: dict[str, float | str] = {}
    if own.num_gpus > search.max_gpus:
        change["max_gpus"] = own.num_gpus
    if search.budget is not None and own.usd_per_hour is not None and own.usd_per_hour > search.budget:
        change["budget"] = math.ceil(100 * own.usd_per_hour) / 100
    if change:
        yield replace(own, change=change)


def _lower_rate(state: PlanSearch, candidate: Candidate) -> float | None:
    """Return the highest request rate at which the candidate meets the SLO, rounded down to three significant digits.

    None if it misses the SLO without queueing, and for traffic without a constant mean rate.
    """
    context = state.context
    drawn = context.whole or context.workloads
    rate = drawn[0].asked_per_s
    if rate is None or drawn[0].is_closed_loop or drawn[0].part is not None:
        return None

    def meets(fraction: float) -> bool:
        if fraction >= 1:
            return False
        state.evaluator.check()
        slower = replace(context, steady=None).for_workloads([each.scale_rate(fraction) for each in drawn])
        ask = EvaluationRequest(candidate, state.search.confidence, whole=bool(slower.windows))
        return slower.run(ask, check=state.evaluator.check).met

    if not meets(LOWEST_RATE):
        return None
    (fraction,) = run_in_parallel([highest_rate(0.5)], meets, worker_pool=None, function=meets)
    highest = _round_to(math.floor, rate * fraction, 3)
    while not meets(highest / rate):  # latency may fall with the rate in a short sample
        highest = _round_to(math.floor, highest * (1 - TOLERANCE), 3)
    return highest


def _round_to(rounded: Callable[[float], int], value: float, digits: int) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{rounded(value / step) * step:.{digits}g}")


def _deployment(state: PlanSearch, candidate: Candidate) -> Remedy:
    """Return a record of the deployment with its GPUs and price; the caller fills in `change`."""
    usd_per_hour = state.generator.market.usd_per_hour(candidate.pool.gpu, candidate.num_gpus)
    return make_from(Remedy, candidate, change={}, usd_per_hour=usd_per_hour)


def _bound_misses(survey: CandidateRecord) -> tuple[Miss, ...]:
    """Return why no candidate was simulated: the SLO whose latency bound is closest to its limit, or the GPU limit."""
    unmeetable = survey.nearest.get("unmeetable")
    if unmeetable is not None:
        ratio, candidate, reason = unmeetable
        slo = reason.split(" cannot be met: ")[0]
        best = reason.split("needs ")[-1] + " on an empty engine"
        return (Miss(slo=slo, limit=slo.split(":")[-1], best=best, factor=ratio, candidate=candidate.label),)
    blocked = next((rejection for rejection in survey.rejected if rejection.kind == "limit"), None)
    if blocked is None:
        return ()
    label = Candidate(pool=blocked.pool, replicas=1).label
    limits, never = "--budget" if "--budget" in blocked.reason else "--max-gpus", float("inf")
    return (Miss(slo="capacity", limit=limits, best=blocked.reason, factor=never, candidate=label),)


def _miss(level: Level, candidate: str) -> Miss:
    if level.value_s is None:
        best, limit = f"{level.good_fraction:.1%} of requests", f"{level.required_fraction:.1%}"
    else:
        best, limit = f"{level.value_s * 1e3:,.0f} ms", f"{level.limit_s * 1e3:,.0f} ms"
    return Miss(slo=level.slo, limit=limit, best=best, factor=level.ratio, candidate=candidate)
