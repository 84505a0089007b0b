"""Token content of requests for a prefix cache: a chain of spans, which are consecutive KV blocks with one key.

Two requests share a block exactly where their chains are equal: equal span keys from the first span on, and equal
positions in the span. A key must identify the span and everything before it, as a chained hash does. After its spans,
every request continues with private blocks that it shares with no other request.
"""

from bisect import bisect_right
from collections.abc import Hashable, Sequence


class Content:
    """KV blocks of one request: blocks `stops[i-1]` to `stops[i]` - 1 have the span key `keys[i]`, all later blocks
    have the key `private`."""

    __slots__ = ("keys", "private", "stops")

    def __init__(self, private: Hashable, keys: Sequence[Hashable] = (), stops: Sequence[int] = ()) -> None:
        self.private = private
        self.keys = keys
        self.stops = stops

    def block_key(self, index: int, group: int = 0) -> Hashable:
        """Return the key of block `index` in a group of layers; it identifies the block and all before it."""
        stops = self.stops
        if not stops or index >= stops[-1]:
            return (self.private, index, group)
        span = bisect_right(stops, index)
        start = stops[span - 1] if span else 0
        return (self.keys[span], index - start, group)


def chain_blocks(
    tokens: Sequence[int], block_size: int, interned: dict[tuple[int, tuple[int, ...]], int]
) -> list[int]:
    """Return an id per full block; equal ids mean equal tokens up to the block's end. `interned` stores the ids."""
    keys: list[int] = []
    parent = -1
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = (parent, tuple(tokens[start : start + block_size]))
        parent = interned.setdefault(block, len(interned))
        keys.append(parent)
    return keys
