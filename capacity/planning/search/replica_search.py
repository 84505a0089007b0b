"""Search for the fewest replicas of an engine or of a prefill-decode pair that meet the SLO.

A search tracks which numbers of replicas are undecided, and returns the one to evaluate next. It assumes that fewer
replicas perform worse because each has more work (`few_requests` checks where that is false). For prefill-decode pairs
it also assumes that TTFT is no better than that of the prefill pool alone, and that TPOT does not improve with more
prefill and fewer decode replicas.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from capacity.planning.evaluation.evaluation_context import EvaluationRequest, first_request
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.search.candidate_family import CandidateFamily, EvaluatedCandidate, Exclusion, Order
from capacity.planning.space import Candidate

GROWTH = 1.5  # of replicas, from one rejected guess to the next
GUESSES = 6  # then try the largest number allowed


class ReplicaSearch:
    """Search for the fewest replicas of an engine: fewer than `low` miss the SLO, `high` meet it (None: unknown)."""

    def __init__(self, option: CandidateFamily) -> None:
        self.option = option
        self.low = option.least
        self.high: int | None = None
        self.met: list[EvaluatedCandidate] = []
        self.missed: list[EvaluatedCandidate] = []
        self._guess = option.least

    @property
    def candidate(self) -> Candidate:
        """Return the engine with the fewest replicas that its bounds allow."""
        return self.option.candidate_at(self.option.least)

    @property
    def options(self) -> Sequence[CandidateFamily]:
        """Return the candidate families: for a pair, one for each number of prefill replicas; otherwise one."""
        return (self.option,)

    @property
    def settled(self) -> bool:
        """Return whether the fewest replicas that meet the SLO are known, or that no number meets it."""
        return self.low > self.option.most or (self.high is not None and self.low >= self.high)

    @property
    def order(self) -> Order:
        """Return the sort key of the best candidate that the search can still find."""
        return self.option.order(self.low)

    def ask(self, best: Order | None) -> EvaluationRequest | None:
        """Return the next evaluation to run; None if the search is settled or cannot find one that sorts before `best`.

        With `best`, try the most replicas that sort before it; without, a growing number of replicas. Once some number
        meets the SLO, bisect.
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
        """Record an evaluation; return the evaluated candidate if it was accepted, otherwise None."""
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
        """Remove an accepted candidate that missed the SLO in full simulation; reopen larger numbers of replicas."""
        self.met = [other for other in self.met if other.replicas != tried.replicas]
        self.low = max(self.low, tried.replicas + 1)
        self._guess = self.low
        self.high = min((other.replicas for other in self.met), default=None)


@dataclass(eq=False)
class FirstTokenSearch:
    """Search for the fewest prefill replicas that meet the TTFT limits; fewer than `low` miss them, `high` meet them.

    `high` is None while unknown. TTFT is assumed not to depend on the decode engine, so all pairs with the same
    prefill engine share one search.
    """

    low: int
    high: int | None = None

    def guess(self, most: int) -> int:
        """Return the next number of replicas to try: 1.5 x `low` (at most `most`), or bisect if `high` is known."""
        if self.high is None:
            return min(math.ceil(self.low * GROWTH), most)
        return (self.low + self.high) // 2

    def learn(self, count: int, met: bool) -> None:
        if met:
            self.high = count if self.high is None else min(self.high, count)
        else:
            self.low = max(self.low, count + 1)

    @property
    def known(self) -> bool:
        """Return whether the fewest replicas that meet the TTFT limits are known."""
        return self.high is not None and self.low >= self.high


class PairReplicaSearch(ReplicaSearch):
    """Replica search of a prefill-decode pair, with a candidate family for each number of prefill replicas.

    `first` searches for the fewest prefill replicas by evaluations that end with the first token; None: no such
    search. From that number on, each number of prefill replicas is tried with the most decode replicas that would be
    better than the best candidate, until decode misses the SLO.
    """

    def __init__(self, options: Sequence[CandidateFamily], first: FirstTokenSearch | None) -> None:
        super().__init__(options[0])
        self._options = options
        self._place = 0  # of the current option
        self._first = first
        self._floor = 1  # fewer decode replicas miss the SLO, here and with more prefill replicas

    @property
    def options(self) -> Sequence[CandidateFamily]:
        return self._options

    @property
    def ttft_unreachable(self) -> bool:
        """Return whether TTFT is missed even with the most prefill replicas allowed."""
        return self._first is not None and self._first.low > self._options[-1].prefill_replicas

    @property
    def settled(self) -> bool:
        return self.ttft_unreachable or not any(low <= high for _, low, high in self._in_doubt())

    @property
    def order(self) -> Order:
        orders = [option.order(low) for option, low, high in self._in_doubt() if low <= high]
        return min(orders, default=self.option.order(self.low))

    def _in_doubt(self) -> Iterator[tuple[CandidateFamily, int, int]]:
        """Yield each undecided number of prefill replicas (as family) with the range of possible decode replicas."""
        start = self._place
        if self._first is not None:
            start = max(start, self._first.low - self._options[0].prefill_replicas)
        for option in self._options[start:]:
            if option is self.option:
                yield option, self.low, option.most if self.high is None else self.high - 1
            else:
                yield option, max(option.least, self._floor), option.most

    def ask(self, best: Order | None) -> EvaluationRequest | None:
        if self.ttft_unreachable:
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
        return first_request(candidate, confidence)._replace(first_tokens=True)

    def learn(self, ask: EvaluationRequest, trial: Evaluation, accepted: bool) -> EvaluatedCandidate | None:
        if ask.first_tokens:
            assert self._first is not None
            self._first.learn(ask.candidate.replicas, trial.met)
            return None
        self._select_family(ask.candidate.prefill_replicas - self._options[0].prefill_replicas)
        if trial.decode_missed:
            self._floor = max(self._floor, ask.candidate.replicas + 1)
        return super().learn(ask, trial, accepted)

    def _select_family(self, place: int) -> None:
        if place != self._place:
            self._place, self.option = place, self._options[place]
            self.low, self.high = max(self.option.least, self._floor), None

    def retract(self, tried: EvaluatedCandidate) -> None:
        self._select_family(self._options.index(tried.option))
        self.met = [other for other in self.met if other[:2] != tried[:2]]
        self.low, self.high = tried.replicas + 1, None


@dataclass(eq=False)
class UnresolvedCandidate:
    """Candidate whose engine is not resolved yet; `order` is a lower bound of its sort key.

    `_resolve` resolves the engine and computes its bounds; `_record` receives the result.
    """

    candidate: Candidate
    order: Order
    _resolve: Callable[[], Sequence[ReplicaSearch] | Exclusion]
    _record: "Callable[[UnresolvedCandidate, Sequence[ReplicaSearch] | Exclusion], None]"
    entered: bool = False
    _seen: Sequence[ReplicaSearch] | Exclusion | None = None

    def look(self) -> Sequence[ReplicaSearch]:
        """Return the replica searches of the candidate, empty if it is rejected; do not record the result."""
        if self._seen is None:
            self._seen = self._resolve()
        return () if isinstance(self._seen, Exclusion) else self._seen

    def enter(self) -> Sequence[ReplicaSearch]:
        """Record the result, then return the replica searches of the candidate; empty if it is rejected."""
        contenders = self.look()
        assert self._seen is not None
        self.entered = True
        self._record(self, self._seen)
        return contenders
