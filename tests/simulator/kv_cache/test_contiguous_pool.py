"""KV in one piece a request: free memory can be in pieces too small."""

from __future__ import annotations

from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.contiguous_pool import ContiguousPool


def test_contiguous_memory_can_be_enough_and_yet_in_pieces() -> None:
    pool = ContiguousPool(6, 1, reserved_tokens=2)
    tables = [pool.table(Content(i)) for i in range(3)]
    for table in tables:
        pool.grow(table, 1)
    pool.release(tables[0])
    pool.release(tables[2])
    assert pool.free_blocks == 4
    assert pool.blocks_needed(pool.table(Content("wide")), 3) > pool.free_blocks
    pool.release(tables[1])
    assert pool.blocks_needed(pool.table(Content("wide")), 6) == 6
