"""Contents of prompts for a prefix cache: the tokens that prompts have in common.

A prompt is a sequence of *segments*. Segment `(id, n)` represents the first n tokens of an infinite text with this id,
so two prompts share a prefix exactly as far as their segments are equal. A system prompt is one segment at the start of
many prompts. A response is also a segment, so the prompt of a later turn can repeat it. The chained block hashes of a
trace are segments of one block each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.columns import MAX_REQUEST_TOKENS, IntArray, int_column, token_column

RUN_BITS = 24  # a run of blocks is numbered run << 24 | block: MAX_REQUEST_TOKENS one-token blocks still fit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptContent:
    """Segments of all prompts, concatenated: request i has the segments `offsets[i]:offsets[i + 1]`.

    `answer_ids[i]` is the id of the text whose first tokens are the output of request i.
    """

    offsets: IntArray
    segment_ids: IntArray
    segment_tokens: IntArray
    answer_ids: IntArray

    def __post_init__(self) -> None:
        requests = len(self.answer_ids)
        offsets = int_column("offsets", self.offsets, length=requests + 1, minimum=0)
        ids = int_column("segment_ids", self.segment_ids)
        tokens = token_column("segment_tokens", self.segment_tokens, length=len(ids))
        if offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 1).any():
            raise InvalidInput(
                "offsets must rise from 0 to the number of segments, with a segment for every prompt"
            )
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "segment_ids", ids)
        object.__setattr__(self, "segment_tokens", tokens)
        object.__setattr__(self, "answer_ids", int_column("answer_ids", self.answer_ids, length=requests))

    def add_salt(self, salt: IntArray) -> PromptContent:
        """Return the content with different text ids for each salt (tenant), so that tenants share no cached blocks."""
        texts, salts = np.concatenate([self.segment_ids, self.answer_ids]), int(salt.max()) + 1
        number = np.unique(texts, return_inverse=True)[1].astype(np.int64)
        own = number * salts + np.concatenate([np.repeat(salt, np.diff(self.offsets)), salt])
        count = len(self.segment_ids)
        return replace(self, segment_ids=own[:count], answer_ids=own[count:])

    @classmethod
    def from_segments(
        cls,
        prompts: Sequence[Iterable[tuple[int, int]]],
        *,
        answer_ids: Sequence[int] | IntArray | None = None,
    ) -> PromptContent:
        """Return the content of `prompts`, lists of (id, tokens). `answer_ids` None: no prompt repeats a response."""
        ids: list[int] = []
        tokens: list[int] = []
        offsets = [0]
        for prompt in prompts:
            for segment_id, segment_tokens in prompt:
                ids.append(segment_id)
                tokens.append(segment_tokens)
            offsets.append(len(ids))
        answers = fresh_ids(ids, len(prompts)) if answer_ids is None else np.asarray(answer_ids)
        return cls(
            offsets=np.asarray(offsets),
            segment_ids=np.asarray(ids, dtype=np.int64),
            segment_tokens=np.asarray(tokens, dtype=np.int64),
            answer_ids=answers,
        )

    def __len__(self) -> int:
        return len(self.answer_ids)

    @property
    def prompt_tokens(self) -> IntArray:
        """Return the number of tokens of each prompt."""
        return np.add.reduceat(self.segment_tokens, self.offsets[:-1]) if len(self) else self.segment_tokens

    def request_segments(self, request: int) -> list[tuple[int, int]]:
        """Return the (id, tokens) segments of one prompt."""
        mine = slice(int(self.offsets[request]), int(self.offsets[request + 1]))
        return list(zip(self.segment_ids[mine].tolist(), self.segment_tokens[mine].tolist()))

    def take(self, order: IntArray) -> PromptContent:
        """Return the content of the requests with the row numbers `order`, in that order."""
        counts = np.diff(self.offsets)[order]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        picked = np.repeat(self.offsets[:-1][order] - offsets[:-1], counts) + np.arange(int(offsets[-1]))
        return PromptContent(
            offsets=offsets,
            segment_ids=self.segment_ids[picked],
            segment_tokens=self.segment_tokens[picked],
            answer_ids=self.answer_ids[order],
        )

    def clip(self, prompt_tokens: IntArray) -> PromptContent:
        """Return the content with prompt i shortened to `prompt_tokens[i]` tokens, which must not exceed its length."""
        ends = np.cumsum(self.segment_tokens)
        begins = ends - self.segment_tokens
        counts = np.diff(self.offsets)
        room = np.repeat(prompt_tokens + begins[self.offsets[:-1]], counts) - begins
        kept = room > 0
        per_request = np.add.reduceat(kept.astype(np.int64), self.offsets[:-1]) if len(self) else counts
        return PromptContent(
            offsets=np.concatenate(([0], np.cumsum(per_request))),
            segment_ids=self.segment_ids[kept],
            segment_tokens=np.minimum(self.segment_tokens, room)[kept],
            answer_ids=self.answer_ids,
        )

    def block_runs(
        self, block_tokens: int, *, output_tokens: IntArray | None = None, partial: bool = False
    ) -> BlockRuns:
        """Return the ids of the full blocks of `block_tokens` tokens of each prompt.

        With `output_tokens`, the blocks also cover the response, as in an engine's cache during decode. With `partial`,
        an incomplete last block also has an id, which depends on its tokens so far.
        """
        if not 1 <= block_tokens <= MAX_REQUEST_TOKENS:
            raise InvalidInput(f"block_tokens must be from 1 to {MAX_REQUEST_TOKENS}, not {block_tokens}")
        chain = _ChainedRuns(len(self), block_tokens)
        begins, counts = self.offsets[:-1], np.diff(self.offsets)
        longest = int(counts.max(initial=0))
        for depth in range(longest + 1):  # all first segments, then all second ones, ..., then answers
            rows = np.flatnonzero(counts > depth)
            at = begins[rows] + depth
            texts, tokens = self.segment_ids[at], self.segment_tokens[at]
            if output_tokens is not None:
                ends = np.flatnonzero((counts == depth) & (output_tokens > 0))
                order = np.argsort(np.concatenate((rows, ends)), kind="stable")
                rows = np.concatenate((rows, ends))[order]
                texts = np.concatenate((texts, self.answer_ids[ends]))[order]
                tokens = np.concatenate((tokens, output_tokens[ends]))[order]
            if len(rows):
                chain.extend(rows, texts, tokens)
        if partial:
            chain.close()
        return chain.runs()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockRuns:
    """Block ids of all prompts: two blocks have the same id if all tokens up to the end of the block are equal.

    Request i has the runs `offsets[i]:offsets[i + 1]`; run r consists of `counts[r]` blocks with the ids `first_ids[r],
    first_ids[r] + 1, ...`. Only full blocks have an id, unless partial blocks were requested.
    """

    block_tokens: int
    offsets: IntArray
    first_ids: IntArray
    counts: IntArray

    def separate_by_adapter(self, adapter: IntArray) -> BlockRuns:
        """Return the runs with different block ids for each LoRA adapter, because adapters change the KV."""
        number, run = (
            np.unique(values, return_inverse=True)[1] for values in (adapter, self.first_ids >> RUN_BITS)
        )
        of_run = np.repeat(number, np.diff(self.offsets))
        own = np.unique(run * (int(number.max()) + 1) + of_run, return_inverse=True)[1].astype(np.int64)
        return replace(self, first_ids=own << RUN_BITS | self.first_ids & (1 << RUN_BITS) - 1)

    def request_runs(self, request: int) -> list[tuple[int, int]]:
        """Return (first id, count) of each run of consecutive block ids of one request."""
        mine = slice(int(self.offsets[request]), int(self.offsets[request + 1]))
        return list(zip(self.first_ids[mine].tolist(), self.counts[mine].tolist()))

    def request_block_ids(self, request: int) -> list[int]:
        """Return the id of each block of one request."""
        return [block for first, count in self.request_runs(request) for block in range(first, first + count)]


def fresh_ids(used: Iterable[int] | IntArray, count: int) -> IntArray:
    """Return `count` segment ids that are not in `used`."""
    taken = np.asarray(used if isinstance(used, np.ndarray) else list(used), dtype=np.int64)
    first = int(taken.max()) + 1 if taken.size else 0
    return np.arange(first, first + count, dtype=np.int64)


class _ChainedRuns:
    """Computes the `BlockRuns` of many token sequences at once, one segment of each sequence at a time.

    A run of blocks is identified by the block before it, its text and its offset in the text; a block that contains
    several segments, by the block before it and its pieces of segments. Equal runs have the same number of segments
    before them, so they are found in the same call of `extend`.
    """

    def __init__(self, sequences: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._parent = np.full(sequences, -1, dtype=np.int64)  # last full block
        self._open = np.full(sequences, -1, dtype=np.int64)  # number of an open block's pieces
        self._missing = np.zeros(sequences, dtype=np.int64)  # tokens until it is full; 0: none is open
        self._numbers = self._opened = 0
        self._found: list[tuple[IntArray, IntArray, IntArray]] = []  # (sequence, first id, blocks)

    def extend(self, rows: IntArray, texts: IntArray, tokens: IntArray) -> None:
        """Append the first `tokens[i]` tokens of `texts[i]` to the sequence `rows[i]`; `rows` must be ascending."""
        missing = self._missing[rows]
        start = np.minimum(missing, tokens)
        joined = missing > 0
        if joined.any():
            mine = rows[joined]
            self._open[mine] = self._piece_ids(self._open[mine], texts[joined], start[joined])
            self._missing[mine] -= start[joined]
            self._emit(mine[self._missing[mine] == 0])
        blocks, rest = np.divmod(tokens - start, self._block_tokens)
        whole = blocks > 0
        if whole.any():
            mine = rows[whole]
            first = self._run_ids(self._parent[mine], texts[whole], start[whole])
            self._found.append((mine, first, blocks[whole]))
            self._parent[mine] = first + blocks[whole] - 1
        begun = rest > 0
        if begun.any():
            mine = rows[begun]
            self._open[mine] = self._piece_ids(
                texts[begun], rest[begun], (start + blocks * self._block_tokens)[begun]
            )
            self._missing[mine] = self._block_tokens - rest[begun]

    def close(self) -> None:
        """Assign an id to the incomplete last block of each sequence, if there is one."""
        self._emit(np.flatnonzero(self._missing))

    def runs(self) -> BlockRuns:
        count = len(self._parent)
        if not self._found:
            none = np.empty(0, dtype=np.int64)
            offsets = np.zeros(count + 1, dtype=np.int64)
            return BlockRuns(block_tokens=self._block_tokens, offsets=offsets, first_ids=none, counts=none)
        owner, first, blocks = (np.concatenate(parts) for parts in zip(*self._found))
        order = np.argsort(owner, kind="stable")
        return BlockRuns(
            block_tokens=self._block_tokens,
            offsets=np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count)))),
            first_ids=first[order],
            counts=blocks[order],
        )

    def _emit(self, rows: IntArray) -> None:
        """Add the last block of each sequence in `rows`, which consists of several segments, as a run of one block."""
        if len(rows):
            first = self._run_ids(self._parent[rows], self._open[rows])
            self._found.append((rows, first, np.ones(len(rows), dtype=np.int64)))
            self._parent[rows] = first

    def _run_ids(self, *identity: IntArray) -> IntArray:
        group, groups = _group_rows(identity)
        numbers = self._numbers + group
        self._numbers += groups
        return numbers << RUN_BITS

    def _piece_ids(self, *identity: IntArray) -> IntArray:
        group, groups = _group_rows(identity)
        numbers = self._opened + group
        self._opened += groups
        return numbers


def _group_rows(columns: Sequence[IntArray]) -> tuple[IntArray, int]:
    """Return the group number of each row of `columns`, and the number of groups; equal rows form a group."""
    group, groups = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        if groups == len(column):
            break
        if (column == column[0]).all():
            continue
        values, place = np.unique(column, return_inverse=True)
        if groups == 1:
            group, groups = place, len(values)
        else:
            values, group = np.unique(group * len(values) + place, return_inverse=True)
            groups = len(values)
    return group, groups
