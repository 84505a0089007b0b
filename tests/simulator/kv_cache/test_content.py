"""Keys of blocks name all that stands before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capacity.simulator.kv_cache.content import chain_blocks


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5))
def test_chained_keys_agree_exactly_on_the_shared_prefix(a: list[int], b: list[int], block_size: int) -> None:
    interned: dict[tuple[int, tuple[int, ...]], int] = {}
    keys_a, keys_b = chain_blocks(a, block_size, interned), chain_blocks(b, block_size, interned)
    shared = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    agree = sum(1 for x, y in zip(keys_a, keys_b) if x == y)
    assert agree == shared // block_size
