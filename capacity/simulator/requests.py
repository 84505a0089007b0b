"""Requests of the workload in the forms that engines (`Sequence`) and routers (`Prompt`) use.

The key of a KV block also identifies all blocks before it. So if no other request has a run of blocks of a request, it
shares none of the later blocks either. Caches and prefix-aware routers treat the later blocks as private.
"""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import cached_property
from typing import TypeAlias

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.deployment.routing import Prompt
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.pool import KvPool
from capacity.simulator.schedulers import Sequence
from capacity.simulator.setup import EngineSetup, check_encoding
from capacity.workload import BlockRuns, Workload
from capacity.workload.columns import IntArray

Chain = tuple[Items[int], Items[int]]  # keys of runs, and the end of each in blocks
NO_CHAIN: Chain = ((), ())


class Chains:
    """Runs (consecutive KV blocks) that several requests of a workload share, for one block size."""

    def __init__(self, workload: Workload, block_size: int) -> None:
        runs = workload.block_runs(block_size)
        self._offsets: array[int] | None = None
        if runs is None:
            return
        shared = _count_shared_runs(runs)
        kept = np.arange(len(runs.counts)) - np.repeat(runs.offsets[:-1], np.diff(runs.offsets)) < np.repeat(
            shared, np.diff(runs.offsets)
        )
        self._offsets = array("q", np.concatenate(([0], np.cumsum(shared))).tobytes())
        self._keys = array("q", runs.first_ids[kept].tobytes())
        self._stops = array("q", _run_stops(runs)[kept].tobytes())

    def chain_of(self, request: int) -> Chain:
        """Return the keys of a request's shared runs of blocks, and each run's end in blocks from the prompt start."""
        offsets = self._offsets
        if offsets is None:
            return NO_CHAIN
        begin, end = offsets[request], offsets[request + 1]
        if end == begin + 1:
            return (self._keys[begin],), (self._stops[begin],)
        return self._keys[begin:end].tolist(), self._stops[begin:end].tolist()

    def columns(self) -> tuple[IntArray, IntArray, IntArray] | None:
        if self._offsets is None:
            return None
        return tuple(np.frombuffer(part, dtype=np.int64) for part in (self._offsets, self._keys, self._stops))  # type: ignore[return-value]

    def content(self, request: int) -> Content:
        """Return the request's block keys for a KV cache: keys of shared blocks from 0 up, private ones negative."""
        keys, stops = self.chain_of(request)
        return Content(~request, keys, stops)


def _run_stops(runs: BlockRuns) -> IntArray:
    """Return the end of each run, in blocks from the start of its prompt."""
    ends = np.cumsum(runs.counts)
    before = np.concatenate(([0], ends))[runs.offsets[:-1]]
    stops: IntArray = ends - np.repeat(before, np.diff(runs.offsets))
    return stops


def _count_shared_runs(runs: BlockRuns) -> IntArray:
    """Return, for each request, how many runs come before its first run that no other request has."""
    _, number, users = np.unique(runs.first_ids, return_inverse=True, return_counts=True)
    alone = np.concatenate((users[number] == 1, [True]))
    at = np.where(alone, np.arange(len(alone)), len(alone))
    next_alone = np.minimum.accumulate(at[::-1])[::-1]
    shared: IntArray = np.minimum(next_alone[runs.offsets[:-1]], runs.offsets[1:]) - runs.offsets[:-1]
    return shared


SEQUENCE_COLUMNS = ("priority", "adapter", "images", "image_tokens", "audio_tokens", "sample_of")
NewSequence: TypeAlias = Callable[[int, int], Sequence | None]


class Requests:
    """Columns of a workload, from which sequences (for engines) and prompts (for routers) are built."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._chains: dict[int, Chains] = {}  # by block size

    @cached_property
    def prompt_tokens(self) -> "array[int]":
        return array("q", self.workload.prompt_tokens.tobytes())

    @cached_property
    def asked_tokens(self) -> "array[int]":
        """Prompt tokens plus requested output tokens (max_tokens) of each request."""
        return array("q", self.workload.requested_tokens.tobytes())

    @property
    def has_images(self) -> bool:
        """Whether any prompt has images or an audio clip."""
        columns = (self.workload.images, self.workload.audio_tokens)
        return any(column.any() for column in columns if column is not None)

    def check_engine(self, setup: EngineSetup) -> None:
        """Raise InvalidInput if the engine does not support these requests."""
        adapter, takes_adapters = self.workload.adapter, "adapters" in setup.policy_options
        if adapter is not None and adapter.any() and not takes_adapters and isinstance(setup.policy, str):
            raise InvalidInput(
                f"requests use LoRA adapters, but {setup.label} has no adapter slots: add --max-loras"
            )
        if self.has_images:
            columns = (self.workload.image_tokens, self.workload.audio_tokens)
            largest = max((int(column.max()) for column in columns if column is not None), default=0)
            check_encoding(setup, largest)

    def sequence_maker(self, setup: EngineSetup, pool: KvPool) -> NewSequence:
        """Return a function that builds the `Sequence` of a request from its number and its arrival (ps).

        The function returns None for a prompt that leaves no room for one token below max_model_len, which vLLM's
        front end rejects. A request of a prefill engine ends with its first token.
        """
        workload, prompts = self.workload, self.prompt_tokens
        outputs = array("q", workload.output_tokens.tobytes())
        given = workload.optional_columns
        columns = {name: given[name].tolist() for name in SEQUENCE_COLUMNS if name in given}
        max_model_len, prefill_only = setup.limits.max_model_len, setup.role == "prefill"
        asked = None
        if workload.max_tokens is not None and not prefill_only:
            asked = array("q", workload.max_tokens.tobytes())
        chains = self.block_chains(pool.block_size) if pool.prefix_caching else None
        table = pool.table

        def new_sequence(index: int, arrival_ps: int) -> Sequence | None:
            prompt_tokens = prompts[index]
            if prompt_tokens >= max_model_len:
                return None
            max_known = prompt_tokens + (1 if prefill_only else outputs[index])
            asked_known = max_known if asked is None else max(max_known, prompt_tokens + asked[index])
            sequence = Sequence(
                index,
                id=index,
                arrival=arrival_ps,
                prompt_tokens=prompt_tokens,
                max_known=min(max_known, max_model_len),
                asked_known=min(asked_known, max_model_len),
                table=table(Content(~index) if chains is None else chains.content(index)),
                **{name: column[index] for name, column in columns.items()},
            )
            if not sequence.images:
                sequence.image_tokens = 0
            sequence.images += sequence.audio_tokens > 0  # the clip is the last image
            return sequence

        return new_sequence

    def prompts(self, block_size: int | None = None) -> Callable[[int], Prompt]:
        """Return a function that converts a request number to a router's `Prompt`; prefixes need `block_size`."""
        tokens, asked = self.prompt_tokens, self.asked_tokens
        sessions = None if self.workload.session is None else self.workload.session.tolist()
        chain_of = None if block_size is None else self.block_chains(block_size).chain_of

        def prompt(request: int) -> Prompt:
            length = tokens[request]
            session = None if sessions is None else sessions[request]
            if chain_of is None or block_size is None:
                return Prompt(request, length, session, asked_tokens=asked[request])
            keys, stops = chain_of(request)
            return Prompt(request, length, session, keys, stops, length // block_size, asked[request])

        return prompt

    def block_chains(self, block_size: int) -> Chains:
        chains = self._chains.get(block_size)
        if chains is None:
            chains = self._chains[block_size] = Chains(self.workload, block_size)
        return chains

    @cached_property
    def answers_are_private(self) -> bool:
        """Whether every answer that a prompt repeats is complete before that prompt is sent. The compiled engines
        require this.
        """
        content = self.workload.content
        if content is None:
            return True
        if len(np.unique(content.answer_ids)) < len(self.workload):
            return False
        if not np.isin(content.segment_ids, content.answer_ids).any():
            return True
        owner = {answer: request for request, answer in enumerate(content.answer_ids.tolist())}
        after_request = self.workload.after_request
        after = after_request.tolist() if after_request is not None else None
        offsets = content.offsets.tolist()
        segments = content.segment_ids.tolist()
        for request in range(len(self.workload)):
            owners = {owner[s] for s in segments[offsets[request] : offsets[request + 1]] if s in owner}
            at = request
            while owners and after is not None and after[at] >= 0:
                at = after[at]
                owners.discard(at)
            if owners:
                return False
        return True
