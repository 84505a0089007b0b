"""Paged KV cache of vLLM V0, which stores each content once: full blocks of equal content are one block.

A block counts as cached only after a step that allocated it was scheduled (`mark_computed`). The order of reuse is:
free blocks without content, then the least recently accessed blocks, and among these the deepest in their chain.
Source: vLLM 0.8.5, `core/block/prefix_caching_block.py` and `core/evictor.py`.
"""

import heapq
from bisect import bisect_left
from collections.abc import Hashable

from capacity.simulator.kv_cache.content import Content


class ContentBlock:
    """One physical block: `key` identifies its content once it is full; `depth` is its position in the chain."""

    __slots__ = ("accessed", "computed", "depth", "key", "references")

    def __init__(self) -> None:
        self.key: Hashable | None = None
        self.references = 1
        self.computed = False
        self.accessed = -1
        self.depth = 0


class ContentTable:
    """Blocks of one request, and the prefix hit found at the first attempt to admit it."""

    __slots__ = ("accessed", "blocks", "content", "remembered_hit")

    def __init__(self, content: Content) -> None:
        self.content = content
        self.blocks: list[ContentBlock] = []
        self.accessed = -1
        self.remembered_hit: int | None = None


class ContentPool:
    """Pool of `num_blocks` blocks of `block_size` tokens in which full blocks of equal content are one block."""

    windows: tuple[int | None, ...] = (None,)

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._empty = num_blocks
        self._by_key: dict[Hashable, ContentBlock] = {}
        self._evictable = 0
        self._eviction: list[tuple[int, int, int, ContentBlock]] = []  # stale entries are skipped when popped
        self._pushed = 0
        self._touched: list[ContentBlock] = []

    @property
    def free_blocks(self) -> int:
        return self._empty + self._evictable

    def table(self, content: Content) -> ContentTable:
        return ContentTable(content)

    def cached_tokens(self, table: ContentTable, tokens: int) -> int:
        """Return how many of the first `tokens` tokens are cached; later calls repeat the first result."""
        if not self.prefix_caching:
            return 0
        if table.remembered_hit is None:
            full = tokens // self.block_size
            missing = bisect_left(range(full), True, key=lambda index: not self._is_cached(table, index))
            table.remembered_hit = missing * self.block_size
        return table.remembered_hit

    def _is_cached(self, table: ContentTable, index: int) -> bool:
        block = self._by_key.get(table.content.block_key(index))
        return block is not None and (block.references == 0 or block.computed)

    def allocate(self, table: ContentTable, tokens: int) -> None:
        """Allocate blocks for a prompt of `tokens` tokens: shared blocks where the content exists, else new ones."""
        full = tokens // self.block_size
        for index in range(full):
            key = table.content.block_key(index)
            known = self._by_key.get(key) if self.prefix_caching else None
            if known is not None:
                self._add_reference(known)
                table.blocks.append(known)
            else:
                block = self._allocate_block()
                table.blocks.append(block)
                self._fill(table, block, index)
        if tokens % self.block_size:
            table.blocks.append(self._allocate_block())

    def fork(self, table: ContentTable, other: ContentTable) -> None:
        """Share the blocks of table `other` with an empty table; a block is copied before the table writes to it."""
        for block in other.blocks:
            block.references += 1
        table.blocks.extend(other.blocks)

    def append(self, table: ContentTable, tokens: int) -> None:
        """Allocate a slot for token number `tokens`; if a block becomes full and an equal one exists, use that one.

        A shared block is copied before it is written to, so one free block is always enough.
        """
        if (tokens - 1) % self.block_size == 0:
            table.blocks.append(self._allocate_block())
        elif table.blocks[-1].references > 1:
            table.blocks[-1].references -= 1
            table.blocks[-1] = self._allocate_block()
        if tokens % self.block_size == 0:
            self._fill(table, table.blocks[-1], tokens // self.block_size - 1)

    def _fill(self, table: ContentTable, block: ContentBlock, index: int) -> None:
        if not self.prefix_caching:
            return
        key = table.content.block_key(index)
        known = self._by_key.get(key)
        if known is not None:
            self._empty += 1
            self._add_reference(known)
            table.blocks[index] = known
            return
        block.key = key
        block.depth = index
        self._by_key[key] = block
        self._touched.append(block)

    def _add_reference(self, block: ContentBlock) -> None:
        if block.references == 0:
            self._evictable -= 1
            block.computed = True
        block.references += 1

    def _allocate_block(self) -> ContentBlock:
        if self._empty:
            self._empty -= 1
            return ContentBlock()
        while True:
            accessed, _, _, block = heapq.heappop(self._eviction)
            if block.references == 0 and block.accessed == accessed and self._by_key.get(block.key) is block:
                break
        self._evictable -= 1
        del self._by_key[block.key]
        return ContentBlock()

    def release(self, table: ContentTable) -> None:
        """Free all blocks of a request. Blocks with content remain available for prefix hits until they are reused."""
        for block in table.blocks:
            block.accessed = table.accessed
        for block in table.blocks:
            block.references -= 1
            if block.references:
                continue
            if block.key is None:
                self._empty += 1
                continue
            self._evictable += 1
            self._pushed += 1
            heapq.heappush(self._eviction, (block.accessed, -block.depth, self._pushed, block))
        table.blocks.clear()
        table.remembered_hit = None

    def mark_computed(self) -> None:
        """Mark new blocks as computed, after the step that allocated them was scheduled."""
        for block in self._touched:
            block.computed = True
        self._touched.clear()
