"""Routers that tell pools apart: by length, by where a cascade has come to, by the time that is expected."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from capacity.deployment.routing import Prompt, Router, Takes

APART = ("by-prompt-length", "by-request-length", "within-ttft")  # the routers that tell pools apart


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

    def pause(self, replica: int) -> None:
        super().pause(replica)
        self._pool_of[replica].ready.remove(replica)

    def resume(self, replica: int) -> None:
        super().resume(replica)
        if replica not in self._pool_of:  # nobody has told pools apart
            self.belongs(replica, Takes())
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


class WithinTtft(ByPromptLength):
    """The first pool that takes the request and is expected to bring its first token within `router_ttft_s`.

    Pools stand in the file's order (for the shortest requests first, where they have limits): with the cheapest first,
    the cheapest that keeps the limit. There the replica expected soonest; where no pool is in time, the soonest of
    all. What is expected is dead reckoning: when each replica has read all prompts that it was sent. Without forecasts
    the fewest outstanding decide. The idea without prices: llm-d's predicted latency-based routing, which learns its
    forecasts from traffic and takes all replicas to be alike (llm-d.ai/docs/dev/guides/predicted-latency-routing,
    read 2026-11-23).
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._read_s: dict[int, float] = {}  # when a replica has read all prompts that it was sent

    def _choose(self, prompt: Prompt) -> int:
        tokens, soonest = prompt.tokens, math.inf
        pool, chosen = self._pool_for(tokens), -1
        for each in self._pools:
            replica, expected_s = self._soonest(each, tokens)
            if expected_s < soonest:
                pool, chosen, soonest = each, replica, expected_s
            if replica >= 0 and expected_s <= self._limit_s(each):
                break
        if chosen < 0:  # every pool is full, or none takes so long a request
            chosen = self._least(self.requests, pool.ready, pool.turn)
        pool.turn = chosen + 1
        self._read_s[chosen] = self._ready_s(chosen) + tokens * self._token_s(chosen)
        return chosen

    def _soonest(self, pool: _Pool, tokens: int) -> tuple[int, float]:
        """The replica that is expected to bring a first token soonest, between equals whose turn it is; -1: none."""
        limit, most = pool.takes.up_to_tokens, pool.takes.up_to_requests
        found, soonest = -1, math.inf
        if limit is not None and tokens > limit:
            return found, soonest
        at = bisect_left(pool.ready, pool.turn)
        for replica in (*pool.ready[at:], *pool.ready[:at]):
            if most is None or self.requests[replica] < most:
                expected_s = self._expected_s(replica, tokens)
                if expected_s < soonest:
                    found, soonest = replica, expected_s
        return found, soonest

    def _expected_s(self, replica: int, tokens: int) -> float:
        forecast = self._pool_of[replica].takes.forecast
        if forecast is None:
            return float(self.requests[replica])
        return forecast.least_s + self._ready_s(replica) - self.now_s + tokens * self._token_s(replica)

    def _ready_s(self, replica: int) -> float:
        """When it begins to read a prompt that it is sent now."""
        return max(self._read_s.get(replica, 0.0), self.now_s) if self.requests[replica] else self.now_s

    def _token_s(self, replica: int) -> float:
        forecast = self._pool_of[replica].takes.forecast
        return (
            0.0 if forecast is None else forecast.prompt_token_s + self.requests[replica] * forecast.beside_s
        )

    def _limit_s(self, pool: _Pool) -> float:
        return math.inf if pool.takes.forecast is None else pool.takes.forecast.within_s
