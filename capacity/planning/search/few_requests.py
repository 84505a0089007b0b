"""Check neighbouring numbers of replicas when few requests determine a percentile.

The search assumes that more replicas of an engine never perform worse. That held in every case tried if at least `FEW`
requests determine the percentile (48 loads of lognormal prompts, p90 to p99, one and three draws, 2026-11-23). With
three requests it failed in 2 of 16 cases, so neighbours of the answer are tried as well.
"""

from __future__ import annotations

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
    """SLO level that the fewest requests determine: the fraction that may miss it, and the total number of requests."""

    slo: str
    may_miss: float
    requests: int

    @property
    def beyond(self) -> int:
        """Return how many requests determine the level."""
        return max(math.ceil(round(self.may_miss * self.requests, 6)), 1)

    @property
    def enough(self) -> int:
        """Return the total number of requests with which `FEW` requests determine the level."""
        return math.ceil(round(SPARSE_TAIL_REQUESTS / max(self.may_miss, 1e-6), 3))


def few_requests_level(goal: Goal, requests: int) -> FewRequestsLevel | None:
    """Return the level that the fewest requests determine; None if all levels are on gaps between tokens."""
    levels = [slo for slo in goal.slos if slo.applies_to_requests]
    if not levels:
        return None
    slo = min(levels, key=goal.may_miss)
    return FewRequestsLevel(slo=str(slo), may_miss=goal.may_miss(slo), requests=requests)


def check_neighbours(
    best: EvaluatedCandidate, bench: EvaluationPool
) -> tuple[EvaluatedCandidate | None, tuple[str, ...]]:
    """Return the same engine with fewer replicas if it meets the SLO, and a note, when few requests determine a level.

    Return `(None, ())` if enough requests determine it, and for prefill-decode deployments, whose neighbours are not
    tried.
    """
    judged_on = bench.arena.context_of(best.candidate, check=bench.check).workloads
    what = few_requests_level(bench.arena.goal, sum(map(len, judged_on)))
    if what is None or what.beyond >= SPARSE_TAIL_REQUESTS or best.option.prefill is not None:
        return None, ()
    trials = _neighbours(best, bench)
    met = {count: trial.met for count, trial in sorted(trials.items())}
    least = min(count for count, does in met.items() if does)
    fewer = EvaluatedCandidate(best.option, least, trials[least]) if least < best.replicas else None
    return fewer, (uneven_note(what, met, best.option.candidate_at(1).engine),) if is_uneven(met) else ()


def _neighbours(best: EvaluatedCandidate, bench: EvaluationPool) -> dict[int, Evaluation]:
    """Evaluate neighbouring numbers of replicas: all of those below, and those above up to the first that meets the
    SLO.

    The result includes the numbers that the search has evaluated.
    """
    option, replicas = best.option, best.replicas
    trials = {replicas: best.trial}
    for ask, trial in bench.trials.items():
        if not ask.first_tokens and ask.candidate == option.candidate_at(ask.candidate.replicas):
            trials[ask.candidate.replicas] = bench.best_known(ask) or trial

    def does(count: int) -> bool:
        if count not in trials:
            (found,) = bench.run_all(
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
    """Return whether some number of replicas meets the SLO and a larger one does not."""
    least = min((count for count, does in met.items() if does), default=None)
    return least is not None and any(count > least and not does for count, does in met.items())


def uneven_note(what: FewRequestsLevel, met: Mapping[int, bool], engine: str) -> str:
    """Return a note with the result and the advice to use more requests."""
    worst = max(count for count, does in met.items() if not does)
    least = min(count for count, does in met.items() if does)
    missed = [count for count, does in sorted(met.items()) if count > least and not does]
    *others, last = map(str, missed)
    listed = f"{', '.join(others)} and {last}" if others else last
    safe = min((count for count, does in met.items() if does and count > worst), default=None)
    take = "" if safe is None else f", or take {safe}"
    return (
        f"{what.slo} depends on only the slowest {what.beyond} of {what.requests:,} requests, so more replicas are not "
        f"always better: {least} x {engine} {'meets' if least == 1 else 'meet'} it, {listed} "
        f"{'does' if missed == [1] else 'do'} not. Use at least {what.enough:,} requests{take}."
    )
