"""KV pools against plain models of what they should do."""

from __future__ import annotations

from typing import Any

import pytest
from block_pools import check_block_pool
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content, chained
from capacity.simulator.kv_cache.content_pool import ContentPool
from capacity.simulator.kv_cache.contiguous_pool import ContiguousPool
from capacity.simulator.kv_cache.radix import RadixCache
from capacity.simulator.kv_cache.run_pool import RunPool

BLOCKS = 14
BLOCK_SIZE = 4


# contents that share whole spans, parts of spans, and nothing; also spans that end within a request
SPANS: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
    ((), ()),
    (("a",), (2,)),
    (("a",), (4,)),
    (("a", "ab"), (4, 6)),
    (("a", "ac"), (4, 9)),
    (("d", "de", "def"), (1, 3, 8)),
    (("d",), (3,)),
]


class Pools(RuleBasedStateMachine):
    """`RunPool` answers as `BlockPool` does, whatever is done to both."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockPool(BLOCKS, BLOCK_SIZE)
        self.runs = RunPool(BLOCKS, BLOCK_SIZE)
        self.live: list[tuple[Any, Any, int]] = []
        self.count = 0

    @rule(kind=st.sampled_from(SPANS), tokens=st.integers(1, 44), part=st.integers(1, 44))
    def admit(self, kind: tuple[tuple[str, ...], tuple[int, ...]], tokens: int, part: int) -> None:
        self.count += 1
        content = Content((kind, self.count % 3), *kind)
        a, b = self.blocks.table(content), self.runs.table(content)
        hit_a, hit_b = self.blocks.lookup(a, tokens - 1), self.runs.lookup(b, tokens - 1)
        assert hit_a[0] == hit_b[0]
        end = min(tokens, hit_a[0] + part)
        needed = self.blocks.blocks_needed(a, end, hit_a)
        assert needed == self.runs.blocks_needed(b, end, hit_b)
        if needed > self.blocks.free_blocks or any(
            t[0].content.private == content.private for t in self.live
        ):
            return
        for pool, table, hit in ((self.blocks, a, hit_a), (self.runs, b, hit_b)):
            pool.grow(table, end, hit)  # type: ignore[attr-defined]
            pool.cache(table, end)  # type: ignore[attr-defined]
        self.live.append((a, b, end))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.integers(1, 9), known=st.booleans())
    def grow(self, data: st.DataObject, tokens: int, known: bool) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        a, b, end = self.live[index]
        needed = self.blocks.blocks_needed(a, end + tokens)
        assert needed == self.runs.blocks_needed(b, end + tokens)
        if needed > self.blocks.free_blocks:
            return
        self.blocks.grow(a, end + tokens)
        self.runs.grow(b, end + tokens)
        if known:
            self.blocks.cache(a, end + tokens)
            self.runs.cache(b, end + tokens)
        self.live[index] = (a, b, end + tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        a, b, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.blocks.release(a)
        self.runs.release(b)

    @invariant()
    def same_free_blocks(self) -> None:
        assert self.blocks.free_blocks == self.runs.free_blocks

    @invariant()
    def sound(self) -> None:
        check_block_pool(self.blocks, [a for a, _, _ in self.live])

    @invariant()
    def same_contents(self) -> None:
        for kind in SPANS:
            for private in range(3):
                content = Content((kind, private), *kind)
                ours = self.runs.lookup(self.runs.table(content), 60)
                assert ours[0] == self.blocks.lookup(self.blocks.table(content), 60)[0]

    def teardown(self) -> None:
        for a, b, _ in self.live:
            self.blocks.release(a)
            self.runs.release(b)
        assert self.blocks.free_blocks == self.runs.free_blocks == BLOCKS


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


class Radix(RuleBasedStateMachine):
    """The tree holds a prefix-closed set of page sequences; locks and sizes add up."""

    tokens = st.lists(st.integers(0, 2), min_size=0, max_size=12).map(tuple)

    def __init__(self) -> None:
        super().__init__()
        self.cache = RadixCache(2)
        self.inserted: list[tuple[int, ...]] = []
        self.locked: list[Any] = []

    def held(self) -> set[tuple[int, ...]]:
        """Every page-aligned prefix that the tree holds, by walking it."""
        found: set[tuple[int, ...]] = {()}

        def walk(node: Any, prefix: tuple[int, ...]) -> None:
            for child in node.children.values():
                for end in range(2, len(child.tokens) + 1, 2):
                    found.add(prefix + child.tokens[:end])
                walk(child, prefix + child.tokens)

        walk(self.cache.root, ())
        return found

    def longest(self, tokens: tuple[int, ...], held: set[tuple[int, ...]]) -> int:
        return max(n for n in range(0, len(tokens) + 1, 2) if tokens[:n] in held)

    @rule(tokens=tokens)
    def insert(self, tokens: tuple[int, ...]) -> None:
        held = self.held()
        assert self.cache.insert(tokens) == self.longest(tokens, held)
        whole = tokens[: len(tokens) // 2 * 2]
        assert self.held() == held | {whole[:n] for n in range(0, len(whole) + 1, 2)}

    @rule(tokens=tokens)
    def match(self, tokens: tuple[int, ...]) -> None:
        held = self.held()
        assert self.cache.match(tokens)[0] == self.longest(tokens, held)
        assert self.held() == held

    @rule(tokens=tokens)
    def lock(self, tokens: tuple[int, ...]) -> None:
        node = self.cache.match(tokens)[1]
        self.cache.lock(node)
        self.locked.append(node)

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        self.cache.unlock(self.locked.pop(data.draw(st.integers(0, len(self.locked) - 1))))

    @rule(tokens=st.integers(1, 20))
    def evict(self, tokens: int) -> None:
        before, free = self.cache.total_tokens, self.cache.evictable_tokens
        evicted = self.cache.evict(tokens)
        assert evicted == before - self.cache.total_tokens
        assert evicted >= min(tokens, free)

    @invariant()
    def sizes_add_up(self) -> None:
        nodes = list(self.cache.nodes())
        assert self.cache.total_tokens == sum(len(n.tokens) for n in nodes)
        assert self.cache.protected_tokens == sum(len(n.tokens) for n in nodes if n.locks)
        assert all(n.parent is self.cache.root or n.parent.locks >= n.locks for n in nodes)  # type: ignore[union-attr]
        assert all(len(n.tokens) % 2 == 0 and n.tokens for n in nodes)


TestRadix = Radix.TestCase
TestRadix.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5))
def test_chained_keys_agree_exactly_on_the_shared_prefix(a: list[int], b: list[int], block_size: int) -> None:
    interned: dict[tuple[int, tuple[int, ...]], int] = {}
    keys_a, keys_b = chained(a, block_size, interned), chained(b, block_size, interned)
    shared = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    agree = sum(1 for x, y in zip(keys_a, keys_b) if x == y)
    assert agree == shared // block_size


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


def test_a_content_is_stored_once_in_the_content_pool() -> None:
    pool = ContentPool(8, 4)
    tables = [pool.table(Content("x", ["a"], [2])) for _ in range(3)]
    for table in tables:
        pool.allocate(table, 8)
    assert pool.free_blocks == 6
    for table in tables:
        pool.release(table)
    assert pool.free_blocks == 8


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
