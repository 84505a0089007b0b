"""KV offload: tiers of host memory, disk or network storage that keep blocks which the GPU may evict.

The model is vLLM's offloading connector. Every full chunk of blocks is copied to the first tier once it is computed, so
this tier contains all full chunks of the GPU and more. The least recently used chunks are evicted, except those in
transfer. A request touches all its chunks, the deepest first, so the end of a prefix is evicted before its start.
Chunks are copied to the second tier from the first one and are loaded through the first one. Source: vLLM v1/kv_offload
(LRU manager, tiering), 0.11 to 0.33. LMCache differs in chunk size, and its steps wait for the copies.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.simulator.kv_cache.content import Content
from capacity.step import picoseconds

UNKNOWN_PS = 1 << 62  # unknown instant, later than all known ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier: capacity in chunks (None: unlimited), rate and latency of its link to the nearer tier, per direction.

    A copy at an infinite rate takes no time. The rate applies to one GPU's share of a block.
    """

    name: str
    capacity_chunks: int | None
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.capacity_chunks is not None and self.capacity_chunks < 0:
            raise InvalidInput(
                f"the capacity of the {self.name} tier must be at least 0 chunks, not {self.capacity_chunks}"
            )
        if not self.bytes_per_s > 0:
            raise InvalidInput(
                f"the rate of the {self.name} tier must be above 0 bytes/s, not {self.bytes_per_s}"
            )
        if not 0 <= self.latency_s < math.inf:
            raise InvalidInput(
                f"the latency of the {self.name} tier must be finite and at least 0 s, not {self.latency_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Offload settings: tiers (nearest first), bytes of a KV block on one GPU, and blocks per chunk.

    `synchronous`: the step that admits a request waits until its KV is loaded (LMCache). Otherwise only the request
    waits.
    """

    tiers: tuple[Tier, ...]
    block_bytes: float
    chunk_blocks: int = 1
    synchronous: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.tiers) <= 2 or self.chunk_blocks < 1 or not self.block_bytes >= 0:
            raise InvalidInput(
                "KV offload needs 1 or 2 tiers, chunks of at least 1 block and block sizes of at least 0 bytes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """Statistics of one tier: chunks written, evicted, read and still `held`; bytes are per GPU.

    `refused` counts copies that were skipped because too few chunks could be evicted. `hit_tokens` are prompt tokens
    that the tier provided when requests were first admitted.
    """

    name: str
    stored: int
    evicted: int
    loaded: int
    held: int
    refused: int
    stored_bytes: float
    loaded_bytes: float
    hit_tokens: int


class TierStore:
    """Chunks of one tier in LRU order, and its link to the nearer tier, with one queue of transfers per direction."""

    def __init__(self, tier: Tier, chunk_bytes: float) -> None:
        self.tier = tier
        self.chunk_bytes = chunk_bytes
        # key -> instants at which the write of the chunk and its last transfer end
        self._chunks: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._write_free_ps = self._read_free_ps = 0
        self.stored = self.evicted = self.loaded = self.refused = self.hit_tokens = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def is_readable(self, key: Hashable, now_ps: int) -> bool:
        """Return whether the chunk is in the tier and completely written."""
        chunk = self._chunks.get(key)
        return chunk is not None and chunk[0] <= now_ps

    def touch(self, keys: Sequence[Hashable]) -> None:
        """Mark chunks as used now; the first of them becomes the most recently used."""
        chunks = self._chunks
        for key in reversed(keys):
            if key in chunks:
                chunks.move_to_end(key)

    def reserve(self, keys: Iterable[Hashable], now_ps: int) -> list[Hashable] | None:
        """Reserve space for the missing chunks; return their keys, or None if too few chunks can be evicted."""
        chunks = self._chunks
        new = [key for key in keys if key not in chunks]
        capacity = self.tier.capacity_chunks
        if capacity is not None and len(chunks) + len(new) > capacity:
            excess = len(chunks) + len(new) - capacity
            idle = (key for key, (_, busy_ps) in chunks.items() if busy_ps <= now_ps)
            dropped = list(islice(idle, excess))
            if len(dropped) < excess:
                self.refused += 1
                return None
            for key in dropped:
                del chunks[key]
            self.evicted += excess
        for key in new:
            chunks[key] = (UNKNOWN_PS, UNKNOWN_PS)
        return new

    def write(self, keys: Sequence[Hashable], now_ps: int) -> int:
        """Start to copy reserved chunks to this tier and return the time (ps) when they have arrived."""
        self._write_free_ps = max(self._write_free_ps, now_ps) + self._payload_ps(len(keys))
        end_ps = self._write_free_ps + picoseconds(self.tier.latency_s)
        for key in keys:
            self._chunks[key] = (end_ps, end_ps)
        self.stored += len(keys)
        return end_ps

    def read(self, keys: Sequence[Hashable], now_ps: int) -> int:
        """Start to copy chunks to the nearer tier; return their arrival time (ps). None of them is evicted before."""
        self._read_free_ps = max(self._read_free_ps, now_ps) + self._payload_ps(len(keys))
        end_ps = self._read_free_ps + picoseconds(self.tier.latency_s)
        chunks = self._chunks
        for key in keys:
            if key in chunks:  # else the tier had no space to keep it
                ready_ps, busy_ps = chunks[key]
                chunks[key] = (ready_ps, max(busy_ps, end_ps))
        self.loaded += len(keys)
        return end_ps

    def keep_arrivals(self, keys: Sequence[Hashable], ready_ps: int, now_ps: int) -> None:
        """Store chunks that are loaded from the farther tier and arrive at `ready_ps`, if there is space."""
        for key in self.reserve(keys, now_ps) or ():
            self._chunks[key] = (ready_ps, ready_ps)
            self.stored += 1

    def _payload_ps(self, chunks: int) -> int:
        return picoseconds(chunks * self.chunk_bytes / self.tier.bytes_per_s)

    def statistics(self) -> TierUse:
        return make_from(
            TierUse,
            self,
            name=self.tier.name,
            held=len(self),
            stored_bytes=self.stored * self.chunk_bytes,
            loaded_bytes=self.loaded * self.chunk_bytes,
        )


def sum_tier_use(uses: Iterable[TierUse]) -> tuple[TierUse, ...]:
    """Return statistics by tier name, summed over ranks and replicas."""
    by_name: dict[str, list[TierUse]] = {}
    for use in uses:
        by_name.setdefault(use.name, []).append(use)
    return tuple(
        TierUse(name=name, **{key: sum(getattr(use, key) for use in same) for key in _SUMMED_FIELDS})
        for name, same in by_name.items()
    )


_SUMMED_FIELDS = tuple(name for name in TierUse.__slots__ if name != "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHit:
    """Consecutive chunks of a request in the tiers below the GPU, each with the nearest tier that has it."""

    keys: tuple[Hashable, ...]
    tiers: tuple[int, ...]


class TierStack:
    """KV tiers below the GPU of one engine, the nearest first."""

    def __init__(self, offload: Offload, block_size: int) -> None:
        self.offload = offload
        self.chunk_tokens = block_size * offload.chunk_blocks
        chunk_bytes = offload.block_bytes * offload.chunk_blocks
        self.stores = tuple(TierStore(tier, chunk_bytes) for tier in offload.tiers)

    def chunk_keys(self, content: Content, tokens: int, first: int = 0) -> list[Hashable]:
        """Return the keys of the full chunks of the first `tokens` tokens, from chunk number `first` on."""
        blocks = self.offload.chunk_blocks
        return [
            content.block_key((chunk + 1) * blocks - 1) for chunk in range(first, tokens // self.chunk_tokens)
        ]

    def find(self, keys: Sequence[Hashable], first: int, now_ps: int) -> TierHit:
        """Return the chunks from number `first` up to the first missing one, with their tiers; touch all `keys`."""
        tiers: list[int] = []
        for store in self.stores:
            store.touch(keys)
        for key in keys[first:]:
            tier = next((i for i, store in enumerate(self.stores) if store.is_readable(key, now_ps)), None)
            if tier is None:
                break
            tiers.append(tier)
        return TierHit(keys=tuple(keys[first : first + len(tiers)]), tiers=tuple(tiers))

    def load(self, hit: TierHit, now_ps: int) -> int:
        """Load chunks to the GPU, those in the second tier through the first; return the arrival time (ps)."""
        ready_ps = now_ps
        far = [key for key, tier in zip(hit.keys, hit.tiers, strict=True) if tier]
        if far:
            ready_ps = self.stores[1].read(far, now_ps)
            self.stores[0].keep_arrivals(far, ready_ps, now_ps)
        return self.stores[0].read(hit.keys, ready_ps)

    def store(self, keys: Sequence[Hashable], now_ps: int) -> None:
        """Copy reserved chunks from the GPU to the first tier, and from there to the second tier if it has space."""
        if not keys:
            return
        end_ps = self.stores[0].write(keys, now_ps)
        for store in self.stores[1:]:
            below = store.reserve(keys, now_ps)
            if below:
                store.write(below, end_ps)
