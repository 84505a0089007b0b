"""The engines of a deployment, whichever way they run: readable, every step an event, or compiled.

Requests go in, the engines advance to an instant, and whatever leaves is reported; they tell their queues, KV and
outstanding work as of now. What happens first at one instant: see `capacity.simulator.instants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.kv_cache.offload import TierUse
from capacity.simulator.setup import EngineSetup
from capacity.simulator.step_work import StepWork

ENDLESS = "requests preempt each other without end: the KV cache is too small for them"


def stall_reason(num_waiting: int, num_blocks: int) -> str:
    """Why nothing can proceed, where requests are left and nothing is due."""
    return (
        f"{num_waiting} requests wait and none can be scheduled: the first needs more KV blocks than the {num_blocks} "
        "there are, and no request behind it is tried"
    )


class EngineState(NamedTuple):
    """One engine as of now. `num_waiting` requests are inside and hold no place in the batch."""

    num_running: int
    num_waiting: int
    kv_used_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccount:
    """What one engine did: running sums. `stalled_by` says why nothing can proceed, where requests are left in it."""

    steps: int
    rows: int
    busy_ps: int
    rejected: int
    preemptions: int
    completed: int
    kv_block_ps: int
    kv_busy_ps: int
    kv_peak_blocks: int
    hit_tokens: int
    queried_tokens: int
    num_blocks: int
    free_blocks: int
    now_ps: int
    stalled_by: str | None = None
    tier_use: tuple[TierUse, ...] = ()
    rank_requests: tuple[int, ...] = ()
    work: StepWork | None = None


class Reports(Protocol):
    """Who stands before the engines, and hears what leaves them. Instants are when it happens."""

    def on_request_end(self, number: int, request: int, at_ps: int) -> None:
        """A request has ended, with its last token or dropped without one."""
        ...

    def on_refusal(self, number: int, request: int, at_ps: int) -> None:
        """A request was turned away as it came."""
        ...

    def on_prefill(self, number: int, request: int, at_ps: int, *, kept: bool) -> None:
        """A prefill engine is done with a request: its KV stays until `release_kept`, or was gone already."""
        ...

    def load_begins(self, number: int, request: int, at_ps: int) -> int:
        """There are blocks for the KV that a request waits for; returns when it will be there."""
        ...


class Nobody:
    """Hears reports and does nothing about them."""

    def on_request_end(self, number: int, request: int, at_ps: int) -> None: ...
    def on_refusal(self, number: int, request: int, at_ps: int) -> None: ...
    def on_prefill(self, number: int, request: int, at_ps: int, *, kept: bool) -> None: ...
    def load_begins(self, number: int, request: int, at_ps: int) -> int:  # noqa: ARG002
        return at_ps


class Engines(Protocol):
    """Numbered engines, to which requests go. What leaves is told to `Reports`, in order of time."""

    def rank_of(self, number: int, request: int) -> int:
        """The data-parallel rank that has a request's KV; 0 where there are none."""
        ...

    def add(self, setup: EngineSetup, now_ps: int) -> int:
        """A new engine, empty; its number. Raises InvalidInput and UnknownName."""
        ...

    def feed(self, number: int, requests: Sequence[int], instants_ps: Sequence[int]) -> None:
        """Requests that come by themselves, in order of time, whatever happens: nobody has to deliver them, and their
        arrivals are written into the ledger. Those that are turned away are reported as refused."""
        ...

    def deliver(self, number: int, request: int, at_ps: int) -> bool:
        """A request, whose arrival is in the ledger, comes now; False: it is turned away (without a report)."""
        ...

    def cancel(self, number: int, request: int, at_ps: int) -> None:
        """Its client is gone: its end is not recorded from now on; out it goes when the engine next decides."""
        ...

    def want_load(self, number: int, request: int, tokens: int, at_ps: int) -> bool:
        """A request whose KV comes from elsewhere: loaded as soon as there are blocks. False: it is turned away."""
        ...

    def on_kv_arrival(self, number: int, request: int, at_ps: int) -> None:
        """The KV of a request has come."""
        ...

    def unload(self, number: int, request: int, at_ps: int) -> None:
        """The KV of a request no longer comes: give up its blocks, or its place in the queue for them."""
        ...

    def release_kept(self, number: int, request: int, at_ps: int) -> None:
        """The KV that a prefill engine kept has been sent."""
        ...

    def stop(self, number: int) -> None:
        """The engine is gone, with all it holds."""
        ...

    def run(self) -> None:
        """Run the clock until nobody has anything to do. Whatever is due before an event has happened when that comes,
        and was reported."""
        ...

    def report_at_once(self) -> None:
        """From now on somebody acts on what leaves at its very instant."""
        ...

    @property
    def busy(self) -> bool:
        """Whether any engine will do something by itself, requests that were fed to it included."""
        ...

    def close(self) -> None:
        """The run is over, and all that is to be known was asked: their memory may go."""
        ...

    def state(self, number: int) -> EngineState: ...
    def account(self, number: int) -> EngineAccount: ...

    @property
    def gaps(self) -> GapCounter:
        """Between deliveries, of all engines together."""
        ...
