"""Interface of the engines of a deployment, for the Python and the compiled engine loop.

The deployment delivers requests, the engines run up to a given time and report departures. The state of queues, KV and
outstanding work is always the current one. `capacity.simulator.instants` defines the order of simultaneous events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.kv_cache.offload import TierUse
from capacity.simulator.setup import EngineSetup
from capacity.simulator.step_work import StepWork

ENDLESS_PREEMPTION = "requests preempt each other without end: the KV cache is too small for them"


def stall_reason(num_waiting: int, num_blocks: int) -> str:
    """Return the message for a stalled engine: requests wait, none can be scheduled, and no event is due."""
    return (
        f"{num_waiting} requests wait and none can be scheduled: the first needs more KV blocks than the {num_blocks} "
        "of the engine, and the others wait behind it"
    )


class EngineState(NamedTuple):
    """Current state of one engine. `num_waiting` counts requests in the engine that are not in the running batch."""

    num_running: int
    num_waiting: int
    kv_used_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccount:
    """Totals of one engine. `stalled_by` is the reason if requests remain that cannot proceed."""

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
    lost_tokens: int
    num_blocks: int
    free_blocks: int
    now_ps: int
    stalled_by: str | None = None
    tier_use: tuple[TierUse, ...] = ()
    rank_requests: tuple[int, ...] = ()
    work: StepWork | None = None


class Reports(Protocol):
    """Receiver of the engines' reports; `at_ps` is the time of the reported event."""

    def on_request_end(self, number: int, request: int, at_ps: int) -> None:
        """A request ended with its last token, or the scheduler dropped it before its first token."""

    def on_refusal(self, number: int, request: int, at_ps: int) -> None:
        """A request was rejected on arrival."""

    def on_prefill(self, number: int, request: int, at_ps: int, *, kept: bool) -> None:
        """Report a request that a prefill engine finished; if `kept`, its KV stays until `release_kept`, else it is
        lost."""

    def load_begins(self, number: int, request: int, at_ps: int) -> int:
        """Report that blocks are allocated for KV from another engine; return the time (ps) when the KV arrives."""


class NullReports:
    """Ignores all reports."""

    def on_request_end(self, number: int, request: int, at_ps: int) -> None: ...
    def on_refusal(self, number: int, request: int, at_ps: int) -> None: ...
    def on_prefill(self, number: int, request: int, at_ps: int, *, kept: bool) -> None: ...
    def load_begins(self, number: int, request: int, at_ps: int) -> int:  # noqa: ARG002
        return at_ps


class Engines(Protocol):
    """Numbered engines that serve requests and send `Reports` in time order."""

    def rank_of(self, number: int, request: int) -> int:
        """Return the data-parallel rank that has a request's KV; 0 without ranks."""

    def add(self, setup: EngineSetup, now_ps: int) -> int:
        """Add an empty engine and return its number. Raises InvalidInput and UnknownName."""

    def feed(self, number: int, requests: Sequence[int], instants_ps: Sequence[int]) -> None:
        """Schedule requests that arrive at known times, in time order, instead of calling `deliver`. The engine writes
        their arrivals to the ledger and reports rejected requests with `on_refusal`."""

    def deliver(self, number: int, request: int, at_ps: int) -> bool:
        """Deliver a request whose arrival is in the ledger; return False, without a report, if it is rejected."""

    def cancel(self, number: int, request: int, at_ps: int) -> None:
        """Cancel a request whose client timed out. It leaves when the next step is scheduled; no end is recorded."""

    def want_load(self, number: int, request: int, tokens: int, at_ps: int) -> bool:
        """Queue a request whose KV another engine sends, until blocks are free; return False if it is rejected."""

    def on_kv_arrival(self, number: int, request: int, at_ps: int) -> None:
        """Let a request run after its KV has arrived."""

    def unload(self, number: int, request: int, at_ps: int) -> None:
        """Cancel the load of a request's KV: free its blocks, or remove it from the requests that wait for blocks."""

    def release_kept(self, number: int, request: int, at_ps: int) -> None:
        """Free the KV that a prefill engine kept for a request, after the KV was sent."""

    def stop(self, number: int) -> None:
        """Stop an engine; its requests and KV are lost."""

    def run(self) -> None:
        """Run until no events remain. Engine work that is due before an event is done and reported before it."""

    def report_at_once(self) -> None:
        """Report all later departures at the time when they occur, because the caller acts on them."""

    @property
    def busy(self) -> bool:
        """Whether any engine will act without another call, for example because of arrivals that `feed` scheduled."""

    def close(self) -> None:
        """Free the memory of the engines after the run; their state can no longer be read."""

    def state(self, number: int) -> EngineState: ...
    def account(self, number: int) -> EngineAccount: ...

    @property
    def gaps(self) -> GapCounter:
        """Gaps between token deliveries, of all engines together."""
