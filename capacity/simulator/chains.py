"""Which KV blocks of a request others have as well: the beginning of its chain. What follows is its own.

A block names all before it, so from the first run that no other request has, none is shared: for a cache, and for a
router that remembers, the rest is one private text, and need not be kept apart run by run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from capacity.simulator.kv_cache.content import Content
from capacity.workload import BlockRuns, Workload
from capacity.workload.columns import IntArray

Chain = tuple[Sequence[int], Sequence[int]]  # keys of runs, and the blocks at which each ends
NO_CHAIN: Chain = ((), ())


class Chains:
    """The shared runs of every request of a workload, for blocks of one size."""

    def __init__(self, workload: Workload, block_size: int) -> None:
        runs = workload.block_runs(block_size)
        self._offsets: array[int] | None = None
        if runs is None:
            return
        shared = _shared(runs)
        kept = np.arange(len(runs.counts)) - np.repeat(runs.offsets[:-1], np.diff(runs.offsets)) < np.repeat(
            shared, np.diff(runs.offsets)
        )
        self._offsets = array("q", np.concatenate(([0], np.cumsum(shared))).tobytes())
        self._keys = array("q", runs.first_ids[kept].tobytes())
        self._stops = array("q", _stops(runs)[kept].tobytes())

    def of(self, request: int) -> Chain:
        """Keys of a request's shared runs, and where each ends, in blocks from the start of the prompt."""
        offsets = self._offsets
        if offsets is None:
            return NO_CHAIN
        begin, end = offsets[request], offsets[request + 1]
        if end == begin + 1:
            return (self._keys[begin],), (self._stops[begin],)
        return self._keys[begin:end].tolist(), self._stops[begin:end].tolist()

    def columns(self) -> tuple[IntArray, IntArray, IntArray] | None:
        """Offsets of each request, keys of runs and where each ends; None where nothing is shared."""
        if self._offsets is None:
            return None
        return tuple(np.frombuffer(part, dtype=np.int64) for part in (self._offsets, self._keys, self._stops))  # type: ignore[return-value]

    def content(self, request: int) -> Content:
        """The request's blocks, as a KV cache tells them apart; keys are at least 0, private ones below."""
        keys, stops = self.of(request)
        return Content(~request, keys, stops)


def _stops(runs: BlockRuns) -> IntArray:
    """Where each run ends, in blocks from the start of its prompt."""
    ends = np.cumsum(runs.counts)
    before = np.concatenate(([0], ends))[runs.offsets[:-1]]
    stops: IntArray = ends - np.repeat(before, np.diff(runs.offsets))
    return stops


def _shared(runs: BlockRuns) -> IntArray:
    """How many of each request's runs, from the first on, stand in another request as well."""
    _, number, users = np.unique(runs.first_ids, return_inverse=True, return_counts=True)
    alone = np.concatenate((users[number] == 1, [True]))
    at = np.where(alone, np.arange(len(alone)), len(alone))
    next_alone = np.minimum.accumulate(at[::-1])[::-1]
    shared: IntArray = np.minimum(next_alone[runs.offsets[:-1]], runs.offsets[1:]) - runs.offsets[:-1]
    return shared
