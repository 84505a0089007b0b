"""The search proper: which candidates to simulate, in which order, so that nothing cheaper is left in doubt.

Within a family (one GPU, one weight format) an incumbent is found first; then each option is tried once with the
most replicas that would still beat it. That fewer replicas of the same engine do worse is taken for granted
(each then has more to do). Of prefill and decode pools it is also taken for granted that TTFT is no better than
that of the prefill pool alone, and that TPOT is no better with more replicas that prefill and fewer that decode.
A family is a generator that yields candidates and is sent their trials, so that families are tried side by side;
what is tried does not depend on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from capacity.deployment import Pool
from capacity.planning.judging import Trial
from capacity.planning.options import Option, costlier
from capacity.planning.records import Rejection
from capacity.planning.space import Candidate

GROWTH = 1.5  # of the replicas, from one guess that does not do to the next
TOGETHER = 2  # options of a family that are tried at a time
GUESS = 2.0  # replicas that are needed, over the bound: what the first guess assumes
PREFILL_GUESS = 1.5  # the same of replicas that prefill
SEEN = {
    "given up": " in the part simulated before it was given up",
    "at best": " even where drafts or data-parallel ranks cost less than they do",
}
POLISH = 2  # equally dear options that are tried for more margin


class Ask(NamedTuple):
    """A candidate to try; `sample`: one replica will do; `first_tokens`: only as far as the first token."""

    candidate: Candidate
    sample: bool = True
    first_tokens: bool = False


Batch = tuple[Ask, ...]
Hunt = Generator[Batch, Sequence[Trial], None]


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
    incumbent: tuple[Option, int, Trial] | None = None
    found: list[tuple[Option, int, Trial]] = field(
        default_factory=list
    )  # every deployment that meets the SLO
    missed: list[tuple[Option, int, Trial]] = field(default_factory=list)
    open: list[Option] = field(default_factory=list)  # not settled yet
    pruned: list[Option] = field(default_factory=list)  # settled without a simulation
    outpaced: list[Option] = field(
        default_factory=list
    )  # pairs whose prefills alone are too slow, at any number
    done: bool = False

    @property
    def objective(self) -> float:
        """Of the incumbent; infinite without one."""
        if self.incumbent is None:
            return float("inf")
        option, replicas, trial = self.incumbent
        return trial.ratio if option.search.objective == "latency" else option.objective(replicas)

    @property
    def engines(self) -> int:
        """Engines, or pairs of them."""
        return len({_engine(option) for option in self.options})

    @property
    def engines_open(self) -> int:
        """Of these, not settled."""
        return 0 if self.done else len({_engine(option) for option in self.open})

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
        self.ceiling.offer(self)
        return True

    def retract(self) -> tuple[Option, int]:
        """The incumbent did not stand up to a full simulation: it, and the next best takes its place."""
        assert self.incumbent is not None
        option, replicas, _ = self.incumbent
        self.found = [entry for entry in self.found if entry[:2] != (option, replicas)]
        found, self.found, self.incumbent = self.found, [], None
        for entry in found:
            self.record(*entry)
        self.ceiling.offer(self)
        return option, replicas

    def settle(self, option: Option, replicas: int, trial: Trial) -> None:
        """This is the incumbent, whatever margin mere samples of equally dear ones promise."""
        self.incumbent = (option, replicas, trial)
        self.ceiling.offer(self)

    def forget(self) -> None:
        """Begin anew; what was simulated is not simulated again."""
        self.incumbent, self.done = None, False
        self.found, self.missed, self.open, self.pruned, self.outpaced = [], [], [], [], []
        self.ceiling.offers.pop(id(self), None)

    def rejections(self) -> list[Rejection]:
        """Why each engine, or pair of them, that is not among `found` is not an answer."""
        settled = {_engine(option) for option, _, _ in self.found}
        rejected = []
        for option, replicas, trial in self.missed:
            if _engine(option) not in settled:
                miss = describe_miss(trial)
                rejected.append(Rejection.of(option.at(replicas), "slo", miss, replicas=replicas))
                settled.add(_engine(option))
        for option in self.outpaced:
            if _engine(option) not in settled:
                late = (
                    "the first tokens alone are late with as many replicas that prefill as the limits allow"
                )
                rejected.append(Rejection.of(option.at(option.least), "slo", late, replicas=None))
                settled.add(_engine(option))
        for option in self.pruned:
            if _engine(option) not in settled:
                why = costlier(option, self.to_beat)
                rejected.append(
                    Rejection.of(option.at(option.least), why.kind, why.reason, replicas=option.least)
                )
                settled.add(_engine(option))
        for option in self.open:
            if _engine(option) not in settled:
                reason = "not simulated: the search ended before its turn"
                rejected.append(Rejection.of(option.at(option.least), "unresolved", reason, replicas=None))
                settled.add(_engine(option))
        return rejected


def _engine(option: Option) -> tuple[Pool, Pool | None, str]:
    return option.pool, option.prefill, option.router


def _key(value: float, option: Option, trial: Trial) -> tuple[float, float, float]:
    """Order of answers: the objective, then the published loss of quality, then the margin to the SLO."""
    loss = option.quality.worst_loss_fraction
    return (value, 1.0 if loss is None else loss, trial.ratio)


def describe_miss(trial: Trial) -> str:
    """Which level was missed by how much."""
    worst = max(trial.levels, key=lambda level: level.ratio)
    seen = SEEN.get(trial.seen, "")
    if worst.value_s is None:
        return f"{worst.slo}: {worst.good_fraction:.1%} of requests within, {worst.required_fraction:.1%} needed{seen}"
    return f"{worst.slo}: {worst.value_s * 1e3:,.0f} ms{seen}, {worst.ratio:.2f} times the limit"


def hunt(family: Family) -> Hunt:
    """Try candidates until nothing in the family can beat its incumbent."""
    family.open = list(family.options)
    if family.options[0].prefill is not None:
        yield from _apart(family)
    elif family.options[0].search.objective == "latency":
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


# prefill and decode apart


def _apart(family: Family) -> Hunt:
    """Every pair of a prefill and a decode engine that its bounds leave open, the most promising first."""
    pairs: dict[tuple[Pool, Pool | None, str], list[Option]] = {}
    for option in family.open:
        pairs.setdefault(_engine(option), []).append(option)
    fewest: dict[Pool, int] = {}
    latency = family.options[0].search.objective == "latency"
    for options in pairs.values():
        prefill = options[0].prefill
        assert prefill is not None
        left = [option for option in options if latency or option.most_below(family.to_beat)]
        if left and family.open_loop:
            if prefill not in fewest:
                fewest[prefill] = yield from _fewest_prefills(left)
            enough = [option for option in left if option.prefill_replicas >= fewest[prefill]]
            if not enough and len(left) == len(options):
                family.outpaced.append(options[0])
            left = enough
        if left and latency:
            yield from _balance(family, left)
        elif left:
            yield from _walk(family, left)
        family.pruned.append(options[0])
        family.open = [option for option in family.open if _engine(option) != _engine(options[0])]


def _fewest_prefills(options: Sequence[Option]) -> Generator[Batch, Sequence[Trial], int]:
    """The fewest replicas of a prefill engine whose first tokens alone are in time; 1 + the most where none are."""
    prefill = options[0].prefill
    assert prefill is not None
    low, high = options[0].prefill_replicas, options[-1].prefill_replicas + 1
    guess = min(round(low * PREFILL_GUESS), high - 1)
    while low < high:
        (trial,) = yield (Ask(Candidate(pool=prefill, replicas=guess), first_tokens=True),)
        low, high = (low, guess) if trial.met else (guess + 1, high)
        guess = (low + high) // 2
    return low


def _walk(family: Family, options: Sequence[Option]) -> Hunt:
    """From the fewest replicas that prefill on, each with the most that decode and still beat the incumbent."""
    for option in options:
        replicas = option.most_below(family.to_beat)
        if not replicas:
            return  # with more that prefill, even less so
        (trial,) = yield (Ask(option.at(replicas)),)
        family.record(option, replicas, trial)
        if trial.met:
            yield from _fewest_decodes(family, option, replicas)
        elif trial.decode_missed:
            return  # with more that prefill there are fewer that decode


def _fewest_decodes(family: Family, option: Option, high: int) -> Hunt:
    low = option.least
    while low < high:
        middle = (low + high) // 2
        (trial,) = yield (Ask(option.at(middle)),)
        family.record(option, middle, trial)
        low, high = (low, middle) if trial.met else (middle + 1, high)


def _balance(family: Family, options: Sequence[Option]) -> Hunt:
    """Least latency with all GPUs in use: more prefill replicas while TTFT is the worse part, fewer while TPOT is."""
    low, high = 0, len(options)
    while low < high:
        middle = (low + high) // 2
        option = options[middle]
        (trial,) = yield (Ask(option.at(option.most)),)
        family.record(option, option.most, trial)
        worst = max(trial.levels, key=lambda level: level.ratio)
        low, high = (low, middle) if worst.slo.startswith("tpot") else (middle + 1, high)


def _verify(family: Family) -> Hunt:
    """The incumbent in full; where a sample had flattered it, what it had put aside is tried again."""
    while family.incumbent is not None and family.incumbent[2].seen == "sample":
        option, replicas, _ = family.incumbent
        (trial,) = yield (Ask(option.at(replicas), sample=False),)
        family.retract()
        family.record(option, replicas, trial)
        if trial.met:
            family.settle(option, replicas, trial)
            return
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
