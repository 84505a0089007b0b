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
