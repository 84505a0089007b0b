"""The KV caches of data-parallel ranks: each rank's requests live in that rank's pool alone."""

from __future__ import annotations

from collections.abc import Sequence

from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.pool import KvPool, Table


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
