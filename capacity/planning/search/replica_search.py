"""An engine, or a pair of them, in the search: which replicas are still in doubt, and which are to be tried next.

That fewer replicas of the same engine do worse is taken for granted: each then has more to do (`few_requests` looks
where that does not hold). Of prefill and decode pools it is also taken for granted that TTFT is no better than that of
the prefill pool alone, and that TPOT is no better with more replicas that prefill and fewer that decode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from capacity.planning.evaluation.evaluation_context import EvaluationRequest, first_look
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.search.candidate_family import CandidateFamily, EvaluatedCandidate, Exclusion, Order
from capacity.planning.space import Candidate

GROWTH = 1.5  # of the replicas, from one guess that does not do to the next
GUESSES = 6  # that are so made; where none does, the most there may be are tried


class ReplicaSearch:
    """One engine: fewer than `low` replicas do not do, `high` do (None: not known yet)."""

    def __init__(self, option: CandidateFamily) -> None:
        self.option = option
        self.low = option.least
        self.high: int | None = None
        self.met: list[EvaluatedCandidate] = []
        self.missed: list[EvaluatedCandidate] = []
        self._guess = option.least

    @property
    def candidate(self) -> Candidate:
        """It with the fewest replicas that its bounds leave open."""
        return self.option.at(self.option.least)

    @property
    def options(self) -> Sequence[CandidateFamily]:
        """One; of a pair, one for each number of replicas that prefill."""
        return (self.option,)

    @property
    def settled(self) -> bool:
        """Whether it is known how many do, or that none do."""
        return self.low > self.option.most or (self.high is not None and self.low >= self.high)

    @property
    def order(self) -> Order:
        """The best place that it might still take."""
        return self.option.order(self.low)

    def ask(self, best: Order | None) -> EvaluationRequest | None:
        """What to try next: the most replicas that come before `best`; while there is none, ever more of them.

        None where it is settled, or nothing of it comes before `best`.
        """
        if self.settled:
            return None
        if best is None and self.high is None:
            return self.option.first_look(min(self._guess, self.option.most))
        top = self.option.most if best is None else self.option.most_below(best)
        if self.high is not None:
            top = min(top, self.high - 1)
        if top < self.low:
            return None
        return self.option.first_look((self.low + top) // 2 if self.high is not None else top)

    def learn(self, ask: EvaluationRequest, trial: Evaluation, accepted: bool) -> EvaluatedCandidate | None:
        """Take note of a trial; what was tried, where it does."""
        tried = EvaluatedCandidate(self.option, ask.candidate.replicas, trial)
        if accepted:
            self.met.append(tried)
            self.high = tried.replicas
            return tried
        self.missed.append(tried)
        self.low = max(self.low, tried.replicas + 1)
        larger = math.ceil(tried.replicas * GROWTH) if len(self.missed) < GUESSES else self.option.most
        self._guess = max(self.low, larger)
        return None

    def retract(self, tried: EvaluatedCandidate) -> None:
        """So few did not do in full, though a sample had: more are in doubt again."""
        self.met = [other for other in self.met if other.replicas != tried.replicas]
        self.low = max(self.low, tried.replicas + 1)
        self._guess = self.low
        self.high = min((other.replicas for other in self.met), default=None)


@dataclass(eq=False)
class FirstTokenSearch:
    """How many replicas of an engine that prefills bring first tokens in time: `low` at least, `high` do (None: open).

    What decodes behind them is nothing to it, so all pairs with this engine share one.
    """

    low: int
    high: int | None = None

    def guess(self, most: int) -> int:
        """What to try next, at most so many: half as many again as the least, then the middle."""
        if self.high is None:
            return min(math.ceil(self.low * GROWTH), most)
        return (self.low + self.high) // 2

    def learn(self, count: int, met: bool) -> None:
        """Take note of a trial."""
        if met:
            self.high = count if self.high is None else min(self.high, count)
        else:
            self.low = max(self.low, count + 1)

    @property
    def known(self) -> bool:
        """Whether the fewest are known."""
        return self.high is not None and self.low >= self.high


class PairReplicaSearch(ReplicaSearch):
    """A prefill and a decode engine, an option for each number of replicas that prefill.

    The fewest that prefill follow from first tokens alone (None: these are not asked); from there on each number is
    tried with the most decode replicas that still come before the best, until decode is too slow.
    """

    def __init__(self, options: Sequence[CandidateFamily], first: FirstTokenSearch | None) -> None:
        super().__init__(options[0])
        self._options = options
        self._place = 0  # of the option that is walked
        self._first = first
        self._floor = 1  # fewer that decode are too slow, here and with more that prefill

    @property
    def options(self) -> Sequence[CandidateFamily]:
        return self._options

    @property
    def outpaced(self) -> bool:
        """Whether first tokens are late with as many replicas that prefill as there may be."""
        return self._first is not None and self._first.low > self._options[-1].prefill_replicas

    @property
    def settled(self) -> bool:
        return self.outpaced or not any(low <= high for _, low, high in self._in_doubt())

    @property
    def order(self) -> Order:
        orders = [option.order(low) for option, low, high in self._in_doubt() if low <= high]
        return min(orders, default=self.option.order(self.low))

    def _in_doubt(self) -> Iterator[tuple[CandidateFamily, int, int]]:
        """Options that may do, with the fewest and the most replicas that decode to be tried still."""
        start = self._place
        if self._first is not None:
            start = max(start, self._first.low - self._options[0].prefill_replicas)
        for option in self._options[start:]:
            if option is self.option:
                yield option, self.low, option.most if self.high is None else self.high - 1
            else:
                yield option, max(option.least, self._floor), option.most

    def ask(self, best: Order | None) -> EvaluationRequest | None:
        if self.outpaced:
            return None
        for option, low, high in self._in_doubt():
            top = high if best is None else min(high, option.most_below(best))
            if low <= top:
                bisected = option is self.option and self.high is not None
                count = (low + top) // 2 if bisected else top
                return self._first_tokens() or option.first_look(count)
        return None

    def _first_tokens(self) -> EvaluationRequest | None:
        first, prefill = self._first, self._options[0].prefill
        if first is None or first.known:
            return None
        assert prefill is not None
        count = first.guess(self._options[-1].prefill_replicas)
        candidate, confidence = Candidate(pool=prefill, replicas=count), self.option.search.confidence
        return first_look(candidate, confidence)._replace(first_tokens=True)

    def learn(self, ask: EvaluationRequest, trial: Evaluation, accepted: bool) -> EvaluatedCandidate | None:
        if ask.first_tokens:
            assert self._first is not None
            self._first.learn(ask.candidate.replicas, trial.met)
            return None
        self._walk(ask.candidate.prefill_replicas - self._options[0].prefill_replicas)
        if trial.decode_missed:
            self._floor = max(self._floor, ask.candidate.replicas + 1)
        return super().learn(ask, trial, accepted)

    def _walk(self, place: int) -> None:
        if place != self._place:
            self._place, self.option = place, self._options[place]
            self.low, self.high = max(self.option.least, self._floor), None

    def retract(self, tried: EvaluatedCandidate) -> None:
        self._walk(self._options.index(tried.option))
        self.met = [other for other in self.met if other[:2] != tried[:2]]
        self.low, self.high = tried.replicas + 1, None


@dataclass(eq=False)
class UnresolvedCandidate:
    """`order` is the best place that it might take; `_look` resolves and bounds it, `_hear` is told what came of it."""

    candidate: Candidate
    order: Order
    _look: Callable[[], Sequence[ReplicaSearch] | Exclusion]
    _hear: Callable[[UnresolvedCandidate, Sequence[ReplicaSearch] | Exclusion], None]
    entered: bool = False
    _seen: Sequence[ReplicaSearch] | Exclusion | None = None

    def look(self) -> Sequence[ReplicaSearch]:
        """Its contenders, none where it was turned down; before its turn has come, this counts for nothing."""
        if self._seen is None:
            self._seen = self._look()
        return () if isinstance(self._seen, Exclusion) else self._seen

    def enter(self) -> Sequence[ReplicaSearch]:
        """Its turn has come: its contenders, none where it was turned down."""
        contenders = self.look()
        assert self._seen is not None
        self.entered = True
        self._hear(self, self._seen)
        return contenders
