"""The least latency that any engine of the space gives: every engine with all the replicas that the limits allow."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.planning.bench import Bench
from capacity.planning.contender import Contender, PairContender
from capacity.planning.judging import Trial
from capacity.planning.option import Option
from capacity.planning.tried import Ask


class Fastest:
    """The least share of the limits so far (`ratio`, of which `below` is to be beaten)."""

    def __init__(self, bench: Bench, *, below: float = float("inf")) -> None:
        self.ratio = below
        self._bench = bench

    def see(self, contenders: Sequence[Contender]) -> None:
        """Those whose empty engines promise less are simulated, the most promising first. Raises OutOfTime."""
        order = sorted(contenders, key=lambda contender: contender.option.bound.ratio)
        for place, contender in enumerate(order):
            if contender.option.bound.ratio >= self.ratio:
                return
            if isinstance(contender, PairContender):
                self._balance(contender.options)
            else:
                rest = [other.option for other in order[place + 1 :] if not isinstance(other, PairContender)]
                trial = self._try(contender.option, rest)
                if not trial.met:
                    contender.learn(_full(contender.option), trial, accepted=False)

    def _try(self, option: Option, rest: Sequence[Option] = ()) -> Trial:
        def ahead() -> list[Ask]:
            return [_full(other) for other in rest if other.bound.ratio < self.ratio]

        trial = self._bench.trial(_full(option), ahead)
        if trial.met:
            self.ratio = min(self.ratio, trial.ratio)
        return trial

    def _balance(self, options: Sequence[Option]) -> None:
        """With all GPUs in use: more replicas that prefill while TTFT is the worse part, fewer while TPOT is."""
        low, high = 0, len(options)
        while low < high:
            middle = (low + high) // 2
            worst = max(self._try(options[middle]).levels, key=lambda level: level.ratio)
            low, high = (low, middle) if worst.slo.startswith(("tpot", "itl")) else (middle + 1, high)


def _full(option: Option) -> Ask:
    return Ask(option.at(option.most), sample=False)
