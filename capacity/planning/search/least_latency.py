"""The least latency that any engine of the space gives: every engine with all the replicas that the limits allow."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.planning.evaluation.evaluation_pool import EvaluationPool, EvaluationRequest
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.search.candidate_family import CandidateFamily
from capacity.planning.search.replica_search import PairReplicaSearch, ReplicaSearch


class LeastLatency:
    """The least share of the limits so far (`ratio`, of which `below` is to be beaten)."""

    def __init__(self, bench: EvaluationPool, *, below: float = float("inf")) -> None:
        self.ratio = below
        self._bench = bench

    def see(self, contenders: Sequence[ReplicaSearch]) -> None:
        """Those whose empty engines promise less are simulated, the most promising first. Raises OutOfTime."""
        order = sorted(contenders, key=lambda contender: contender.option.bound.ratio)
        for place, contender in enumerate(order):
            if contender.option.bound.ratio >= self.ratio:
                return
            if isinstance(contender, PairReplicaSearch):
                self._balance(contender.options)
            else:
                rest = [
                    other.option for other in order[place + 1 :] if not isinstance(other, PairReplicaSearch)
                ]
                trial = self._try(contender.option, rest)
                if not trial.met:
                    contender.learn(_full(contender.option), trial, accepted=False)

    def _try(self, option: CandidateFamily, rest: Sequence[CandidateFamily] = ()) -> Evaluation:
        def ahead() -> list[EvaluationRequest]:
            return [_full(other) for other in rest if other.bound.ratio < self.ratio]

        trial = self._bench.trial(_full(option), ahead)
        if trial.met:
            self.ratio = min(self.ratio, trial.ratio)
        return trial

    def _balance(self, options: Sequence[CandidateFamily]) -> None:
        """With all GPUs in use: more replicas that prefill while TTFT is the worse part, fewer while TPOT is."""
        low, high = 0, len(options)
        while low < high:
            middle = (low + high) // 2
            worst = max(self._try(options[middle]).levels, key=lambda level: level.ratio)
            low, high = (low, middle) if worst.slo.startswith(("tpot", "itl")) else (middle + 1, high)


def _full(option: CandidateFamily) -> EvaluationRequest:
    return EvaluationRequest(option.at(option.most), sample=False)
