"""What the engine, the schedulers and the transfers ask of a KV cache. Pools differ in what a table and a hit are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from capacity.simulator.kv_cache.content import Content

Table: TypeAlias = Any  # the KV blocks of one request, as its own pool keeps them
Hit: TypeAlias = Any  # of `lookup`: (cached tokens, the pool's own description of their blocks)


class KvPool(Protocol):
    """`num_blocks` usable blocks of `block_size` tokens: what the engine loop asks of every pool."""

    num_blocks: int
    block_size: int
    prefix_caching: bool

    @property
    def free_blocks(self) -> int: ...
    def table(self, content: Content) -> Table:
        """An empty block table of a request with this content."""
        ...


class PagedPool(KvPool, Protocol):
    """A pool whose requests grow block by block: what schedulers of continuous batching ask.

    `BlockPool` says what each method does. The first item of a hit counts its tokens.
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
    """The pool of a decode engine: blocks are taken for KV that comes from elsewhere."""

    def load(self, table: Table, tokens: int) -> bool:
        """Take blocks for `tokens` tokens to come; False: they are not free."""
        ...


class JointPool:
    """Equal pools, one a rank, counted together. A rank's scheduler works on its own of the `parts`."""

    def __init__(self, parts: Sequence[KvPool]) -> None:
        self.parts = tuple(parts)
        self.num_blocks = sum(part.num_blocks for part in self.parts)
        self.block_size = self.parts[0].block_size
        self.prefix_caching = self.parts[0].prefix_caching

    @property
    def free_blocks(self) -> int:
        return sum(part.free_blocks for part in self.parts)

    def table(self, content: Content) -> Table:
        """A block table for a request of any rank: blocks come with the rank."""
        return self.parts[0].table(content)
