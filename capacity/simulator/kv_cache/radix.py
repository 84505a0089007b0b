"""SGLang's prefix cache: a radix tree of token runs that evicts whole nodes.

Source: SGLang 0.5.23 `srt/mem_cache/radix_cache.py`. Checked against operations recorded from it, and from
`unified_radix_cache.py` of 0.5.19 to 0.5.23.
"""

import heapq
from collections.abc import Iterator

Tokens = tuple[int, ...]


class RadixNode:
    """Node whose tokens follow those of its parent; `locks` counts the running requests that use the node."""

    __slots__ = ("accessed", "children", "locks", "parent", "tokens")

    def __init__(self, tokens: Tokens, parent: "RadixNode | None", accessed: int) -> None:
        self.tokens = tokens
        self.parent = parent
        self.children: dict[Tokens, RadixNode] = {}
        self.locks = 0
        self.accessed = accessed


class RadixCache:
    """Radix tree with longest-prefix matching in whole pages; it has `evictable_tokens` and `protected_tokens`.

    The tree may match a whole prompt; the scheduler limits the hit to prompt - 1 tokens.
    """

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.root = RadixNode((), None, 0)
        self.evictable_tokens = 0
        self.protected_tokens = 0
        self._clock = 0

    @property
    def total_tokens(self) -> int:
        return self.evictable_tokens + self.protected_tokens

    def match(self, tokens: Tokens) -> tuple[int, RadixNode]:
        """Return the number of matched tokens and the deepest node of the match. A partly matched node is split."""
        self._clock += 1
        return self._descend(self._whole_pages(tokens))

    def insert(self, tokens: Tokens) -> int:
        """Insert `tokens`; return how many the tree already had, so that the caller frees its duplicates."""
        self._clock += 1
        tokens = self._whole_pages(tokens)
        matched, node = self._descend(tokens)
        if matched < len(tokens):
            self._clock += 1
            leaf = RadixNode(tokens[matched:], node, self._clock)
            node.children[self._first_page(leaf.tokens)] = leaf
            self.evictable_tokens += len(leaf.tokens)
        return matched

    def lock(self, node: RadixNode) -> None:
        """Protect `node` and its path to the root from eviction."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable_tokens -= len(node.tokens)
                self.protected_tokens += len(node.tokens)
            node.locks += 1
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable_tokens += len(node.tokens)
                self.protected_tokens -= len(node.tokens)
            node = node.parent

    def evict(self, tokens: int) -> int:
        """Evict least recently used unlocked leaves until `tokens` tokens are freed; return the freed tokens."""
        leaves = [(n.accessed, i, n) for i, n in enumerate(self.nodes()) if not n.children and not n.locks]
        heapq.heapify(leaves)
        order = len(leaves)
        evicted = 0
        while evicted < tokens and leaves:
            node = heapq.heappop(leaves)[2]
            evicted += len(node.tokens)
            self.evictable_tokens -= len(node.tokens)
            parent = node.parent
            assert parent is not None
            del parent.children[self._first_page(node.tokens)]
            if parent.parent is not None and not parent.children and not parent.locks:
                order += 1
                heapq.heappush(leaves, (parent.accessed, order + self._clock, parent))
        return evicted

    def nodes(self) -> Iterator[RadixNode]:
        """Return all nodes except the root, depth first. Siblings are in the order of their first page as text."""
        return (node for _, node in self.walk())

    def walk(self) -> Iterator[tuple[int, RadixNode]]:
        stack = [(0, child) for child in self._reversed_children(self.root)]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            stack.extend((depth + 1, child) for child in self._reversed_children(node))

    def _reversed_children(self, node: RadixNode) -> list[RadixNode]:
        """Return the children of a node in reverse order, so that a stack pops them in order."""
        return [child for _, child in sorted(node.children.items(), key=_page_text, reverse=True)]

    def _whole_pages(self, tokens: Tokens) -> Tokens:
        return tokens[: len(tokens) // self.page_size * self.page_size]

    def _first_page(self, tokens: Tokens) -> Tokens:
        return tokens[: self.page_size]

    def _descend(self, tokens: Tokens) -> tuple[int, RadixNode]:
        node, matched = self.root, 0
        node.accessed = self._clock
        while matched < len(tokens):
            child = node.children.get(tokens[matched : matched + self.page_size])
            if child is None:
                break
            child.accessed = self._clock
            common = self._common_length(child.tokens, tokens, matched)
            if common < len(child.tokens):
                child = self._split(child, common)
                return matched + common, child
            matched += common
            node = child
        return matched, node

    def _common_length(self, run: Tokens, tokens: Tokens, start: int) -> int:
        size = self.page_size
        pages = min(len(run), len(tokens) - start) // size
        for page in range(1, pages):
            at = page * size
            if run[at : at + size] != tokens[start + at : start + at + size]:
                return at
        return pages * size

    def _split(self, child: RadixNode, at: int) -> RadixNode:
        """Split `child` after `at` tokens: return a new parent node with these tokens; `child` keeps the later ones."""
        parent = child.parent
        assert parent is not None
        upper = RadixNode(child.tokens[:at], parent, child.accessed)
        upper.locks = child.locks
        parent.children[self._first_page(upper.tokens)] = upper
        child.tokens = child.tokens[at:]
        child.parent = upper
        upper.children[self._first_page(child.tokens)] = child
        return upper


def _page_text(item: tuple[Tokens, RadixNode]) -> str:
    page = item[0]
    return str(page[0]) if len(page) == 1 else str(page)
