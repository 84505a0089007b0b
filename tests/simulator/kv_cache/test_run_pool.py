"""Runs of blocks: the pool that keeps books of runs answers as the one that keeps books of blocks."""

from __future__ import annotations

from typing import Any

from block_pools import check_block_pool
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capacity.simulator.kv_cache.block_pool import BlockPool
from capacity.simulator.kv_cache.content import Content
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
