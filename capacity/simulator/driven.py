"""An engine as the clock of a deployment drives it: what `Cluster` and `EventLoop` call, whichever engine stands there.

A driven engine does nothing by itself: `key` is when `proceed` has to be called next, and until then nothing of it
changes that a router or another engine can see. At one instant, ends of steps come before arrivals and arrivals before
decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from capacity.simulator.client import NEVER
from capacity.simulator.kv_cache.pool import KvPool
from capacity.simulator.ledger import Ledger
from capacity.simulator.schedulers import Policy, Sequence
from capacity.simulator.transfer import Load

# keys order what happens at one instant: 4·time + one of these
SETTLE, ARRIVE, DECIDE = 0, 1, 2
NEVER_KEY = 4 * NEVER

Action = Callable[[int], None]


class DrivenEngine(Protocol):
    """One engine of several, `number` in the deployment. Instants are in picoseconds, `_key`s as above."""

    number: int
    key: int
    alive: bool
    draining: bool
    policy: Policy
    pool: KvPool
    ledger: Ledger
    sequences: dict[int, Sequence]  # requests inside
    new_sequence: Callable[[int, int], Sequence | None]

    @property
    def requests(self) -> list[int]:
        """Requests inside or on their way in, in order of arrival."""
        ...

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def kv_used_blocks(self) -> int: ...
    @property
    def stall(self) -> str:
        """Why nothing can proceed, where requests are left and nothing is due."""
        ...

    def deliver(self, at_ps: int, request: int, action: Action | None = None) -> None:
        """A request, or an action, reaches the engine at `at_ps`."""
        ...

    def proceed(self, horizon_ps: int, action_ps: int) -> None:
        """Do what is due at `key`. No request comes before `horizon_ps` and no action before `action_ps`, but in
        answer to this."""
        ...

    def proceed_until(self, limit_key: int, horizon_ps: int, action_ps: int) -> int:
        """Do all that is due before `limit_key`, where it moves no other engine; returns the key after that."""
        ...

    def catch_up(self, at_ps: int) -> None:
        """Bring the state to `at_ps`, as a sample or a request at that instant meets it."""
        ...

    def cancel(self, request: int, now_ps: int) -> None:
        """Abort a request that is inside; nothing, if it is not."""
        ...

    def want(self, load: Load, now_ps: int) -> None:
        """Load the KV of a request from another engine as soon as there are blocks for it."""
        ...

    def unload(self, load: Load) -> None:
        """The KV of a request no longer comes: give up its blocks, or its place in the queue for them."""
        ...

    def stop(self) -> None:
        """Nothing more happens here."""
        ...


class Owner(Protocol):
    """Receives the end of every request of a driven engine."""

    def finished(self, replica: DrivenEngine, sequence: Sequence, now_ps: int) -> None: ...
    def refused(self, replica: DrivenEngine, request: int, now_ps: int) -> None: ...
