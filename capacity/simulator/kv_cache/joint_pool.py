"""The KV caches of data-parallel ranks: each rank's requests live in that rank's pool alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capacity.simulator.kv_cache.content import Content


class JointPool:
    """Equal pools, one a rank, counted together. A rank's scheduler works on its own of the `parts`."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)
        self.num_blocks: int = sum(part.num_blocks for part in self.parts)
        self.block_size: int = self.parts[0].block_size
        self.prefix_caching: bool = self.parts[0].prefix_caching

    @property
    def free_blocks(self) -> int:
        return sum(part.free_blocks for part in self.parts)

    def table(self, content: Content) -> Any:
        """A block table for a request of any rank: blocks come with the rank."""
        return self.parts[0].table(content)
