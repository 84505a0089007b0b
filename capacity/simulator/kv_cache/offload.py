"""KV below the GPU: tiers of host memory, disk or network that keep blocks which the GPU may drop.

As vLLM's offloading connector keeps them: every full chunk of blocks is copied out once it is computed, so the first
tier holds what the GPU holds and more; the least recently used chunks make room, those in transfer excepted. A
request touches all its chunks, the deepest first, so that a prefix outlives what follows it. Chunks reach the second
tier from the first, and come back through it. Source: vLLM v1/kv_offload (LRU manager, tiering), 0.11 to 0.33; the
copies that LMCache makes differ in chunk size and in that a step waits for them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.simulator.kv_cache.content import Content
from capacity.step import picoseconds

UNKNOWN_PS = 1 << 62  # an instant not known yet, after all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier: chunks it holds (None: no limit), and the link to the tier above it, per direction.

    An infinite rate takes no time. Rates are of one GPU's share of a block.
    """

    name: str
    capacity_chunks: int | None
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.capacity_chunks is not None and self.capacity_chunks < 0:
            raise InvalidInput(
                f"the {self.name} tier holds {self.capacity_chunks} chunks: must be at least 0"
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
    """How an engine offloads: the tiers from near to far, bytes of a block on one GPU, blocks that move together.

    `synchronous`: the step that admits a request waits for its KV (LMCache); otherwise the request waits while others
    run.
    """

    tiers: tuple[Tier, ...]
    block_bytes: float
    chunk_blocks: int = 1
    synchronous: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.tiers) <= 2 or self.chunk_blocks < 1 or not self.block_bytes >= 0:
            raise InvalidInput(
                "KV offload needs one or two tiers, chunks of at least 1 block, and no negative bytes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """What a tier did: chunks written to it, dropped from it, read from it, and left in it; bytes are one GPU's.

    `refused` counts copies that were not made because nothing could be dropped for them.
    `hit_tokens` are those of prompts at first admission.
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
    """The chunks of one tier, least recently used first, and the two directions of the link that leads to it.

    Transfers of a direction pass one after the other.
    """

    def __init__(self, tier: Tier, chunk_bytes: float) -> None:
        self.tier = tier
        self.chunk_bytes = chunk_bytes
        # until when a chunk is being written, and until when it is in some transfer
        self._chunks: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._write_free_ps = self._read_free_ps = 0
        self.stored = self.evicted = self.loaded = self.refused = self.hit_tokens = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def has(self, key: Hashable, now_ps: int) -> bool:
        """Whether the chunk can be read now."""
        chunk = self._chunks.get(key)
        return chunk is not None and chunk[0] <= now_ps

    def touch(self, keys: Sequence[Hashable]) -> None:
        """These were used now, the first of them last."""
        chunks = self._chunks
        for key in reversed(keys):
            if key in chunks:
                chunks.move_to_end(key)

    def reserve(self, keys: Iterable[Hashable], now_ps: int) -> list[Hashable] | None:
        """Places for those of the chunks that are not here; None: nothing can be dropped for them, so none is taken."""
        chunks = self._chunks
        new = [key for key in keys if key not in chunks]
        capacity = self.tier.capacity_chunks
        if capacity is not None and len(chunks) + len(new) > capacity:
            excess = len(chunks) + len(new) - capacity
            dropped: list[Hashable] = []
            for key, (_, busy_ps) in chunks.items():
                if len(dropped) == excess:
                    break
                if busy_ps <= now_ps:
                    dropped.append(key)
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
        """Copy reserved chunks here from now on; returns when they have arrived."""
        self._write_free_ps = max(self._write_free_ps, now_ps) + self._payload_ps(len(keys))
        end_ps = self._write_free_ps + picoseconds(self.tier.latency_s)
        for key in keys:
            self._chunks[key] = (end_ps, end_ps)
        self.stored += len(keys)
        return end_ps

    def read(self, keys: Sequence[Hashable], now_ps: int) -> int:
        """Copy chunks to the tier above from now on; returns when they are there. None is dropped before."""
        self._read_free_ps = max(self._read_free_ps, now_ps) + self._payload_ps(len(keys))
        end_ps = self._read_free_ps + picoseconds(self.tier.latency_s)
        chunks = self._chunks
        for key in keys:
            if key in chunks:  # else it only passes through: there was no room to keep it
                ready_ps, busy_ps = chunks[key]
                chunks[key] = (ready_ps, max(busy_ps, end_ps))
        self.loaded += len(keys)
        return end_ps

    def arrive(self, keys: Sequence[Hashable], ready_ps: int, now_ps: int) -> None:
        """Chunks on their way up from the tier below, here at `ready_ps`: they stay, if there is room."""
        for key in self.reserve(keys, now_ps) or ():
            self._chunks[key] = (ready_ps, ready_ps)
            self.stored += 1

    def _payload_ps(self, chunks: int) -> int:
        return picoseconds(chunks * self.chunk_bytes / self.tier.bytes_per_s)

    def use(self) -> TierUse:
        return make_from(
            TierUse,
            self,
            name=self.tier.name,
            held=len(self),
            stored_bytes=self.stored * self.chunk_bytes,
            loaded_bytes=self.loaded * self.chunk_bytes,
        )


def added_up(uses: Iterable[TierUse]) -> tuple[TierUse, ...]:
    """Tiers of one name together, over ranks and replicas."""
    totals: dict[str, TierUse] = {}
    for use in uses:
        total = totals.get(use.name)
        totals[use.name] = (
            use
            if total is None
            else TierUse(name=use.name, **{key: getattr(total, key) + getattr(use, key) for key in _SUMS})
        )
    return tuple(totals.values())


_SUMS = tuple(name for name in TierUse.__slots__ if name != "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHit:
    """A request's chunks below the GPU, in order, each with the nearest tier that has it."""

    keys: tuple[Hashable, ...]
    tiers: tuple[int, ...]


class TierStack:
    """The tiers of one engine."""

    def __init__(self, offload: Offload, block_size: int) -> None:
        self.offload = offload
        self.chunk_tokens = block_size * offload.chunk_blocks
        chunk_bytes = offload.block_bytes * offload.chunk_blocks
        self.stores = tuple(TierStore(tier, chunk_bytes) for tier in offload.tiers)

    def keys(self, content: Content, tokens: int, first: int = 0) -> list[Hashable]:
        """Names of the full chunks of the first `tokens` tokens, from chunk number `first` on."""
        blocks = self.offload.chunk_blocks
        return [
            content.block_key((chunk + 1) * blocks - 1) for chunk in range(first, tokens // self.chunk_tokens)
        ]

    def find(self, keys: Sequence[Hashable], first: int, now_ps: int) -> TierHit:
        """The unbroken run of chunks from number `first` on that are below the GPU. Touches all of `keys`."""
        tiers: list[int] = []
        for store in self.stores:
            store.touch(keys)
        for key in keys[first:]:
            tier = next((i for i, store in enumerate(self.stores) if store.has(key, now_ps)), None)
            if tier is None:
                break
            tiers.append(tier)
        return TierHit(keys=tuple(keys[first : first + len(tiers)]), tiers=tuple(tiers))

    def load(self, hit: TierHit, now_ps: int) -> int:
        """Bring the chunks to the GPU, those of the further tier by way of the nearer; returns when all are there."""
        ready_ps = now_ps
        far = [key for key, tier in zip(hit.keys, hit.tiers, strict=True) if tier]
        if far:
            ready_ps = self.stores[1].read(far, now_ps)
            self.stores[0].arrive(far, ready_ps, now_ps)
        return self.stores[0].read(hit.keys, ready_ps)

    def reserve(self, keys: Sequence[Hashable], now_ps: int) -> list[Hashable] | None:
        """Places in the nearest tier for new chunks; see `TierStore.reserve`."""
        return self.stores[0].reserve(keys, now_ps)

    def store(self, keys: Sequence[Hashable], now_ps: int) -> None:
        """Copy reserved chunks out of the GPU, then from tier to tier downwards."""
        if not keys:
            return
        end_ps = self.stores[0].write(keys, now_ps)
        for store in self.stores[1:]:
            below = store.reserve(keys, now_ps)
            if below:
                store.write(below, end_ps)
