"""What every router is: the account that it keeps of replicas, and what it sees of requests and pools.

It knows what a real one does: what it sent where, and what came back. It never knows how long an answer will be, nor an
engine's state of this very moment; replicas are numbers, a replica that comes back after a failure is a new one.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple


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


class Forecast(NamedTuple):
    """What a router expects of an engine: a prompt's first token after `least_s`, and `prompt_token_s` for each prompt
    token before it and its own, `beside_s` more for each request that is outstanding there. The router's limit on the
    sum is `within_s`."""

    within_s: float
    least_s: float
    prompt_token_s: float
    beside_s: float = 0.0


class Takes(NamedTuple):
    """What the pool of a replica takes, by the routers that tell pools apart: requests of `up_to_tokens` (None: any),
    and each replica `up_to_requests` at once, as long as another pool takes the rest. `pool` is its place in the file,
    `forecast` of each of its engines."""

    pool: int = 0
    up_to_tokens: int | None = None
    up_to_requests: int | None = None
    forecast: Forecast | None = None


class Router:
    """The account that every router keeps, and the choice that each makes by itself."""

    needs_sessions = False
    needs_prefixes = False
    now_s = 0.0  # when the request comes that is to be sent: told before it

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
        self.resume(replica)

    def gone(self, replica: int) -> None:
        """A replica takes no more requests."""
        self.pause(replica)

    def pause(self, replica: int) -> None:
        """A replica takes no requests for now; `resume` lets it again."""
        self.ready.remove(replica)

    def resume(self, replica: int) -> None:
        """A replica takes requests, for the first time or again."""
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
