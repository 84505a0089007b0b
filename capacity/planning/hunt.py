"""The search proper: which candidates to simulate, in which order, so that nothing cheaper is left in doubt.

Within a family (one GPU, one weight format) an incumbent is found first; then each option is tried once with the
most replicas that would still beat it. That fewer replicas of the same engine do worse is taken for granted
(each then has more to do); nothing else is. A family is a generator that yields candidates and is sent their
trials, so that families are tried side by side; what is tried does not depend on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from capacity.planning.options import Option
from capacity.planning.records import Rejection
from capacity.planning.space import Candidate
from capacity.planning.trial import Trial

GROWTH = 1.5  # of the replicas, from one guess that does not do to the next
TOGETHER = 2  # options of a family that are tried at a time
GUESS = 2.0  # replicas that are needed, over the bound: what the first guess assumes
POLISH = 6  # equally dear options that are tried for more margin


class Ask(NamedTuple):
    """A candidate to try; `sample`: one replica will do."""

    candidate: Candidate
    sample: bool = True


Batch = tuple[Ask, ...]
Hunt = Generator[Batch, Sequence[Trial], None]


@dataclass(kw_only=True)
class Ceiling:
    """The best objective of all families, where only the best of all is wanted; else infinite."""

    value: float = float("inf")


@dataclass(kw_only=True)
class Family:
    """What is known of one GPU and weight format so far."""

    options: list[Option]
    ceiling: Ceiling = field(default_factory=Ceiling)
    incumbent: tuple[Option, int, Trial] | None = None
    found: list[tuple[Option, int, Trial]] = field(
        default_factory=list
    )  # every deployment that meets the SLO
    missed: list[tuple[Option, int, Trial]] = field(default_factory=list)
    open: list[Option] = field(default_factory=list)  # not settled yet
    pruned: list[Option] = field(default_factory=list)  # settled without a simulation
    done: bool = False

    @property
    def objective(self) -> float:
        """Of the incumbent; infinite without one."""
        if self.incumbent is None:
            return float("inf")
        option, replicas, trial = self.incumbent
        return trial.ratio if option.search.objective == "latency" else option.objective(replicas)

    @property
    def to_beat(self) -> float:
        """What a further answer must be below."""
        return min(self.objective, self.ceiling.value)

    def record(self, option: Option, replicas: int, trial: Trial) -> bool:
        """Take note of a trial; whether it is the new incumbent."""
        (self.found if trial.met else self.missed).append((option, replicas, trial))
        if not trial.met:
            return False
        value = trial.ratio if option.search.objective == "latency" else option.objective(replicas)
        if self.incumbent is not None and _key(value, option, trial) >= _key(
            self.objective, self.incumbent[0], self.incumbent[2]
        ):
            return False
        self.incumbent = (option, replicas, trial)
        if not option.search.alternatives:
            self.ceiling.value = min(self.ceiling.value, value)
        return True

    def retract(self) -> tuple[Option, int]:
        """The incumbent did not stand up to a full simulation: it, and the next best takes its place."""
        assert self.incumbent is not None
        option, replicas, _ = self.incumbent
        self.found = [entry for entry in self.found if entry[:2] != (option, replicas)]
        found, self.found, self.incumbent = self.found, [], None
        for entry in found:
            self.record(*entry)
        return option, replicas

    def rejections(self) -> list[Rejection]:
        """Why each option of this family that is not among `found` is not an answer."""
        settled = {id(option) for option, _, _ in self.found}
        rejected = []
        for option, replicas, trial in self.missed:
            if id(option) not in settled:
                rejected.append(
                    Rejection(pool=option.pool, replicas=replicas, kind="slo", reason=describe_miss(trial))
                )
                settled.add(id(option))
        for option in self.pruned:
            if id(option) not in settled:
                rejected.append(
                    Rejection(
                        pool=option.pool,
                        replicas=option.least,
                        kind="costlier",
                        reason=self._costlier(option),
                    )
                )
        for option in self.open:
            if id(option) not in settled:
                reason = "not simulated: the search ended before its turn"
                rejected.append(Rejection(pool=option.pool, replicas=None, kind="unresolved", reason=reason))
        return rejected

    def _costlier(self, option: Option) -> str:
        return (
            f"needs at least {option.least} replicas: {_amount(option, option.objective(option.least))}, "
            f"no better than the answer's {_amount(option, self.to_beat)}"
        )


def _amount(option: Option, value: float) -> str:
    match option.search.objective:
        case "cost":
            return f"${value:,.2f}/h"
        case "energy":
            return f"{value / 1e3:,.1f} kW"
        case "latency":
            return f"{value:.2f} of the limit"
        case _:
            return f"{value:.0f} GPUs"


def _key(value: float, option: Option, trial: Trial) -> tuple[float, float, float]:
    """Order of answers: the objective, then the published loss of quality, then the margin to the SLO."""
    loss = option.quality.worst_loss_fraction
    return (value, 1.0 if loss is None else loss, trial.ratio)


def describe_miss(trial: Trial) -> str:
    """Which level was missed by how much."""
    worst = max(trial.levels, key=lambda level: level.ratio)
    seen = " in the part simulated before it was given up" if trial.seen == "given up" else ""
    if worst.value_s is None:
        return f"{worst.slo}: {worst.good_fraction:.1%} of requests within, {worst.required_fraction:.1%} needed{seen}"
    return f"{worst.slo}: {worst.value_s * 1e3:,.0f} ms{seen}, {worst.ratio:.2f} times the limit"


def hunt(family: Family) -> Hunt:
    """Try candidates until nothing in the family can beat its incumbent."""
    family.open = list(family.options)
    if family.options[0].search.objective == "latency":
        yield from _fastest(family)
    else:
        yield from _first(family)
        yield from _better(family)
        yield from _polish(family)
    yield from _verify(family)
    family.done = True


def _first(family: Family) -> Hunt:
    """An incumbent: the first option, by promise, that any open number of replicas makes good."""
    for option in list(family.open):
        low, replicas = option.least, min(max(option.least, round(option.least * GUESS)), option.most)
        while option.most_below(family.ceiling.value) == option.most:
            (trial,) = yield (Ask(option.at(replicas)),)
            family.record(option, replicas, trial)
            if trial.met:
                yield from _narrow(family, option, low, replicas)
                return
            if replicas == option.most:
                family.open.remove(option)
                break
            low, replicas = replicas + 1, min(max(replicas + 1, round(replicas * GROWTH)), option.most)


def _narrow(family: Family, option: Option, low: int, high: int) -> Hunt:
    """The fewest replicas, from `low` up to `high` that are known to do, by bisection."""
    while low < high and option.objective(low) < family.ceiling.value:
        middle = (low + high) // 2
        (trial,) = yield (Ask(option.at(middle)),)
        family.record(option, middle, trial)
        low, high = (low, middle) if trial.met else (middle + 1, high)
    family.open.remove(option)


def _better(family: Family) -> Hunt:
    """Every option that is still open, with the most replicas that beat the incumbent."""
    while True:
        batch: list[tuple[Option, int]] = []
        for option in list(family.open):
            replicas = option.most_below(family.to_beat)
            if not replicas:
                family.open.remove(option)
                family.pruned.append(option)
            elif len(batch) < TOGETHER:
                batch.append((option, replicas))
        if not batch:
            return
        trials = yield tuple(Ask(option.at(replicas)) for option, replicas in batch)
        for (option, replicas), trial in zip(batch, trials, strict=True):
            family.record(option, replicas, trial)
            if not trial.met:
                family.open.remove(option)
        for (option, replicas), trial in zip(batch, trials, strict=True):
            if trial.met and option.objective(replicas) <= family.objective:
                yield from _narrow(family, option, option.least, replicas)


def _polish(family: Family) -> Hunt:
    """Options as dear as the incumbent, for less loss of quality or more margin."""
    if family.incumbent is None:
        return
    winner, _, _ = family.incumbent
    value = family.objective
    tried = {(option.pool, replicas) for option, replicas, _ in (*family.found, *family.missed)}
    equal: list[tuple[Option, int]] = []
    for option in family.options:
        replicas = option.most_below(value * (1 + 1e-9))
        as_dear = replicas and option.objective(replicas) >= value * (1 - 1e-9)
        if as_dear and option.pool != winner.pool and (option.pool, replicas) not in tried:
            equal.append((option, replicas))
    equal.sort(key=lambda item: (item[0].quality.worst_loss_fraction or 0.0, item[0].promise))
    for start in range(0, min(len(equal), POLISH), TOGETHER):
        batch = equal[start : start + TOGETHER]
        trials = yield tuple(Ask(option.at(replicas)) for option, replicas in batch)
        for (option, replicas), trial in zip(batch, trials, strict=True):
            family.record(option, replicas, trial)


def _fastest(family: Family) -> Hunt:
    """Least latency: every option with all the replicas that the limits allow, unless its bound is beaten."""
    family.open.sort(key=lambda option: option.bound.ratio)
    while family.open:
        batch = [option for option in family.open if option.bound.ratio < family.to_beat][:TOGETHER]
        if not batch:
            family.pruned += family.open
            family.open = []
            return
        trials = yield tuple(Ask(option.at(option.most)) for option in batch)
        for option, trial in zip(batch, trials, strict=True):
            family.record(option, option.most, trial)
            family.open.remove(option)


def _verify(family: Family) -> Hunt:
    """The incumbent in full; where a sample had flattered it, what it had put aside is tried again."""
    while family.incumbent is not None and family.incumbent[2].seen == "sample":
        option, replicas, _ = family.incumbent
        (trial,) = yield (Ask(option.at(replicas), sample=False),)
        family.retract()
        family.record(option, replicas, trial)
        if trial.met:
            continue
        if replicas < option.most and option.search.objective != "latency":
            (trial,) = yield (Ask(option.at(replicas + 1)),)
            family.record(option, replicas + 1, trial)
        family.open, family.pruned = family.pruned, []
        if option.search.objective == "latency":
            yield from _fastest(family)
            continue
        if family.incumbent is None:
            yield from _first(family)
        yield from _better(family)
