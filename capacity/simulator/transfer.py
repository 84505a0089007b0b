"""KV that is not computed where it is used: it comes over a link, into blocks that wait for it.

As a vLLM KV connector loads: blocks for all tokens to come are taken when the engine decides its next step, in
order of arrival and only where they fit; the request runs once they are filled. Of a prompt that is loaded whole,
one token is computed again, because its output is what is sampled. Source: vLLM 0.33.0, v1/core/sched/scheduler.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from capacity.errors import InvalidInput
from capacity.kv_cache.content import Content
from capacity.kv_cache.run_pool import RunHit, RunPool, RunTable
from capacity.schedulers import Sequence
from capacity.step import picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """How KV travels: bytes of a token of context, payload rate and latency. An infinite rate takes no time."""

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0:
            raise InvalidInput(f"the KV transfer rate must be above 0 bytes/s, not {self.bytes_per_s}")
        if not 0 <= self.latency_s < math.inf:
            raise InvalidInput(
                f"the KV transfer latency must be finite and at least 0 s, not {self.latency_s}"
            )

    def payload_ps(self, tokens: int) -> int:
        """Time for which a transfer keeps its ports busy."""
        return picoseconds(self.bytes_per_token * tokens / self.bytes_per_s)

    @property
    def latency_ps(self) -> int:
        return picoseconds(self.latency_s)


class Port:
    """One end of a link: transfers pass one after the other."""

    free_ps = 0


def transfer(link: KvLink, tokens: int, now_ps: int, *ports: Port) -> int:
    """Occupy all `ports` as soon as they are free; returns when the KV has arrived."""
    begin_ps = max(now_ps, *(port.free_ps for port in ports))
    end_ps = begin_ps + link.payload_ps(tokens)
    for port in ports:
        port.free_ps = end_ps
    return end_ps + link.latency_ps


class LoadTable(RunTable):
    """A block table whose first `loaded` tokens came from elsewhere: held before the request runs."""

    __slots__ = ("loaded",)

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self.loaded = 0


class LoadPool(RunPool):
    """A pool whose requests may hold loaded blocks when they are admitted; after a preemption these are gone."""

    def table(self, content: Content) -> LoadTable:
        return LoadTable(content)

    def lookup(self, table: RunTable, max_tokens: int) -> RunHit:
        loaded: int = getattr(table, "loaded", 0)
        return (min(loaded, max_tokens), []) if loaded else super().lookup(table, max_tokens)

    def grow(self, table: RunTable, tokens: int, hit: RunHit | None = None) -> None:
        super().grow(table, tokens, None if getattr(table, "loaded", 0) else hit)

    def load(self, table: LoadTable, tokens: int) -> bool:
        """Take blocks for `tokens` tokens to come, those that are cached here included; False: they are not free."""
        hit = super().lookup(table, tokens)
        if self.blocks_needed(table, tokens, hit) > self.free_blocks:
            return False
        super().grow(table, tokens, hit)
        table.loaded = tokens
        return True

    def release(self, table: RunTable) -> None:
        super().release(table)
        if isinstance(table, LoadTable):
            table.loaded = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A request whose KV is to be loaded. `begin` starts the transfer, once the blocks are there; returns its end."""

    sequence: Sequence
    tokens: int
    begin: Callable[[int], int]
