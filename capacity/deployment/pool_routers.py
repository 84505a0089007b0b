"""Routers that distinguish pools: by request length, by cascade stage, by expected TTFT."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from capacity.deployment.routing import PoolLimits, Prompt, Router

POOL_ROUTERS = ("by-prompt-length", "by-request-length", "within-ttft")  # routers that distinguish pools


@dataclass(slots=True, eq=False)
class _Pool:
    """A pool's ready replicas in ascending order; if several have the lowest load, the first from `turn` on is used."""

    takes: PoolLimits
    ready: list[int] = field(default_factory=list)
    turn: int = 0

    @property
    def order(self) -> tuple[float, int]:
        """Return the sort key of the pool: its length limit (no limit is last), then its position in the file."""
        limit = self.takes.up_to_tokens
        return (math.inf if limit is None else limit, self.takes.pool)


class ByPromptLength(Router):
    """Router to the first pool that accepts the prompt length, and there to its least loaded replica.

    A pool accepts prompts up to `route_up_to_tokens`. It is full if each of its replicas has `route_up_to_requests`
    requests; then the next pool that accepts the prompt is used. Prompts that no pool accepts go to the pool for the
    longest prompts. Without limits, pools follow the order in the file, so listing the cheapest first fills cheap
    pools first.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._pools: list[_Pool] = []  # sorted: shortest requests first
        self._pool_of: dict[int, _Pool] = {}  # by replica

    def assign_pool(self, replica: int, takes: PoolLimits) -> None:
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
        if replica not in self._pool_of:  # no pool was assigned
            self.assign_pool(replica, PoolLimits())
        insort(self._pool_of[replica].ready, replica)

    def _choose(self, prompt: Prompt) -> int:
        pool = self._choose_pool(prompt)
        replica = self._least_loaded(self.requests, pool.ready, pool.turn)
        pool.turn = replica + 1
        return replica

    def _choose_pool(self, prompt: Prompt) -> _Pool:
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
        assert chosen is not None, "a router needs a ready replica"
        return chosen


class ByRequestLength(ByPromptLength):
    """Router like `by-prompt-length`, but for prompt plus max_tokens (if the request sets none: prompt plus output)."""

    def _tokens(self, prompt: Prompt) -> int:
        return prompt.asked_tokens


class ByCascade(ByPromptLength):
    """Router to the pool of the request's cascade stage, and there to its least loaded replica.

    Pools have the order of the stages in the deployment file. The cascade sets the function `stage_of`, which returns a
    request's stage; by default, all go to the first pool.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.stage_of: Callable[[int], int] = lambda _: 0

    def has_ready(self, stage: int) -> bool:
        """Return whether a replica of this stage's pool accepts requests."""
        return bool(self._pools[stage].ready)

    def _choose_pool(self, prompt: Prompt) -> _Pool:
        pool = self._pools[self.stage_of(prompt.request)]
        return pool if pool.ready else next(each for each in self._pools if each.ready)


class WithinTtft(ByPromptLength):
    """Router to the first pool that accepts the request and whose expected TTFT is within `router_ttft_s`.

    Pools follow the order in the file (with length limits, shortest first), so listing the cheapest first selects the
    cheapest pool that meets the limit. In the pool, the replica with the lowest expected TTFT is used; if no pool meets
    the limit, the replica with the lowest expected TTFT of all pools is used. The expected TTFT includes the prefill of
    all prompts already sent to the replica. Without forecasts, the replica with the fewest outstanding requests is
    used. llm-d's predicted latency-based routing does the same without prices; it learns its forecasts from traffic and
    treats all replicas as identical (llm-d.ai/docs/dev/guides/predicted-latency-routing, read 2026-11-23).
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._read_s: dict[int, float] = {}  # time at which a replica has prefilled all prompts sent to it

    def _choose(self, prompt: Prompt) -> int:
        tokens, soonest = prompt.tokens, math.inf
        pool, chosen = self._pool_for(tokens), -1
        for each in self._pools:
            replica, expected_s = self._lowest_ttft_replica(each, tokens)
            if expected_s < soonest:
                pool, chosen, soonest = each, replica, expected_s
            if replica >= 0 and expected_s <= self._limit_s(each):
                break
        if chosen < 0:  # every pool is full, or the request is too long for all
            chosen = self._least_loaded(self.requests, pool.ready, pool.turn)
        pool.turn = chosen + 1
        self._read_s[chosen] = self._ready_s(chosen) + tokens * self._token_s(chosen)
        return chosen

    def _lowest_ttft_replica(self, pool: _Pool, tokens: int) -> tuple[int, float]:
        """Return the replica with the lowest expected TTFT, and that TTFT; (-1, infinity) if none accepts."""
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
        """Return the time in seconds at which the replica can start to prefill a prompt that is sent now."""
        return max(self._read_s.get(replica, 0.0), self.now_s) if self.requests[replica] else self.now_s

    def _token_s(self, replica: int) -> float:
        forecast = self._pool_of[replica].takes.forecast
        return (
            0.0
            if forecast is None
            else forecast.prompt_token_s + self.requests[replica] * forecast.per_request_s
        )

    def _limit_s(self, pool: _Pool) -> float:
        return math.inf if pool.takes.forecast is None else pool.takes.forecast.within_s
