"""Base class of all routers, with the data that a router sees of requests, replicas and pools.

A router knows only what a real one knows: the requests that it sent and the responses. It does not know output lengths
in advance, or an engine's current state. Replicas are numbers; a replica gets a new number after a failure.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple


class Prompt(NamedTuple):
    """A request as a router sees it.

    `keys`: identifiers of the sequences of blocks that the prompt shares with others. `stops`: end of each sequence, in
    blocks. `blocks`: full blocks of the prompt. `asked_tokens`: the prompt plus the output that the client requests.
    """

    request: int
    tokens: int
    session: int | None = None
    keys: Sequence[int] = ()
    stops: Sequence[int] = ()
    blocks: int = 0
    asked_tokens: int = 0


class Forecast(NamedTuple):
    """Parameters of an engine's expected TTFT, in seconds.

    The expected TTFT is `least_s`, plus (`prompt_token_s` + `per_request_s` x outstanding requests) for each token of
    the prompt and of the prompts before it. `within_s`: the router's limit on the expected TTFT.
    """

    within_s: float
    least_s: float
    prompt_token_s: float
    per_request_s: float = 0.0


class PoolLimits(NamedTuple):
    """Limits on the requests that a replica's pool accepts, for routers that distinguish pools.

    `up_to_tokens`: tokens of the longest request (None: any). `up_to_requests`: maximum per replica, exceeded only if
    all pools are full. `pool`: position in the deployment file. `forecast`: parameters of the expected TTFT of the
    pool's engines.
    """

    pool: int = 0
    up_to_tokens: int | None = None
    up_to_requests: int | None = None
    forecast: Forecast | None = None


class Router:
    """Base class of routers: it tracks the replicas and their load; subclasses choose the replica of a request."""

    needs_sessions = False
    needs_prefixes = False
    now_s = 0.0  # arrival time of the next request; set before `send`

    def __init__(self, *, seed: int = 0) -> None:
        """Create a router; `seed` is used by random routers."""
        self.seed = seed
        self.ready: list[int] = []  # replicas that accept requests, in order of number
        self.requests: list[int] = []  # outstanding, by replica
        self.prompt_tokens: list[int] = []  # of the outstanding requests, by replica

    def assign_pool(self, replica: int, takes: PoolLimits) -> None:
        """Assign a replica to a pool before `add_replica`; used by routers that distinguish pools."""

    def add_replica(self, replica: int) -> None:
        """Add a replica that accepts requests from now on."""
        while len(self.requests) <= replica:
            self.requests.append(0)
            self.prompt_tokens.append(0)
        self.resume(replica)

    def remove_replica(self, replica: int) -> None:
        """Remove a replica; it accepts no more requests."""
        self.pause(replica)

    def pause(self, replica: int) -> None:
        """Stop sending requests to a replica until `resume`."""
        self.ready.remove(replica)

    def resume(self, replica: int) -> None:
        """Start or restart sending requests to a replica."""
        insort(self.ready, replica)

    def send(self, prompt: Prompt) -> int:
        """Choose the replica for a request and count the request as outstanding; a replica must be ready."""
        replica = self._choose(prompt)
        self.requests[replica] += 1
        self.prompt_tokens[replica] += prompt.tokens
        return replica

    def on_request_end(self, replica: int, prompt_tokens: int) -> None:
        """Record the end of a request, completed or not."""
        self.requests[replica] -= 1
        self.prompt_tokens[replica] -= prompt_tokens

    def _choose(self, prompt: Prompt) -> int:
        raise NotImplementedError

    def _least_loaded(self, loads: list[int], ready: Sequence[int], turn: int) -> int:
        """Return the ready replica with the lowest load; if several have it, the first one from number `turn` on."""
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
