"""Where few requests decide: a percentile of three requests hangs on who meets whom, and more replicas may do worse.

The search takes for granted that more replicas of an engine never do worse. Of traffic whose level hangs on `FEW`
requests or more that held in every case that was tried (48 loads of lognormal prompts, percentiles 90 to 99, one and
three draws, 2026-11-23); of three requests it did not in 2 of 16. So there the neighbours of the answer are tried too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from capacity.planning.evaluation.evaluation_context import EvaluationRequest
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.evaluation.slo_evaluation import Evaluation, Goal
from capacity.planning.search.candidate_family import EvaluatedCandidate

FEW = 10  # requests beyond a percentile
NEIGHBOURS = 4  # numbers of replicas below the answer that are tried where few requests decide, and above it


@dataclass(frozen=True, slots=True, kw_only=True)
class Hanging:
    """The level that hangs on the fewest requests: those that may be beyond it, of all."""

    slo: str
    may_miss: float
    requests: int

    @property
    def beyond(self) -> int:
        """So many requests decide."""
        return max(math.ceil(round(self.may_miss * self.requests, 6)), 1)

    @property
    def few(self) -> bool:
        """Whether chance decides."""
        return self.beyond < FEW

    @property
    def enough(self) -> int:
        """Requests with which it would not."""
        return math.ceil(round(FEW / max(self.may_miss, 1e-6), 3))


def hanging(goal: Goal, requests: int) -> Hanging | None:
    """Of the levels of whole requests; None where there are only levels of gaps between tokens."""
    levels = [slo for slo in goal.slos if slo.of_requests]
    if not levels:
        return None
    slo = min(levels, key=goal.may_miss)
    return Hanging(slo=str(slo), may_miss=goal.may_miss(slo), requests=requests)


def look_beside(
    best: EvaluatedCandidate, bench: EvaluationPool
) -> tuple[EvaluatedCandidate | None, tuple[str, ...]]:
    """The best engine with fewer replicas that do as well, and what is to be said, where few requests decide.

    None, and nothing, where many do. Of prefill and decode pools neighbours are not tried.
    """
    judged_on = bench.arena.context_of(best.candidate, check=bench.check).workloads
    what = hanging(bench.arena.goal, sum(map(len, judged_on)))
    if what is None or not what.few or best.option.prefill is not None:
        return None, ()
    trials = _neighbours(best, bench)
    met = {count: trial.met for count, trial in sorted(trials.items())}
    least = min(count for count, does in met.items() if does)
    fewer = EvaluatedCandidate(best.option, least, trials[least]) if least < best.replicas else None
    return fewer, (note(what, met, best.option.at(1).engine),) if uneven(met) else ()


def _neighbours(best: EvaluatedCandidate, bench: EvaluationPool) -> dict[int, Evaluation]:
    """The engine of an answer with other numbers of replicas: those of the search, and its neighbours.

    All of the neighbours below are tried, and those above up to the next that does.
    """
    option, replicas = best.option, best.replicas
    trials = {replicas: best.trial}
    for ask, trial in bench.trials.items():
        if not ask.first_tokens and ask.candidate == option.at(ask.candidate.replicas):
            trials[ask.candidate.replicas] = bench.known(ask) or trial

    def does(count: int) -> bool:
        if count not in trials:
            (found,) = bench.all(
                [EvaluationRequest(candidate=option.at(count), confidence=option.search.confidence)]
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


def uneven(met: Mapping[int, bool]) -> bool:
    """Whether some number of replicas does and a greater one does not."""
    least = min((count for count, does in met.items() if does), default=None)
    return least is not None and any(count > least and not does for count, does in met.items())


def note(what: Hanging, met: Mapping[int, bool], engine: str) -> str:
    """What was seen, and what to do about it."""
    worst = max(count for count, does in met.items() if not does)
    least = min(count for count, does in met.items() if does)
    missed = [count for count, does in sorted(met.items()) if count > least and not does]
    *others, last = map(str, missed)
    listed = f"{', '.join(others)} and {last}" if others else last
    safe = min((count for count, does in met.items() if does and count > worst), default=None)
    take = "" if safe is None else f", or take {safe}"
    return (
        f"{what.slo} hangs on the slowest {what.beyond} of {what.requests:,} requests, so that more replicas are not "
        f"always better: {least} x {engine} {'meets' if least == 1 else 'meet'} it, {listed} "
        f"{'does' if missed == [1] else 'do'} not; ask with {what.enough:,} requests or more{take}"
    )
