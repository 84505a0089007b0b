"""What a request's tokens are, as far as a prefix cache can tell: a chain of spans of KV blocks.

Two requests share a block exactly where their chains agree: same span keys from the first on, same position in the
span. A key must name the span *and all before it*, as a chained hash does. After its spans every request goes on
in private: blocks that no other request can have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence


class Content:
    """The block chain of one request: `keys[i]` names the blocks from `stops[i-1]` to `stops[i]`, then `private`."""

    __slots__ = ("keys", "private", "stops")

    def __init__(self, private: Hashable, keys: Sequence[Hashable] = (), stops: Sequence[int] = ()) -> None:
        self.private = private
        self.keys = keys
        self.stops = stops

    def block_key(self, index: int, group: int = 0) -> Hashable:
        """Identity of the KV block at `index` of a group of layers, its whole prefix included."""
        stops = self.stops
        if not stops or index >= stops[-1]:
            return (self.private, index, group)
        span = bisect_right(stops, index)
        start = stops[span - 1] if span else 0
        return (self.keys[span], index - start, group)


def chain_blocks(
    tokens: Sequence[int], block_size: int, interned: dict[tuple[int, tuple[int, ...]], int]
) -> list[int]:
    """Chained identities of the full blocks of `tokens`; `interned` numbers each (parent, tokens) pair once."""
    keys: list[int] = []
    parent = -1
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = (parent, tuple(tokens[start : start + block_size]))
        parent = interned.setdefault(block, len(interned))
        keys.append(parent)
    return keys
