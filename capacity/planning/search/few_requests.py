"""Where few requests decide: a percentile of three requests hangs on who meets whom, and more replicas may do worse.

The search takes for granted that more replicas of an engine never do worse. Of traffic whose level hangs on `FEW`
requests or more that held in every case that was tried (48 loads of lognormal prompts, percentiles 90 to 99, one and
three draws, 2026-11-23); of three requests it did not in 2 of 16. So there the neighbours of the answer are tried too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from capacity.planning.evaluation.evaluation_context import EvaluationTask
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.evaluation.slo_evaluation import Goal
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
    levels = [slo for slo in goal.slos if slo.metric != "itl"]
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
    neighbours = Neighbours(best, bench)
    fewer = neighbours.look()
    met = neighbours.met
    return fewer, (note(what, met, best.option.at(1).engine),) if uneven(met) else ()


class Neighbours:
    """Of an answer: the same engine with fewer replicas and with more, where it was not tried in the search."""

    def __init__(self, best: EvaluatedCandidate, bench: EvaluationPool) -> None:
        self._best = best
        self._bench = bench
        self.trials = {best.replicas: best.trial}
        for ask, trial in bench.trials.items():
            if not ask.first_tokens and ask.candidate == best.option.at(ask.candidate.replicas):
                self.trials[ask.candidate.replicas] = bench.known(ask) or trial

    def look(self) -> EvaluatedCandidate | None:
        """Try them, below all and above up to the next that does; the fewest that do, where they are fewer."""
        option, replicas = self._best.option, self._best.replicas
        for count in range(replicas - 1, max(option.least, replicas - NEIGHBOURS) - 1, -1):
            self._try(count)
        for count in range(replicas + 1, min(option.most, replicas + NEIGHBOURS) + 1):
            if self._try(count):
                break
        least = min(count for count, trial in self.trials.items() if trial.met)
        return EvaluatedCandidate(option, least, self.trials[least]) if least < replicas else None

    def _try(self, count: int) -> bool:
        trial = self.trials.get(count)
        if trial is None:
            task = EvaluationTask(candidate=self._best.option.at(count), confidence=self._bench.confidence)
            (trial,) = self._bench.all([task])
            if trial is not None:
                self.trials[count] = trial
        return trial is not None and trial.met

    @property
    def met(self) -> dict[int, bool]:
        """Whether so many replicas do, as far as they were tried."""
        return {count: trial.met for count, trial in sorted(self.trials.items())}


def uneven(met: Mapping[int, bool]) -> bool:
    """Whether some number of replicas does and a greater one does not."""
    least = min((count for count, does in met.items() if does), default=None)
    return least is not None and any(count > least and not does for count, does in met.items())


def note(what: Hanging, met: Mapping[int, bool], engine: str) -> str:
    """What was seen, and what to do about it."""
    worst = max(count for count, does in met.items() if not does)
    least = min(count for count, does in met.items() if does)
    missed = [count for count, does in sorted(met.items()) if count > least and not does]
    safe = min((count for count, does in met.items() if does and count > worst), default=None)
    take = "" if safe is None else f", or take {safe}"
    return (
        f"{what.slo} hangs on the slowest {what.beyond} of {what.requests:,} requests, so that more replicas are not "
        f"always better: {least} x {engine} {'meets' if least == 1 else 'meet'} it, {_listed(missed)} "
        f"{'does' if missed == [1] else 'do'} not; ask with {what.enough:,} requests or more{take}"
    )


def _listed(counts: list[int]) -> str:
    *others, last = map(str, counts)
    return f"{', '.join(others)} and {last}" if others else last
