"""Check neighbouring numbers of replicas if a percentile of the SLO depends on few requests.

The search assumes that an engine never performs worse with more replicas. That was true in every case tried if at
least `SPARSE_TAIL_REQUESTS` requests exceed the percentile (48 loads of lognormal prompts, p90 to p99, one and three
draws, 2026-11-23). With three such requests it was false in 2 of 16 cases, so numbers of replicas near the answer are
simulated as well.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from capacity.planning.evaluation.evaluation_context import EvaluationRequest
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.evaluation.slo_evaluation import Evaluation, Goal
from capacity.planning.search.candidate_family import EvaluatedCandidate

SPARSE_TAIL_REQUESTS = 10  # requests beyond the percentile
NEIGHBOURS = 4  # numbers of replicas tried below and above the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRequestsLevel:
    """SLO whose percentile depends on the fewest requests; the fraction `may_miss` of `requests` may miss it."""

    slo: str
    may_miss: float
    requests: int

    @property
    def beyond(self) -> int:
        """Return the number of requests that may exceed the limit, at least 1."""
        return max(math.ceil(round(self.may_miss * self.requests, 6)), 1)

    @property
    def enough(self) -> int:
        """Return the total number of requests at which `SPARSE_TAIL_REQUESTS` of them may exceed the limit."""
        return math.ceil(round(SPARSE_TAIL_REQUESTS / max(self.may_miss, 1e-6), 3))


def few_requests_level(goal: Goal, requests: int) -> FewRequestsLevel | None:
    """Return the SLO whose percentile depends on the fewest requests; None if all SLOs limit gaps between tokens."""
    levels = [slo for slo in goal.slos if slo.applies_to_requests]
    if not levels:
        return None
    slo = min(levels, key=goal.may_miss)
    return FewRequestsLevel(slo=str(slo), may_miss=goal.may_miss(slo), requests=requests)


def check_neighbours(
    best: EvaluatedCandidate, evaluator: EvaluationPool
) -> tuple[EvaluatedCandidate | None, tuple[str, ...]]:
    """Return `best` with fewer replicas if these also meet the SLO, else None; and a note if more replicas may miss it.

    Return `(None, ())` if the percentile depends on enough requests, and for prefill-decode deployments, whose
    neighbours are not simulated.
    """
    judged_on = evaluator.context.context_of(best.candidate, check=evaluator.check).workloads
    what = few_requests_level(evaluator.context.goal, sum(map(len, judged_on)))
    if what is None or what.beyond >= SPARSE_TAIL_REQUESTS or best.option.prefill is not None:
        return None, ()
    trials = _neighbours(best, evaluator)
    met = {count: trial.met for count, trial in sorted(trials.items())}
    least = min(count for count, does in met.items() if does)
    fewer = EvaluatedCandidate(best.option, least, trials[least]) if least < best.replicas else None
    return fewer, (uneven_note(what, met, best.option.candidate_at(1).engine),) if is_uneven(met) else ()


def _neighbours(best: EvaluatedCandidate, evaluator: EvaluationPool) -> dict[int, Evaluation]:
    """Return the evaluations of the engine by number of replicas, including those of the search.

    Simulate up to `NEIGHBOURS` numbers of replicas below that of `best`, and as many above it until one meets the SLO.
    """
    option, replicas = best.option, best.replicas
    trials = {replicas: best.trial}
    for ask, trial in evaluator.trials.items():
        if not ask.first_tokens and ask.candidate == option.candidate_at(ask.candidate.replicas):
            trials[ask.candidate.replicas] = evaluator.best_known(ask) or trial

    def does(count: int) -> bool:
        if count not in trials:
            (found,) = evaluator.run_all(
                [EvaluationRequest(option.candidate_at(count), option.search.confidence)]
            )
            if found is None:
                return False
            trials[count] = found
        return trials[count].met

    for count in range(replicas - 1, max(option.least, replicas - NEIGHBOURS) - 1, -1):
        does(count)
    for count in range(replicas + 1, min(option.most, replicas + NEIGHBOURS) + 1):
        if does(count):
            break
    return trials


def is_uneven(met: Mapping[int, bool]) -> bool:
    """Return whether some number of replicas meets the SLO and a larger number misses it."""
    least = min((count for count, does in met.items() if does), default=None)
    return least is not None and any(count > least and not does for count, does in met.items())


def uneven_note(what: FewRequestsLevel, met: Mapping[int, bool], engine: str) -> str:
    """Return a note with the replicas that meet and miss the SLO, and the advice to use more requests."""
    worst = max(count for count, does in met.items() if not does)
    least = min(count for count, does in met.items() if does)
    missed = [count for count, does in sorted(met.items()) if count > least and not does]
    *others, last = map(str, missed)
    listed = f"{', '.join(others)} and {last}" if others else last
    safe = min((count for count, does in met.items() if does and count > worst), default=None)
    take = "" if safe is None else f", or choose {safe} replicas"
    return (
        f"{what.slo} depends on only the slowest {what.beyond} of {what.requests:,} requests, so more replicas are not "
        f"always better: {least} x {engine} {'meets' if least == 1 else 'meet'} it, {listed} "
        f"{'does' if missed == [1] else 'do'} not. Use at least {what.enough:,} requests{take}."
    )
