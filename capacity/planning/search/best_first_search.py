"""Best-first search: evaluate candidates in order of their lower bound until none can be better than the best found.

An engine enters the queue with the objective of one replica as its lower bound (`UnresolvedCandidate`). When it
reaches the front of the queue, it is resolved and its bounds are computed. Until a first candidate meets the
SLO, the queue is sorted by distance from the engine's defaults, then by lower bound.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field

from capacity.planning.evaluation.evaluation_context import EvaluationRequest, OutOfTime
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.search.candidate_family import CandidateFamily, EvaluatedCandidate, Order
from capacity.planning.search.replica_search import PairReplicaSearch, ReplicaSearch, UnresolvedCandidate

Entry = UnresolvedCandidate | ReplicaSearch
Accept = Callable[[Evaluation], bool]


@dataclass(eq=False)
class BestFirstSearch:
    """Search for the best candidate in `start` whose evaluation `accept` accepts; `improved` is called with each better
    candidate.

    `full`: simulate all replicas in every evaluation; otherwise one replica may represent all until the final
    verification. `below`: search only for candidates with a sort key below this one. `whole`: the best candidate must
    also meet the SLO on the whole traffic if the evaluations use only its busiest window.
    """

    start: InitVar[Iterable[Entry]]
    evaluator: EvaluationPool
    _: KW_ONLY
    accept: Accept = lambda trial: trial.met
    improved: Callable[[EvaluatedCandidate], None] | None = None
    full: bool = False
    below: Order | None = None
    whole: bool = False
    best: EvaluatedCandidate | None = None
    done: bool = False
    _contenders: list[ReplicaSearch] = field(default_factory=list)
    _owner: ReplicaSearch | None = None  # search that found the best
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _heap: list[tuple[tuple[int, Order], int, Entry]] = field(default_factory=list)

    def __post_init__(self, start: Iterable[Entry]) -> None:
        for entry in start:
            self._add(entry)
        self._choose()

    @property
    def entries(self) -> list[Entry]:
        """Return all candidates of the search, resolved or not."""
        prospects = [entry for _, _, entry in self._heap if isinstance(entry, UnresolvedCandidate)]
        return [*self._contenders, *prospects]

    def run(self) -> None:
        """Run the search until no candidate can be better and the best is verified. Raises OutOfTime."""
        while True:
            while (entry := self._pop_next()) is not None:
                self._advance(entry)
            if self.verified:
                self.done = True
                return
            self._verify()

    def merge(self, other: "BestFirstSearch") -> None:
        """Add the candidates that `other`, a search over some of the same candidates, has resolved."""
        known = {id(contender) for contender in self._contenders}
        self._contenders += [each for each in other._contenders if id(each) not in known]
        self._heap = [
            item for item in self._heap if not (isinstance(item[2], UnresolvedCandidate) and item[2].entered)
        ]
        heapq.heapify(self._heap)

    @property
    def verified(self) -> bool:
        """Return whether the best candidate, if any, was simulated in full, on the whole traffic if required."""
        if self.best is None:
            return True
        trial = self.best.trial
        return trial.seen != "sample" and (not self.whole or trial.window is not None)

    def verify(self) -> None:
        """Simulate all replicas of the best candidate; continue with the next if it misses the SLO. Raises
        OutOfTime."""
        while not self.verified:
            self._verify()

    def replace_best(self, fewer: EvaluatedCandidate) -> None:
        """Replace the best candidate with `fewer`, which has fewer replicas of the same engine."""
        assert self._owner is not None
        self._owner.met.append(fewer)
        self._owner.high = fewer.replicas
        self._set(fewer, self._owner)

    def _add(self, entry: Entry) -> None:
        if isinstance(entry, ReplicaSearch):
            self._contenders.append(entry)
        self._push(entry, next(self._numbers))

    def _push(self, entry: Entry, number: int) -> None:
        heapq.heappush(self._heap, (self._key(entry), number, entry))

    def _key(self, entry: Entry) -> tuple[int, Order]:
        order = entry.order
        return (int(order[2]) if self._limit is None else 0, order)

    @property
    def _limit(self) -> Order | None:
        """Return the sort key that a better candidate must be below; None if any accepted candidate is better."""
        return self.below if self.best is None else self.best.order

    def _pop_next(self) -> tuple[int, Entry] | None:
        """Remove and return the next engine to evaluate: the engine of the best candidate until its fewest replicas are
        known, then the first in the queue. None if no other engine can be better."""
        if self._owner is not None and self._ask(self._owner) is not None:
            at = next((at for at, item in enumerate(self._heap) if item[2] is self._owner), None)
            if at is not None:
                _, number, entry = self._heap.pop(at)
                heapq.heapify(self._heap)
                return number, entry
        while self._heap:
            _, number, entry = self._heap[0]
            if self._limit is not None and entry.order >= self._limit:
                return None
            heapq.heappop(self._heap)
            if isinstance(entry, UnresolvedCandidate) or self._ask(entry) is not None:
                return number, entry
        return None

    def _ask(self, contender: ReplicaSearch) -> EvaluationRequest | None:
        ask = contender.ask(self._limit)
        if ask is None or not self.full or ask.first_tokens:
            return ask
        return ask._replace(sample=False, first_draw=False)

    def _advance(self, numbered: tuple[int, Entry]) -> None:
        number, entry = numbered
        if isinstance(entry, UnresolvedCandidate):
            try:
                self.evaluator.check()
            except OutOfTime:
                self._push(entry, number)
                raise
            for contender in entry.enter():
                self._add(contender)
            return
        try:
            ask = self._ask(entry)
            assert ask is not None
            trial = self.evaluator.trial(ask, self._ahead)
            tried = entry.learn(ask, trial, self.accept(trial))
        finally:
            self._push(entry, number)
        if tried is not None and (self.best is None or tried.order < self.best.order):
            self._set(tried, entry)

    def _ahead(self) -> Sequence[EvaluationRequest]:
        """Return the evaluation requests that will probably follow if the best candidate does not change."""
        asks = []
        for _, _, entry in heapq.nsmallest(2 * self.evaluator.workers, self._heap):
            if self._limit is not None and entry.order >= self._limit:
                continue
            for contender in entry.look() if isinstance(entry, UnresolvedCandidate) else (entry,):
                ask = self._ask(contender)
                if ask is not None:
                    asks.append(ask)
        return asks

    def _set(self, tried: EvaluatedCandidate | None, owner: ReplicaSearch | None) -> None:
        rekeyed = (self.best is None) != (tried is None)
        self.best, self._owner = tried, owner
        if rekeyed:
            self._rekey()
        if tried is not None and self.improved is not None:
            self.improved(tried)

    def _rekey(self) -> None:
        self._heap = [(self._key(entry), number, entry) for _, number, entry in self._heap]
        heapq.heapify(self._heap)

    def _choose(self) -> None:
        """Set the best candidate to the accepted one with the lowest sort key; None if none is accepted."""
        met = [(tried, contender) for contender in self._contenders for tried in contender.met]
        met = [(tried, contender) for tried, contender in met if self.accept(tried.trial)]
        tried, owner = min(met, key=lambda each: each[0].order, default=(None, None))
        self._set(tried, owner)

    def _verify(self) -> None:
        assert self.best is not None
        assert self._owner is not None
        confidence = self.best.option.search.confidence
        trial = self.evaluator.trial(EvaluationRequest(self.best.candidate, confidence, whole=self.whole))
        tried, owner = self.best._replace(trial=trial), self._owner
        if self.accept(trial):
            owner.met = [other for other in owner.met if other[:2] != tried[:2]] + [tried]
            self.best = tried
            return
        owner.retract(tried)
        owner.missed.append(tried)
        self._rekey()  # the owner's order has changed
        self._choose()


@dataclass
class LeastLatencySearch:
    """Search for the lowest latency over all engines, each with the most replicas that the limits allow.

    `ratio` is the lowest latency found, as a fraction of the SLO limits; its initial value is the one to improve on.
    """

    evaluator: EvaluationPool
    ratio: float = math.inf

    def simulate_candidates(self, contenders: Sequence[ReplicaSearch]) -> None:
        """Simulate candidates whose latency bound is below `ratio`, lowest bound first. Raises OutOfTime."""
        order = sorted(contenders, key=lambda contender: contender.option.bound.ratio)
        for place, contender in enumerate(order):
            if contender.option.bound.ratio >= self.ratio:
                return
            if isinstance(contender, PairReplicaSearch):
                self._balance(contender.options)
            else:
                rest = (each for each in order[place + 1 :] if not isinstance(each, PairReplicaSearch))
                trial = self._try(contender.option, [each.option for each in rest])
                if not trial.met:
                    contender.learn(_full(contender.option), trial, accepted=False)

    def _try(self, option: CandidateFamily, rest: Sequence[CandidateFamily] = ()) -> Evaluation:
        def ahead() -> list[EvaluationRequest]:
            return [_full(other) for other in rest if other.bound.ratio < self.ratio]

        trial = self.evaluator.trial(_full(option), ahead)
        if trial.met:
            self.ratio = min(self.ratio, trial.ratio)
        return trial

    def _balance(self, options: Sequence[CandidateFamily]) -> None:
        """Bisect the number of prefill replicas on all allowed GPUs: more if TTFT is worse than TPOT, else fewer."""
        low, high = 0, len(options)
        while low < high:
            middle = (low + high) // 2
            worst = max(self._try(options[middle]).levels, key=lambda level: level.ratio)
            low, high = (middle + 1, high) if worst.includes_wait else (low, middle)


def _full(option: CandidateFamily) -> EvaluationRequest:
    return EvaluationRequest(option.candidate_at(option.most), option.search.confidence)
