"""Which replica a request goes to. A router knows what a real one does: what it sent where, and what came back.

A new one is a class here and an entry in `ROUTERS`: `--router` then takes its name, and every list of routers has it.

It never knows how long an answer will be, nor an engine's state of this very moment; replicas are numbers, a
replica that comes back after a failure is a new one.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from capacity.base.errors import InvalidInput, UnknownName


class Prompt(NamedTuple):
    """What a router sees of a request. `keys` name the runs of blocks of its prompt that some other request has as
    well, `stops` where each ends, in blocks; `blocks` are the full blocks of the prompt. `asked_tokens`: the prompt
    and the output that the client asks for."""

    request: int
    tokens: int
    session: int | None = None
    keys: Sequence[int] = ()
    stops: Sequence[int] = ()
    blocks: int = 0
    asked_tokens: int = 0


class Takes(NamedTuple):
    """What the pool of a replica takes, by the routers that go by length: requests of `up_to_tokens` (None: any), and
    each replica `up_to_requests` at once, as long as another pool takes the rest. `pool` is its place in the file."""

    pool: int = 0
    up_to_tokens: int | None = None
    up_to_requests: int | None = None


class Router:
    """The account that every router keeps, and the choice that each makes by itself."""

    needs_sessions = False
    needs_prefixes = False

    def __init__(self, *, seed: int = 0) -> None:
        """`seed` is for routers that draw."""
        self.seed = seed
        self.ready: list[int] = []  # replicas that take requests, in order of number
        self.requests: list[int] = []  # outstanding, by replica
        self.prompt_tokens: list[int] = []  # of the outstanding requests, by replica

    def belongs(self, replica: int, takes: Takes) -> None:
        """Which pool a replica is of: told before it joins, for routers that tell pools apart."""

    def joined(self, replica: int) -> None:
        """A replica takes requests from now on."""
        while len(self.requests) <= replica:
            self.requests.append(0)
            self.prompt_tokens.append(0)
        insort(self.ready, replica)

    def gone(self, replica: int) -> None:
        """A replica takes no more requests."""
        self.ready.remove(replica)

    def pause(self, replica: int) -> None:
        """A replica takes no requests for now; `resume` lets it again."""
        self.ready.remove(replica)

    def resume(self, replica: int) -> None:
        insort(self.ready, replica)

    def send(self, prompt: Prompt) -> int:
        """The replica for a request, which is outstanding there from now on; at least one must be ready."""
        replica = self._choose(prompt)
        self.requests[replica] += 1
        self.prompt_tokens[replica] += prompt.tokens
        return replica

    def left(self, replica: int, prompt_tokens: int) -> None:
        """A request has ended, one way or the other."""
        self.requests[replica] -= 1
        self.prompt_tokens[replica] -= prompt_tokens

    def _choose(self, prompt: Prompt) -> int:
        raise NotImplementedError

    def _least(self, loads: list[int], ready: Sequence[int], turn: int) -> int:
        """The least loaded; between equals, whose turn it is."""
        if len(ready) == len(loads):
            least = min(loads)
            try:
                return loads.index(least, turn)
            except ValueError:
                return loads.index(least)
        of_ready = [loads[replica] for replica in ready]
        least = min(of_ready)
        try:
            return ready[of_ready.index(least, bisect_left(ready, turn))]
        except ValueError:
            return ready[of_ready.index(least)]


class RoundRobin(Router):
    """One after the other."""

    _turn = -1

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        ready = self.ready
        self._turn = next((replica for replica in ready if replica > self._turn), ready[0])
        return self._turn


class LeastOutstanding(Router):
    """The fewest requests outstanding."""

    _turn = 0

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        replica = self._least(self.requests, self.ready, self._turn)
        self._turn = replica + 1
        return replica


class LeastKv(Router):
    """The least KV cache spoken for: prompt tokens of the outstanding requests, as the router can count them."""

    _turn = 0

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        replica = self._least(self.prompt_tokens, self.ready, self._turn)
        self._turn = replica + 1
        return replica


class PrefixAware(LeastOutstanding):
    """The replica that was sent the longest part of this prompt before, unless loads have come apart.

    Least outstanding instead where the match is below `match_fraction` of the prompt, or where the most loaded
    replica has over `balance_requests` more requests than the least loaded and over `balance_ratio` times as many.
    The router remembers what it sent, `MOST_KEYS` runs of blocks, oldest forgotten first. Rule and defaults: SGLang
    model gateway, cache_aware policy (cache_threshold 0.3, balance_abs_threshold 64, balance_rel_threshold 1.5).
    """

    MOST_KEYS = 1 << 20
    needs_prefixes = True

    def __init__(
        self,
        *,
        seed: int = 0,
        match_fraction: float = 0.3,
        balance_requests: int = 64,
        balance_ratio: float = 1.5,
    ) -> None:
        super().__init__(seed=seed)
        self.match_fraction = match_fraction
        self.balance_requests = balance_requests
        self.balance_ratio = balance_ratio
        self._holders: dict[int, int] = {}  # replicas that were sent a run, as bits
        self._open = 0  # replicas that take requests, as bits
        self._sends_in_balance = 0  # so many more cannot make any replica exceed `balance_requests`

    def joined(self, replica: int) -> None:
        super().joined(replica)
        self._open |= 1 << replica

    def gone(self, replica: int) -> None:
        super().gone(replica)
        self._open &= ~(1 << replica)

    def pause(self, replica: int) -> None:
        super().pause(replica)
        self._open &= ~(1 << replica)

    def resume(self, replica: int) -> None:
        super().resume(replica)
        self._open |= 1 << replica

    def _choose(self, prompt: Prompt) -> int:
        _, _, _, keys, stops, blocks, _ = prompt
        self._sends_in_balance -= 1
        matching = self._longest_match(keys, stops, blocks) if keys else 0
        if not matching:
            replica = super()._choose(prompt)
        elif matching & (matching - 1) == 0:
            replica = matching.bit_length() - 1
        elif matching == self._open:
            replica = self._least(self.requests, self.ready, self._turn)
        else:
            replica = self._least(self.requests, _replicas(matching), self._turn)
        if keys and not (len(keys) == 1 and matching >> replica & 1):  # it was sent that one run before
            self._remember(keys, stops, blocks, replica)
        return replica

    def _longest_match(self, keys: Sequence[int], stops: Sequence[int], blocks: int) -> int:
        """The replicas that were sent the longest part of this prompt, as bits; 0: the loads shall decide."""
        known, holders, matching, matched = self._holders, self._open, 0, 0
        for key, stop in zip(keys, stops):
            holders &= known.get(key, 0)
            if not holders:
                break
            matching, matched = holders, stop
            if matched >= blocks:
                matched = blocks
                break
        if matched < self.match_fraction * blocks:
            return 0
        if self._sends_in_balance < 0 and not self._in_balance():
            return 0
        return matching

    def _in_balance(self) -> bool:
        """Whether loads have not come apart."""
        loads = self.requests
        self._sends_in_balance = self.balance_requests - max(loads)
        if self._sends_in_balance < 0:
            ready = self.ready
            if len(ready) != len(loads):
                loads = [loads[replica] for replica in ready]
            most, least = max(loads), min(loads)
            if most - least > self.balance_requests and most > self.balance_ratio * least:
                return False
        return True

    def _remember(self, keys: Sequence[int], stops: Sequence[int], blocks: int, replica: int) -> None:
        known, bit, start = self._holders, 1 << replica, 0
        for key, stop in zip(keys, stops):
            if start >= blocks:
                break
            holders = known.get(key, 0)
            if not holders & bit:
                known[key] = holders | bit
            start = stop
        if len(known) > self.MOST_KEYS:
            for key in [key for key, _ in zip(known, range(self.MOST_KEYS // 16))]:
                del known[key]


@lru_cache(maxsize=1 << 12)
def _replicas(bits: int) -> list[int]:
    """The replicas that stand in a number as bits, in order."""
    return [replica for replica in range(bits.bit_length()) if bits >> replica & 1]


class SessionSticky(LeastOutstanding):
    """A session stays where its first request went (least outstanding), for as long as that replica lives."""

    needs_sessions = True

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._homes: dict[int, int] = {}

    def _choose(self, prompt: Prompt) -> int:
        if prompt.session is None:
            return super()._choose(prompt)
        home = self._homes.get(prompt.session)
        if home is None or home not in self.ready:
            home = self._homes[prompt.session] = super()._choose(prompt)
        return home


class Drawn(Router):
    """Any, by chance."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._random = random.Random(seed)

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        return self.ready[self._random.randrange(len(self.ready))]


@dataclass(slots=True, eq=False)
class _Pool:
    """The replicas of one pool that take requests, in order of number, and whose turn it is between equals."""

    takes: Takes
    ready: list[int] = field(default_factory=list)
    turn: int = 0

    @property
    def order(self) -> tuple[float, int]:
        """Pools for short requests first, of equals those that stand first."""
        limit = self.takes.up_to_tokens
        return (math.inf if limit is None else limit, self.takes.pool)


class ByPromptLength(Router):
    """The first pool that takes prompts of this length (`route_up_to_tokens`); there the fewest outstanding.

    Where each replica of a pool has its `route_up_to_requests`, the next pool that takes the request, if one has
    room. What no pool takes goes to the one for the longest. Without limits pools stand in the file's order: with the
    cheapest first, this fills the cheap ones first.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._pools: list[_Pool] = []  # for the shortest requests first
        self._pool_of: dict[int, _Pool] = {}  # by replica

    def belongs(self, replica: int, takes: Takes) -> None:
        pool = next((each for each in self._pools if each.takes == takes), None)
        if pool is None:
            pool = _Pool(takes)
            self._pools = sorted([*self._pools, pool], key=lambda each: each.order)
        self._pool_of[replica] = pool

    def joined(self, replica: int) -> None:
        super().joined(replica)
        if replica not in self._pool_of:  # nobody has told pools apart
            self.belongs(replica, Takes())
        insort(self._pool_of[replica].ready, replica)

    def gone(self, replica: int) -> None:
        super().gone(replica)
        self._pool_of[replica].ready.remove(replica)

    def pause(self, replica: int) -> None:
        super().pause(replica)
        self._pool_of[replica].ready.remove(replica)

    def resume(self, replica: int) -> None:
        super().resume(replica)
        insort(self._pool_of[replica].ready, replica)

    def _choose(self, prompt: Prompt) -> int:
        pool = self._pool_asked(prompt)
        replica = self._least(self.requests, pool.ready, pool.turn)
        pool.turn = replica + 1
        return replica

    def _pool_asked(self, prompt: Prompt) -> _Pool:
        return self._pool_for(self._tokens(prompt))

    def _tokens(self, prompt: Prompt) -> int:
        return prompt.tokens

    def _pool_for(self, tokens: int) -> _Pool:
        first = longest = None
        for pool in self._pools:
            if not pool.ready:
                continue
            longest = pool
            limit, most = pool.takes.up_to_tokens, pool.takes.up_to_requests
            if limit is not None and tokens > limit:
                continue
            if most is None or min(self.requests[replica] for replica in pool.ready) < most:
                return pool
            first = first or pool
        chosen = first or longest
        assert chosen is not None, "a router is asked only where a replica is ready"
        return chosen


class ByRequestLength(ByPromptLength):
    """As by-prompt-length, by prompt and asked output together (max_tokens; where nobody says, what is generated)."""

    def _tokens(self, prompt: Prompt) -> int:
        return prompt.asked_tokens


class ByCascade(ByPromptLength):
    """The pool that a request has come to, one after another in the file's order; there the fewest outstanding.

    Whoever sends requests on says where each is (`stage_of`); else all are for the first pool.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.stage_of: Callable[[int], int] = lambda _: 0

    def has_ready(self, stage: int) -> bool:
        """Whether a replica of that pool takes requests."""
        return bool(self._pools[stage].ready)

    def _pool_asked(self, prompt: Prompt) -> _Pool:
        pool = self._pools[self.stage_of(prompt.request)]
        return pool if pool.ready else next(each for each in self._pools if each.ready)


ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "least-outstanding": LeastOutstanding,
    "least-kv": LeastKv,
    "prefix-aware": PrefixAware,
    "session-sticky": SessionSticky,
    "by-prompt-length": ByPromptLength,
    "by-request-length": ByRequestLength,
    "cascade": ByCascade,
    "random": Drawn,
}
BY_LENGTH = ("by-prompt-length", "by-request-length")  # the routers that tell pools apart


def make_router(name: str, *, has_sessions: bool = True, seed: int = 0) -> Router:
    """A router by name. Raises UnknownName, and InvalidInput where it needs sessions that the workload lacks."""
    if name not in ROUTERS:
        raise UnknownName("router", name, ROUTERS)
    router = ROUTERS[name](seed=seed)
    if router.needs_sessions and not has_sessions:
        raise InvalidInput(
            f"--router {name} needs sessions, and this workload has none; use least-outstanding"
        )
    return router
