"""Routers, which select the replica of each request.

`routing` has the base class, `pool_routers` the routers that distinguish pools. To add a router, add a class and an
entry in `ROUTERS`; `--router` and its help then include the name. A router of another package is a plug-in.
"""

import random
from collections.abc import Sequence
from functools import lru_cache

from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.plugins import load_plugin, plugin_names
from capacity.deployment.pool_routers import ByCascade, ByPromptLength, ByRequestLength, WithinTtft
from capacity.deployment.routing import Prompt, Router


class RoundRobin(Router):
    """Router that sends each request to the next replica in turn."""

    _turn = -1

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        ready = self.ready
        self._turn = next((replica for replica in ready if replica > self._turn), ready[0])
        return self._turn


class LeastOutstanding(Router):
    """Router to the replica with the fewest outstanding requests."""

    _turn = 0

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        replica = self._least_loaded(self.requests, self.ready, self._turn)
        self._turn = replica + 1
        return replica


class LeastKv(Router):
    """Router to the replica with the fewest prompt tokens in outstanding requests, an estimate of its KV load."""

    _turn = 0

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        replica = self._least_loaded(self.prompt_tokens, self.ready, self._turn)
        self._turn = replica + 1
        return replica


class PrefixAware(LeastOutstanding):
    """Router to the replica that was sent the longest prefix of this prompt, unless loads are unbalanced.

    Sends to the replica with the fewest outstanding requests if the match is below `match_fraction` of the prompt, or
    if the most loaded replica has over `balance_requests` more requests than the least loaded and over `balance_ratio`
    times as many. The router remembers the last `MOST_KEYS` sequences of prompt blocks that it sent. Rule and defaults:
    SGLang model gateway, cache_aware policy (cache_threshold 0.3, balance_abs_threshold 64, balance_rel_threshold 1.5).
    """

    MOST_KEYS = 1 << 20
    needs_prefixes = True

    match_fraction = 0.3
    balance_ratio = 1.5

    def __init__(self, *, seed: int = 0, balance_requests: int = 64) -> None:
        super().__init__(seed=seed)
        self.balance_requests = balance_requests
        self._holders: dict[int, int] = {}  # replicas that were sent a run, as bits
        self._open = 0  # replicas that accept requests, as bits
        self._sends_in_balance = 0  # after this many more sends, no replica can exceed `balance_requests`

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
            replica = self._least_loaded(self.requests, self.ready, self._turn)
        else:
            replica = self._least_loaded(self.requests, _replicas(matching), self._turn)
        if keys and not (len(keys) == 1 and matching >> replica & 1):  # the replica already has this run
            self._remember(keys, stops, blocks, replica)
        return replica

    def _longest_match(self, keys: Sequence[int], stops: Sequence[int], blocks: int) -> int:
        """Return a bit mask of the replicas that were sent the longest prefix of this prompt; 0: route by load."""
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
    """Return the numbers of the replicas in a bit mask, ascending."""
    return [replica for replica in range(bits.bit_length()) if bits >> replica & 1]


class SessionSticky(LeastOutstanding):
    """Router that sends all requests of a session to one replica.

    This is the replica with the fewest outstanding requests when the session starts. Another replica is chosen if it is
    no longer ready.
    """

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


class RandomRouter(Router):
    """Router to a random replica."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._random = random.Random(seed)

    def _choose(self, prompt: Prompt) -> int:  # noqa: ARG002
        return self.ready[self._random.randrange(len(self.ready))]


ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "least-outstanding": LeastOutstanding,
    "least-kv": LeastKv,
    "prefix-aware": PrefixAware,
    "session-sticky": SessionSticky,
    "by-prompt-length": ByPromptLength,
    "by-request-length": ByRequestLength,
    "within-ttft": WithinTtft,
    "cascade": ByCascade,
    "random": RandomRouter,
}


def make_router(name: str, *, has_sessions: bool = True, seed: int = 0) -> Router:
    """Return a router by name. Raises UnknownName, and InvalidInput if it needs sessions and there are none."""
    kind = ROUTERS.get(name) or load_plugin("routers", name, "a subclass of Router", _is_router)
    if kind is None:
        raise UnknownName("router", name, (*ROUTERS, *plugin_names("routers")))
    router: Router = kind(seed=seed)
    if router.needs_sessions and not has_sessions:
        raise InvalidInput(
            f"--router {name} needs sessions, and this workload has none; use least-outstanding"
        )
    return router


def _is_router(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Router)
