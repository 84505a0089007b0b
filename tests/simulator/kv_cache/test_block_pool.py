"""The block pool: order of eviction, and blocks that a sliding window frees."""

from __future__ import annotations

import pytest

from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content


def test_evicted_uncached_first_then_oldest_tail_first() -> None:
    pool = BlockPool(4, 1)
    old = pool.table(Content("old"))
    pool.grow(old, 2)
    pool.cache(old, 2)
    pool.release(old)
    new = pool.table(Content("new"))
    pool.grow(new, 3)  # two blocks without content, then the deeper one of `old`
    assert pool.lookup(pool.table(Content("old")), 9)[0] == 1
    pool.grow(new, 4)
    assert pool.lookup(pool.table(Content("old")), 9)[0] == 0


@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_a_window_frees_what_no_token_looks_at(window: int) -> None:
    pool = BlockPool(40, 4, windows=(window,), max_model_len=100, in_flight_tokens=4)
    table = pool.table(Content("w"))
    for tokens in range(1, 41):
        pool.leave_window(table, tokens - 1)
        pool.grow(table, tokens)
        first_seen = max(0, (tokens - 1) - window + 1)
        assert pool.held_blocks(table) == -(-tokens // 4) - first_seen // 4
    pool.release(table)
    assert pool.free_blocks == 40


def test_blocks_that_a_window_leaves_are_evicted_latest_first() -> None:
    """vLLM frees them in reverse, so that the beginning of a chain outlives what hangs on it.

    Source: vLLM 0.33.0, `single_type_kv_cache_manager.py`, remove_skipped_blocks.
    """
    pool = BlockPool(4, 4, windows=(5,))
    first = pool.table(Content("first"))
    pool.grow(first, 16)
    pool.cache(first, 16)
    pool.leave_window(first, 16)  # the next token sees 12 to 16: blocks 0, 1 and 2 are behind
    assert pool.free_blocks == 3
    other = pool.table(Content("other"))
    for blocks, hit_tokens in ((1, 8), (2, 4), (3, 0)):
        pool.grow(other, 4 * blocks)
        assert pool.lookup(first, 12)[0] == hit_tokens


def test_released_blocks_are_evicted_tail_first_and_in_order_of_their_release() -> None:
    pool = BlockPool(4, 4)
    tables = [pool.table(Content(name)) for name in ("a", "b")]
    for table in tables:
        pool.grow(table, 8)
        pool.cache(table, 8)
    for table in tables:
        pool.release(table)
    other = pool.table(Content("other"))
    hits = []
    for blocks in range(1, 5):
        pool.grow(other, 4 * blocks)
        hits.append(tuple(pool.lookup(table, 8)[0] for table in tables))
    assert hits == [(4, 8), (0, 8), (0, 4), (0, 0)]
