"""KV cache before paging, as a baseline: each request reserves one contiguous region for its maximum length."""

from capacity.simulator.kv_cache.content import Content


class ContiguousTable:
    """Reserved region of one request: `held` blocks from block `start`; nothing is reserved if `held` is 0."""

    __slots__ = ("content", "held", "start")

    def __init__(self, content: Content) -> None:
        self.content = content
        self.start = 0
        self.held = 0


class ContiguousPool:
    """Pool of `num_blocks` blocks of `block_size` tokens; a request reserves `reserved_tokens` contiguous tokens.

    Allocation is first fit. A request may not fit although enough blocks are free, because they are not contiguous
    (external fragmentation). No blocks are shared.
    """

    prefix_caching = False
    windows: tuple[int | None, ...] = (None,)

    def __init__(self, num_blocks: int, block_size: int, *, reserved_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reserved_blocks = -(-reserved_tokens // block_size)
        self.free_blocks = num_blocks
        self._holes: list[tuple[int, int]] = [(0, num_blocks)]  # (start, length), in order

    def table(self, content: Content) -> ContiguousTable:
        return ContiguousTable(content)

    def lookup(self, table: ContiguousTable, max_tokens: int) -> tuple[int, None]:  # noqa: ARG002
        return 0, None

    def blocks_needed(
        self,
        table: ContiguousTable,
        tokens: int,
        hit: object = None,  # noqa: ARG002
        *,
        capped: bool = False,  # noqa: ARG002
    ) -> int:
        """Return how many blocks the request must reserve; if no free region is large enough, return more blocks than
        the pool has, so that the request is not admitted."""
        wanted = max(self.reserved_blocks, -(-tokens // self.block_size))
        if table.held >= wanted or (table.held and -(-tokens // self.block_size) <= table.held):
            return 0
        fits = any(length >= wanted for _, length in self._holes)
        return wanted if fits and not table.held else self.num_blocks + 1

    def grow(self, table: ContiguousTable, tokens: int, hit: object = None) -> None:  # noqa: ARG002
        if table.held:
            return
        wanted = max(self.reserved_blocks, -(-tokens // self.block_size))
        at = next(i for i, (_, length) in enumerate(self._holes) if length >= wanted)
        start, length = self._holes[at]
        self._holes[at : at + 1] = [(start + wanted, length - wanted)] if length > wanted else []
        table.start, table.held = start, wanted
        self.free_blocks -= wanted

    def cache(self, table: ContiguousTable, tokens: int) -> None:
        """Do nothing: requests share no blocks."""

    def leave_window(self, table: ContiguousTable, processed_tokens: int) -> None:
        """Do nothing: the whole region stays reserved."""

    def release(self, table: ContiguousTable) -> None:
        if not table.held:
            return
        self.free_blocks += table.held
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self._holes, (table.start, table.held)]):
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self._holes = merged
        table.held = 0

    def held_blocks(self, table: ContiguousTable) -> int:
        return table.held
