"""Interfaces of KV cache pools for the engine, schedulers and transfers. Pools differ in their table and hit types."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from capacity.simulator.kv_cache.content import Content

Table: TypeAlias = Any  # KV blocks of one request, in the format of its pool
Hit: TypeAlias = Any  # result of `lookup`: (cached tokens, their blocks in the format of the pool)


class KvPool(Protocol):
    """Interface of a pool of `num_blocks` blocks of `block_size` tokens for the engine loop."""

    num_blocks: int
    block_size: int
    prefix_caching: bool
    windows: tuple[int | None, ...]  # attention window of each group of layers, None: full attention

    @property
    def free_blocks(self) -> int: ...
    def table(self, content: Content) -> Table:
        """Return an empty block table for a request with this content."""
        ...


class PagedPool(KvPool, Protocol):
    """Interface of a pool in which a request gets blocks one by one, for schedulers with continuous batching.

    `BlockPool` documents the methods. The first item of a hit is its number of tokens.
    """

    def lookup(self, table: Table, max_tokens: int) -> Hit: ...
    def blocks_needed(
        self, table: Table, tokens: int, hit: Hit | None = None, *, capped: bool = False
    ) -> int: ...
    def grow(self, table: Table, tokens: int, hit: Hit | None = None) -> None: ...
    def cache(self, table: Table, tokens: int) -> None: ...
    def leave_window(self, table: Table, processed_tokens: int) -> None: ...
    def release(self, table: Table) -> None: ...
    def held_blocks(self, table: Table) -> int: ...


class LoadingPool(PagedPool, Protocol):
    """Interface of a decode engine's pool, which allocates blocks for KV that other engines send."""

    def load(self, table: Table, tokens: int) -> bool:
        """Allocate blocks for `tokens` tokens; return False if there are not enough free blocks."""
        ...


class JointPool:
    """Identical pools of all data-parallel ranks (`parts`), with total block counts; each rank uses one pool."""

    def __init__(self, parts: Sequence[KvPool]) -> None:
        self.parts = tuple(parts)
        self.num_blocks = sum(part.num_blocks for part in self.parts)
        self.block_size = self.parts[0].block_size
        self.prefix_caching = self.parts[0].prefix_caching
        self.windows = self.parts[0].windows

    @property
    def free_blocks(self) -> int:
        return sum(part.free_blocks for part in self.parts)

    def table(self, content: Content) -> Table:
        """Return a block table that a request of any rank can use."""
        return self.parts[0].table(content)
