"""What is known of the engines of one GPU and weight format: the answer so far, what missed, what is still open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from capacity.deployment import Pool
from capacity.planning.judging import Trial
from capacity.planning.option import Option, costlier
from capacity.planning.records import Rejection
from capacity.planning.space import Candidate

GIVEN_UP = " in the part simulated before it was given up"
OUTPACED = "the first tokens alone are late with as many replicas that prefill as the limits allow"
NOT_REACHED = "not simulated: the search ended before its turn"


class Tried(NamedTuple):
    """A deployment that was simulated."""

    option: Option
    replicas: int
    trial: Trial

    @property
    def candidate(self) -> Candidate:
        return self.option.at(self.replicas)

    @property
    def objective(self) -> float:
        """What is minimised, as simulated."""
        if self.option.search.objective == "latency":
            return self.trial.ratio
        return self.option.objective(self.replicas)

    @property
    def loss(self) -> float:
        """The worst published loss of quality; an unknown one is the worst there is."""
        loss = self.option.quality.worst_loss_fraction
        return 1.0 if loss is None else loss

    @property
    def order(self) -> tuple[float, float, float]:
        """Order of answers: the objective, then the published loss of quality, then the margin to the SLO."""
        return (self.objective, self.loss, self.trial.ratio)


@dataclass(kw_only=True)
class Ceiling:
    """What every family must beat: `base`, and where only the best of all is wanted (`shared`) what others offer."""

    base: float = float("inf")
    shared: bool = False
    offers: dict[int, float] = field(default_factory=dict)
    loosened: bool = False  # an offer was taken back: what it put aside must be looked at again

    @property
    def value(self) -> float:
        return min(self.base, *self.offers.values()) if self.shared and self.offers else self.base

    def offer(self, family: Family) -> None:
        """Take note of a family's incumbent."""
        before = self.offers.get(id(family), float("inf"))
        self.offers[id(family)] = family.objective
        self.loosened |= self.shared and family.objective > before


@dataclass(kw_only=True)
class Family:
    """What is known of one GPU and weight format so far."""

    options: list[Option]
    ceiling: Ceiling = field(default_factory=Ceiling, repr=False)
    open_loop: bool = True  # arrivals wait for no answer
    incumbent: Tried | None = None
    met: list[Tried] = field(default_factory=list)  # every deployment that meets the SLO
    missed: list[Tried] = field(default_factory=list)
    open: list[Option] = field(default_factory=list)  # not settled yet
    pruned: list[Option] = field(default_factory=list)  # settled without a simulation
    outpaced: list[Option] = field(
        default_factory=list
    )  # pairs whose prefills alone are too slow, at any number
    done: bool = False

    @property
    def objective(self) -> float:
        """Of the incumbent; infinite without one."""
        return float("inf") if self.incumbent is None else self.incumbent.objective

    @property
    def engines(self) -> int:
        """Engines, or pairs of them."""
        return len({engine_of(option) for option in self.options})

    @property
    def engines_open(self) -> int:
        """Of these, not settled."""
        return 0 if self.done else len({engine_of(option) for option in self.open})

    @property
    def to_beat(self) -> float:
        """What a further answer must be below."""
        return min(self.objective, self.ceiling.value)

    def record(self, option: Option, replicas: int, trial: Trial) -> bool:
        """Take note of a trial; whether it is the new incumbent."""
        tried = Tried(option, replicas, trial)
        (self.met if trial.met else self.missed).append(tried)
        if not trial.met or (self.incumbent is not None and tried.order >= self.incumbent.order):
            return False
        self.incumbent = tried
        self.ceiling.offer(self)
        return True

    def retract(self) -> tuple[Option, int]:
        """The incumbent did not stand up to a full simulation: it, and the next best takes its place."""
        assert self.incumbent is not None
        option, replicas, _ = self.incumbent
        kept = [tried for tried in self.met if tried[:2] != (option, replicas)]
        self.met, self.incumbent = [], None
        for tried in kept:
            self.record(*tried)
        self.ceiling.offer(self)
        return option, replicas

    def settle(self, option: Option, replicas: int, trial: Trial) -> None:
        """This is the incumbent, whatever margin mere samples of equally dear ones promise."""
        self.incumbent = Tried(option, replicas, trial)
        self.ceiling.offer(self)

    def forget(self) -> None:
        """Begin anew; what was simulated is not simulated again."""
        self.incumbent, self.done = None, False
        self.met, self.missed, self.open, self.pruned, self.outpaced = [], [], [], [], []
        self.ceiling.offers.pop(id(self), None)

    def rejections(self) -> list[Rejection]:
        """Why each engine, or pair of them, that is not among `met` is not an answer: the first reason of each."""
        settled = {engine_of(tried.option) for tried in self.met}
        rejected = []
        for option, rejection in self._reasons():
            if engine_of(option) not in settled:
                rejected.append(rejection)
                settled.add(engine_of(option))
        return rejected

    def _reasons(self) -> Iterator[tuple[Option, Rejection]]:
        """Everything that is no answer, the strongest reasons first."""
        for option, replicas, trial in self.missed:
            why = describe_miss(trial)
            yield option, Rejection.of(option.at(replicas), "slo", why, replicas=replicas)
        for option in self.outpaced:
            yield option, Rejection.of(option.at(option.least), "slo", OUTPACED, replicas=None)
        for option in self.pruned:
            dear, least = costlier(option, self.to_beat), option.least
            yield option, Rejection.of(option.at(least), dear.kind, dear.reason, replicas=least)
        for option in self.open:
            yield option, Rejection.of(option.at(option.least), "unresolved", NOT_REACHED, replicas=None)


def engine_of(option: Option) -> tuple[Pool, Pool | None, str]:
    """The engine, or the pair of them, and the router, whatever the numbers of replicas."""
    return option.pool, option.prefill, option.router


def describe_miss(trial: Trial) -> str:
    """Which level was missed by how much."""
    worst = max(trial.levels, key=lambda level: level.ratio)
    seen = GIVEN_UP if trial.seen == "given up" else ""
    if worst.value_s is None:
        return f"{worst.slo}: {worst.good_fraction:.1%} of requests within, {worst.required_fraction:.1%} needed{seen}"
    return f"{worst.slo}: {worst.value_s * 1e3:,.0f} ms{seen}, {worst.ratio:.2f} times the limit"
