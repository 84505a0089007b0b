"""What must hold of a block pool at every moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capacity.simulator.kv_cache.block_pool import NULL, BlockPool


def check_block_pool(pool: BlockPool, tables: Sequence[Any]) -> None:
    """Every invariant of the allocator, by an independent walk."""
    holders = [0] * pool.num_blocks
    for table in tables:
        for blocks in table.blocks:
            for block in blocks:
                if block != NULL:
                    holders[block] += 1
    assert holders == pool.ref_counts
    free = [*pool._empty, *pool._cached_free]
    assert len(free) == len(set(free)) == pool.free_blocks
    assert all(pool.ref_counts[block] == 0 for block in free)
    assert sum(1 for count in pool.ref_counts if count) + pool.free_blocks == pool.num_blocks
    for key, found in pool._cached.items():
        copies = found if isinstance(found, dict) else [found]
        assert copies
        assert all(pool._key[block] == key for block in copies)
    assert all(pool._key[block] is None for block in pool._empty)
