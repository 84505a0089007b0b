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
from typing import NamedTuple

from capacity.deployment import Pool
from capacity.planning.family import Family, engine_of
from capacity.planning.judging import Trial
from capacity.planning.option import Option
from capacity.planning.space import Candidate

GROWTH = 1.5  # of the replicas, from one guess that does not do to the next
TOGETHER = 2  # options of a family that are tried at a time
GUESS = 2.0  # replicas that are needed, over the bound: what the first guess assumes
PREFILL_GUESS = 1.5  # the same of replicas that prefill
POLISH = 2  # equally dear options that are tried for more margin


class Ask(NamedTuple):
    """A candidate to try; `sample`: one replica will do; `first_tokens`: only as far as the first token."""

    candidate: Candidate
    sample: bool = True
    first_tokens: bool = False


Batch = tuple[Ask, ...]
Hunt = Generator[Batch, Sequence[Trial], None]


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
    tried = {(option.pool, replicas) for option, replicas, _ in (*family.met, *family.missed)}
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
        pairs.setdefault(engine_of(option), []).append(option)
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
        family.open = [option for option in family.open if engine_of(option) != engine_of(options[0])]


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
    while family.incumbent is not None and family.incumbent.trial.seen == "sample":
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
