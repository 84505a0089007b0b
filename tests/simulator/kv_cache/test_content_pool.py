"""vLLM V0's pool: equal contents share one block."""

from __future__ import annotations

from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.content_pool import ContentPool


def test_a_content_is_stored_once_in_the_content_pool() -> None:
    pool = ContentPool(8, 4)
    tables = [pool.table(Content("x", ["a"], [2])) for _ in range(3)]
    for table in tables:
        pool.allocate(table, 8)
    assert pool.free_blocks == 6
    for table in tables:
        pool.release(table)
    assert pool.free_blocks == 8
