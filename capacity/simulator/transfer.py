"""KV transfers over a link to an engine that has allocated blocks for them.

Loading works as in a vLLM KV connector: when the receiving engine schedules its next step, it allocates blocks for all
tokens of a transfer, in order of arrival and only if they fit; the request runs once the blocks are filled. If the
whole prompt is loaded, one token is computed again, because its output is sampled. Source: vLLM 0.33.0,
v1/core/sched/scheduler.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import simpy

from capacity.base.clock import LATEST_S
from capacity.base.errors import InvalidInput
from capacity.simulator.instants import ARRIVE, TIMER, call_at
from capacity.simulator.kv_cache.block_pool import NULL, BlockPool, BlockTable
from capacity.simulator.kv_cache.block_pool import Hit as BlockHit
from capacity.simulator.kv_cache.pool import Hit, PagedPool, Table
from capacity.step import PS_PER_S, picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """Link for KV transfers: rate, latency, and KV bytes of a request. An infinite rate means no payload time.

    KV has `bytes_per_token` per token, plus `window_bytes_per_token` for the last `window_tokens` (layers with a
    sliding window), plus `bytes_per_request` independent of the length (the state of linear attention).
    """

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0
    window_bytes_per_token: float = 0.0
    window_tokens: int = 0
    bytes_per_request: float = 0.0
    layers: int = 0  # sent one by one, each once it is computed; 0: sent together at the end

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0:
            raise InvalidInput(f"the KV transfer rate must be above 0 bytes/s, not {self.bytes_per_s}")
        if not 0 <= self.latency_s < math.inf:
            raise InvalidInput(
                f"the KV transfer latency must be finite and at least 0 s, not {self.latency_s}"
            )

    def payload_ps(self, tokens: int) -> int:
        """Return how long (ps) a transfer of `tokens` tokens occupies its ports."""
        windowed = self.window_bytes_per_token * min(tokens, self.window_tokens)
        payload_bytes = self.bytes_per_token * tokens + windowed + self.bytes_per_request
        return picoseconds(payload_bytes / self.bytes_per_s)

    def last_layer_ps(self, tokens: int) -> int:
        """Return the time (ps) to send the last layer, which cannot start before that layer is computed."""
        return -(-self.payload_ps(tokens) // max(self.layers, 1))


class Port:
    """One end of a link; it sends or receives one transfer at a time."""

    free_ps = 0


class Transfer:
    """A KV transfer that is active or waits for its ports; `end_ps` is its arrival time.

    `computed_ps`, for links that send layer by layer: times when the first and the last layer were computed. Sending
    starts at the first of these times, as if the receiver's blocks were allocated then.
    """

    begin_ps = end_ps = 0

    def __init__(self, tokens: int, ports: Sequence[Port], computed_ps: tuple[int, int] = (0, 0)) -> None:
        self.tokens = tokens
        self.ports = ports
        self.computed_ps = computed_ps


class Transfers:
    """All active transfers over one kind of link; begun = arrived + aborted + active at any time.

    A transfer occupies all its ports as soon as they are free, in the order of `begin`. An aborted transfer frees its
    ports at once for the transfers that wait. `on_arrival(transfer, time in ps)` is called for completed transfers.
    """

    def __init__(self, env: simpy.Environment, link: KvLink, on_arrival: Callable[[Any, int], None]) -> None:
        self.link = link
        self.begun = self.arrived = self.aborted = 0
        self._env = env
        self._on_arrival = on_arrival
        self._under_way: dict[Transfer, None] = {}
        self._latency_ps = picoseconds(link.latency_s)
        self._payload_ps = cache(link.payload_ps)

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def begin(self, transfer: Transfer, now_ps: int) -> int:
        """Reserve the ports for a transfer; return its expected arrival time (ps)."""
        self.begun += 1
        self._under_way[transfer] = None
        return self._reserve(transfer, now_ps)

    def abort(self, transfer: Transfer, now_ps: int) -> None:
        """Abort an active or waiting transfer; transfers that wait for its ports begin earlier."""
        del self._under_way[transfer]
        self.aborted += 1
        waiting = [other for other in self._under_way if other.begin_ps > now_ps]
        for port in {port: None for other in (transfer, *waiting) for port in other.ports}:
            port.free_ps = now_ps
        for other in self._under_way:  # active transfers keep their ports
            if other.begin_ps <= now_ps:
                for port in other.ports:
                    port.free_ps = max(port.free_ps, other.end_ps - self._latency_ps)
        for other in waiting:
            self._reserve(other, now_ps)

    def _reserve(self, transfer: Transfer, now_ps: int) -> int:
        link, ports, tokens = self.link, transfer.ports, transfer.tokens
        computed_ps, done_ps = transfer.computed_ps
        begin_ps = computed_ps if link.layers else now_ps
        for port in ports:
            if port.free_ps > begin_ps:
                begin_ps = port.free_ps
        sent_ps = begin_ps + self._payload_ps(tokens)
        if link.layers:
            sent_ps = max(sent_ps, done_ps + link.last_layer_ps(tokens))
        for port in ports:
            port.free_ps = sent_ps
        end_ps = max(sent_ps + self._latency_ps, now_ps)
        if end_ps > picoseconds(LATEST_S):
            raise InvalidInput(
                f"KV of {tokens} tokens arrives after {end_ps / PS_PER_S:.3g} s at {link.bytes_per_s:g} bytes/s, but "
                f"simulated time ends at {LATEST_S:g} s: increase --kv-transfer-bytes-per-s"
            )
        transfer.begin_ps, transfer.end_ps = begin_ps, end_ps
        call_at(self._env, end_ps, lambda _: self._end(transfer, end_ps), ARRIVE, TIMER)
        return end_ps

    def _end(self, transfer: Transfer, end_ps: int) -> None:
        if transfer.end_ps == end_ps and self._under_way.pop(transfer, self) is None:
            self.arrived += 1
            self._on_arrival(transfer, end_ps)


class LoadBlockPool(BlockPool):
    """Block pool whose requests may have blocks with loaded KV when they are admitted; preemption frees these blocks.

    Layers with windows keep only the loaded blocks that later tokens attend to.
    """

    def lookup(self, table: BlockTable, max_tokens: int) -> BlockHit:
        if not table.loaded:
            return super().lookup(table, max_tokens)
        return min(table.loaded, max_tokens), tuple([] for _ in self.windows)

    def grow(self, table: BlockTable, tokens: int, hit: BlockHit | None = None) -> None:
        super().grow(table, tokens, None if table.loaded else hit)

    def load(self, table: BlockTable, tokens: int) -> bool:
        """Allocate blocks for `tokens` tokens whose KV will be loaded; return False if not enough are free."""
        if not allocate_computed(self, table, tokens, super().lookup(table, tokens)):
            return False
        table.loaded = tokens
        return True

    def release(self, table: BlockTable) -> None:
        super().release(table)
        table.loaded = 0


def allocate_computed(pool: PagedPool, table: Table, tokens: int, hit: Hit) -> bool:
    """Allocate blocks for `tokens` tokens whose KV exists; `hit`: blocks that are already cached.

    Returns False if too few blocks are free. Layers with windows keep only the blocks that the next token attends to.
    """
    if not isinstance(pool, BlockPool):
        if pool.blocks_needed(table, tokens, hit) > pool.free_blocks:
            return False
        pool.grow(table, tokens, hit)
        return True
    required = -(-tokens // pool.block_size)
    behind = [
        0 if window is None else min(max(0, tokens - window) // pool.block_size, required)
        for window in pool.windows
    ]
    hits = [[NULL] * passed + list(cached[passed:]) for passed, cached in zip(behind, hit[1], strict=True)]
    taken = sum(
        required - len(held) + sum(b != NULL and pool.ref_counts[b] == 0 for b in held) for held in hits
    )
    if taken > pool.free_blocks:
        return False
    BlockPool.grow(pool, table, tokens, (tokens, tuple(hits)))
    table.passed = behind
    return True
