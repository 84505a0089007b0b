"""Paged KV cache of vLLM V1, simulated block by block. Every faster pool is tested against it.

There are two kinds of free blocks. Blocks without content are interchangeable. Cached blocks keep their content until
they are reused, the least recently freed first. A finished request frees its last block first, so the cached prefix is
evicted from its end. Source: vLLM 0.33.0, `v1/core/block_pool.py` and `single_type_kv_cache_manager.py`, checked
against schedules recorded from vLLM.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable

from capacity.simulator.kv_cache.content import Content

Hit = tuple[int, tuple[list[int], ...]]  # tokens, and the cached blocks per group (NULL where not needed)

NULL = -1  # placeholder in a block table for a block that the sliding window has passed


class BlockTable:
    """KV blocks of one request: for each group of layers, block ids in order and the number of cached blocks."""

    __slots__ = ("blocks", "cached", "content", "loaded", "passed")

    def __init__(self, content: Content, num_groups: int) -> None:
        self.content = content
        self.blocks: list[list[int]] = [[] for _ in range(num_groups)]
        self.cached = [0] * num_groups
        self.passed = [0] * num_groups  # blocks before the window
        self.loaded = 0  # tokens whose KV another engine sent before the request runs


class BlockPool:
    """Pool of `num_blocks` blocks of `block_size` tokens, shared by all groups of layers.

    `windows` has one entry per group: the attention window in tokens, or None for full attention. In a windowed group a
    request needs blocks for its window plus `in_flight_tokens`, the total token budget of the steps in flight.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        windows: tuple[int | None, ...] = (None,),
        max_model_len: int | None = None,
        in_flight_tokens: int = 0,
        uncached_first: bool = True,
        uncached_window_first: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.windows = windows
        self.window_caps = [_window_cap(w, in_flight_tokens, max_model_len, block_size) for w in windows]
        self.uncached_first = [uncached_first if w is None else uncached_window_first for w in windows]
        self.ref_counts = [0] * num_blocks
        self._key: list[Hashable | None] = [None] * num_blocks
        self._empty = list(range(num_blocks))
        self._cached_free: OrderedDict[int, None] = OrderedDict()
        # content -> blocks with it; a lookup returns the first (vLLM: BlockHashToBlockMap)
        self._cached: dict[Hashable, dict[int, None]] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._empty) + len(self._cached_free)

    def table(self, content: Content) -> BlockTable:
        return BlockTable(content, len(self.windows))

    def lookup(self, table: BlockTable, max_tokens: int) -> Hit:
        """Return the longest cached prefix of whole blocks, up to `max_tokens` tokens: (tokens, blocks per group)."""
        length = max_tokens // self.block_size if self.prefix_caching else 0
        hits: list[list[int]] = []
        for group, window in enumerate(self.windows):
            find = self._full_hit if window is None else self._window_hit
            hits.append(find(table, group, length))
            length = len(hits[-1])
        return length * self.block_size, tuple(hit[:length] for hit in hits)

    def _find(self, table: BlockTable, group: int, index: int) -> int | None:
        found = self._cached.get(table.content.block_key(index, group))
        return None if found is None else next(iter(found))

    def _full_hit(self, table: BlockTable, group: int, length: int) -> list[int]:
        blocks: list[int] = []
        for index in range(length):
            block = self._find(table, group, index)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _window_hit(self, table: BlockTable, group: int, length: int) -> list[int]:
        """Return the blocks of the longest prefix, up to `length` blocks, whose last blocks are cached and fill the
        attention window. A prefix shorter than the window must be cached completely."""
        window = self.windows[group]
        assert window is not None
        needed = -(-(window - 1) // self.block_size)
        blocks = [NULL] * length
        run = 0
        for index in range(length - 1, -1, -1):
            block = self._find(table, group, index)
            if block is None:
                run = 0
                continue
            blocks[index] = block
            run += 1
            if run >= needed:
                return blocks[: index + run]
        return blocks[:run]

    def blocks_needed(
        self, table: BlockTable, tokens: int, hit: Hit | None = None, *, capped: bool = False
    ) -> int:
        """Return how many free blocks `tokens` tokens need: new blocks, and the blocks of `hit` that are free now.

        `capped`: count no more blocks for a windowed group than it can hold at a time (the admission test).
        """
        required = -(-tokens // self.block_size)
        if hit is None and required <= len(table.blocks[0]):
            return 0  # all groups have the same number of blocks
        needed = 0
        for group, blocks in enumerate(table.blocks):
            cap = self.window_caps[group]
            most = min(required, cap) if capped and cap is not None else required
            held = len(blocks)
            if hit is not None:
                hits = hit[1][group]
                held += len(hits)
                needed += sum(1 for b in hits if b != NULL and self.ref_counts[b] == 0)
            needed += max(0, most - held)
        return needed

    def grow(self, table: BlockTable, tokens: int, hit: Hit | None = None) -> None:
        """Allocate the blocks of `hit`, then new blocks, for `tokens` tokens in total. Enough blocks must be free."""
        required = -(-tokens // self.block_size)
        if hit is not None:
            for group, hits in enumerate(hit[1]):
                for block in hits:
                    if block != NULL:
                        if self.ref_counts[block] == 0:
                            del self._cached_free[block]
                        self.ref_counts[block] += 1
                table.blocks[group].extend(hits)
                table.cached[group] = len(hits)
        for blocks in table.blocks:
            self._allocate_blocks(required - len(blocks), blocks)

    def _allocate_blocks(self, count: int, blocks: list[int]) -> None:
        """Append `count` free blocks to `blocks`: first those without content, then the least recently freed ones."""
        for _ in range(count):
            block = self._empty.pop() if self._empty else self._evict()
            self.ref_counts[block] = 1
            blocks.append(block)

    def _evict(self) -> int:
        """Evict the least recently freed cached block from the prefix cache and return its id."""
        block, _ = self._cached_free.popitem(last=False)
        key = self._key[block]
        if key is not None:
            self._key[block] = None
            del self._cached[key][block]
            if not self._cached[key]:
                del self._cached[key]
        return block

    def cache(self, table: BlockTable, tokens: int) -> None:
        """Add the full blocks of a request's first `tokens` tokens to the prefix cache."""
        full = tokens // self.block_size
        if not self.prefix_caching or full <= table.cached[0]:
            return
        for group, blocks in enumerate(table.blocks):
            for index in range(table.cached[group], full):
                block = blocks[index]
                if block != NULL:
                    key = self._key[block] = table.content.block_key(index, group)
                    self._cached.setdefault(key, {})[block] = None
            table.cached[group] = full

    def leave_window(self, table: BlockTable, processed_tokens: int) -> None:
        """Free the blocks of windowed groups that are outside the attention window of all later tokens."""
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            blocks = table.blocks[group]
            behind = min(max(0, processed_tokens - window + 1) // self.block_size, len(blocks))
            passed = table.passed[group]
            if behind > passed:
                self._put_back(reversed(blocks[passed:behind]), uncached_first=self.uncached_first[group])
                blocks[passed:behind] = [NULL] * (behind - passed)
                table.passed[group] = behind

    def release(self, table: BlockTable) -> None:
        """Free all blocks of a request, group by group, from the last block of a group to the first."""
        for group, blocks in enumerate(table.blocks):
            self._put_back(reversed(blocks), uncached_first=self.uncached_first[group])
            blocks.clear()
            table.cached[group] = table.passed[group] = 0

    def _put_back(self, blocks: Iterable[int], *, uncached_first: bool) -> None:
        """Decrement the reference counts of these blocks and free those that reach 0."""
        for block in blocks:
            if block == NULL:
                continue
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                if self._key[block] is None and uncached_first:
                    self._empty.append(block)
                else:
                    self._cached_free[block] = None

    def held_blocks(self, table: BlockTable) -> int:
        return sum(sum(1 for b in blocks if b != NULL) for blocks in table.blocks)


def _window_cap(window: int | None, in_flight: int, max_model_len: int | None, block_size: int) -> int | None:
    if window is None:
        return None
    tokens = window - 1 + in_flight
    if max_model_len is not None:
        tokens = min(tokens, max_model_len)
    return -(-tokens // block_size) + 1
