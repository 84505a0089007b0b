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


def test_a_fork_holds_the_same_blocks_until_it_writes() -> None:
    """Six tokens in blocks of four: two for all. Who writes the seventh copies the second, but the last holder."""
    pool = ContentPool(8, 4, prefix_caching=False)
    first, second, third = (pool.table(Content(name)) for name in "abc")
    pool.allocate(first, 6)
    pool.fork(second, first)
    pool.fork(third, first)
    assert pool.free_blocks == 6
    for table, free in ((second, 5), (first, 4), (third, 4)):
        pool.append(table, 7)
        assert pool.free_blocks == free
    assert len({id(table.blocks[0]) for table in (first, second, third)}) == 1
    assert len({id(table.blocks[1]) for table in (first, second, third)}) == 3
    for free, table in ((5, first), (6, second), (8, third)):
        pool.release(table)
        assert pool.free_blocks == free
