"""Base classes of scheduling policies, as the engine loop calls them."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import takewhile
from typing import Protocol

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.offload import TierUse
from capacity.simulator.kv_cache.pool import KvPool, PagedPool
from capacity.simulator.schedulers.sequence import SchedulerLimits, Sequence, Speculation, Step


class Policy(Protocol):
    """Base class of scheduling policies over a KV pool. Its defaults are those of a policy without optional abilities,
    such as data-parallel ranks.

    `schedule` returns the next step for the current state, and `update` applies the step's output. Neither uses the
    clock, step times or records.
    """

    steps_in_flight: int
    empty_steps: int = 0  # most steps without rows that one decision adds to those in flight
    staggers: bool = False  # a decode waits for as many calls of `schedule` as there are pipeline stages
    aborts: bool = False  # `abort` can remove a request at any time
    reserves_to_end: bool = False  # a request starts only if its blocks up to `last_slot` are free
    can_hold_prompts: bool = False  # while `holds_prompts` is set, no new prompt starts
    holds_prompts: bool = False
    own_pool: Callable[..., KvPool] | None = (
        None  # builds the KV pool of a policy that does not use the simulator's
    )

    @property
    def wake_ps(self) -> int | None:
        """Time (ps) at which to call `schedule()` again after an empty step; None: not before another event."""
        return None

    @property
    def unfinished(self) -> int: ...

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...

    def add(self, sequence: Sequence) -> bool:
        """Add a request; return False if it is rejected (a bounded queue is full)."""
        ...

    def assign_rank(self, sequence: Sequence) -> None:  # noqa: ARG002
        """Choose the data-parallel rank, if there are several, of a request whose KV will be loaded."""
        return

    def add_loaded(self, sequence: Sequence) -> None:
        """Add a request whose blocks already contain the KV of its prompt."""
        self.add(sequence)

    def schedule(self, now_ps: int) -> Step: ...
    def update(self, step: Step) -> list[Sequence]: ...

    def abort(self, r: Sequence) -> None:
        """Remove a request whose client has left: free its blocks and discard its rows in flight."""
        raise InvalidInput(f"{type(self).__name__} cannot abort request {r.id}")

    def last_slot(self, r: Sequence) -> int:
        """Return for how many tokens a request stores KV at its maximum length: for all except the last token."""
        return r.max_known - 1

    @property
    def tier_use(self) -> tuple[TierUse, ...]:
        """Statistics of each KV tier below the GPU."""
        return ()

    @property
    def rank_requests(self) -> Items[int]:
        """Number of requests assigned to each data-parallel rank; empty without ranks."""
        return ()


class QueuedPolicy(Policy):
    """Policy with running requests, which hold KV, and waiting requests in order of arrival."""

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
        return len(self.running) + self.num_waiting

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)


def watermark_blocks(watermark: float, num_blocks: int) -> int:
    """Return how many of `num_blocks` usable blocks the watermark keeps free; vLLM counts its null block as well."""
    return int(watermark * (num_blocks + 1))


def insert_loaded(waiting: deque[Sequence], sequence: Sequence, pool: PagedPool) -> None:
    """Insert a request with loaded KV ahead of requests without blocks, which might wait forever for its blocks."""
    holding = takewhile(lambda r: pool.held_blocks(r.table) > 0, waiting)
    waiting.insert(sum(1 for _ in holding), sequence)
