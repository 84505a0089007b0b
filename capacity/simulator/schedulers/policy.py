"""What the engine loop asks of a scheduler, and what a scheduler may be able to do besides."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from itertools import takewhile
from typing import Protocol

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.offload import TierUse
from capacity.simulator.kv_cache.pool import KvPool, PagedPool
from capacity.simulator.schedulers.sequence import SchedulerLimits, Sequence, Speculation, Step


class Policy(Protocol):
    """A scheduling policy over a KV pool. To be subclassed: the defaults are those of one without further abilities.

    `schedule` turns the state into a step, `update` takes its output; neither knows clock, step times or records.
    """

    steps_in_flight: int
    aborts: bool = False  # `abort` can take a request out at any time
    reserves_to_end: bool = False  # no request starts unless its blocks to `last_slot` are free
    can_hold_prompts: bool = False  # while `holds_prompts` is set, no new prompt starts
    holds_prompts: bool = False

    @property
    def wake_ps(self) -> int | None:
        """After a schedule() that decided nothing: the instant at which it would."""
        return None

    @property
    def unfinished(self) -> int:
        """Requests that run or wait."""
        ...

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...

    def add(self, sequence: Sequence) -> bool:
        """Take a request in; False: it is turned away (a bounded queue is full)."""
        ...

    def place(self, sequence: Sequence) -> None:  # noqa: ARG002
        """Give a request whose KV is to come its data-parallel rank, where there are several."""
        return

    def add_loaded(self, sequence: Sequence) -> None:
        """Take in a request that holds blocks with its prompt's KV already."""
        self.add(sequence)

    def schedule(self, now_ps: int) -> Step: ...
    def update(self, step: Step) -> list[Sequence]: ...

    def abort(self, r: Sequence) -> None:
        """Take a request out, its client being gone: its blocks are free, its rows in flight yield nothing."""
        raise InvalidInput(f"{type(self).__name__} cannot abort request {r.id}")

    def last_slot(self, r: Sequence) -> int:
        """Tokens whose KV the request holds in the end: its last token never gets a place."""
        return r.max_known - 1

    @property
    def tier_use(self) -> tuple[TierUse, ...]:
        """What each tier of KV below the GPU did so far."""
        return ()

    @property
    def rank_requests(self) -> Items[int]:
        """Requests of each data-parallel rank; none where there are no ranks."""
        return ()


class QueuedPolicy(Policy):
    """A policy that keeps the requests that run, which hold KV, and those that wait, in order of arrival."""

    def __init__(
        self, limits: SchedulerLimits, pool: KvPool, *, speculation: Speculation | None = None
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.speculation = speculation
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def add(self, sequence: Sequence) -> bool:
        self.waiting.append(sequence)
        return True

    @property
    def unfinished(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)


def insert_loaded(waiting: deque[Sequence], sequence: Sequence, pool: PagedPool) -> None:
    """Before all that hold no blocks, behind those that do: the former could wait for its blocks for ever."""
    holding = takewhile(lambda r: pool.held_blocks(r.table) > 0, waiting)
    waiting.insert(sum(1 for _ in holding), sequence)
