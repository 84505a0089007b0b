"""SGLang's radix cache holds a prefix-closed set of pages."""

from __future__ import annotations

from typing import Any

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capacity.simulator.kv_cache.radix import RadixCache


class Radix(RuleBasedStateMachine):
    """The tree holds a prefix-closed set of page sequences; locks and sizes add up."""

    tokens = st.lists(st.integers(0, 2), min_size=0, max_size=12).map(tuple)

    def __init__(self) -> None:
        super().__init__()
        self.cache = RadixCache(2)
        self.inserted: list[tuple[int, ...]] = []
        self.locked: list[Any] = []

    def held(self) -> set[tuple[int, ...]]:
        """Every page-aligned prefix that the tree holds, by walking it."""
        found: set[tuple[int, ...]] = {()}

        def walk(node: Any, prefix: tuple[int, ...]) -> None:
            for child in node.children.values():
                for end in range(2, len(child.tokens) + 1, 2):
                    found.add(prefix + child.tokens[:end])
                walk(child, prefix + child.tokens)

        walk(self.cache.root, ())
        return found

    def longest(self, tokens: tuple[int, ...], held: set[tuple[int, ...]]) -> int:
        return max(n for n in range(0, len(tokens) + 1, 2) if tokens[:n] in held)

    @rule(tokens=tokens)
    def insert(self, tokens: tuple[int, ...]) -> None:
        held = self.held()
        assert self.cache.insert(tokens) == self.longest(tokens, held)
        whole = tokens[: len(tokens) // 2 * 2]
        assert self.held() == held | {whole[:n] for n in range(0, len(whole) + 1, 2)}

    @rule(tokens=tokens)
    def match(self, tokens: tuple[int, ...]) -> None:
        held = self.held()
        assert self.cache.match(tokens)[0] == self.longest(tokens, held)
        assert self.held() == held

    @rule(tokens=tokens)
    def lock(self, tokens: tuple[int, ...]) -> None:
        node = self.cache.match(tokens)[1]
        self.cache.lock(node)
        self.locked.append(node)

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        self.cache.unlock(self.locked.pop(data.draw(st.integers(0, len(self.locked) - 1))))

    @rule(tokens=st.integers(1, 20))
    def evict(self, tokens: int) -> None:
        before, free = self.cache.total_tokens, self.cache.evictable_tokens
        evicted = self.cache.evict(tokens)
        assert evicted == before - self.cache.total_tokens
        assert evicted >= min(tokens, free)

    @invariant()
    def sizes_add_up(self) -> None:
        nodes = list(self.cache.nodes())
        assert self.cache.total_tokens == sum(len(n.tokens) for n in nodes)
        assert self.cache.protected_tokens == sum(len(n.tokens) for n in nodes if n.locks)
        assert all(n.parent is self.cache.root or n.parent.locks >= n.locks for n in nodes)  # type: ignore[union-attr]
        assert all(len(n.tokens) % 2 == 0 and n.tokens for n in nodes)


TestRadix = Radix.TestCase


TestRadix.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
