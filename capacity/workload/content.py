"""What prompts say, as far as a prefix cache can tell: which tokens of which prompts are the same.

A prompt is a sequence of *segments*. Segment `(id, n)` stands for the first n tokens of an endless text named by
the id, so two prompts share a prefix exactly as far as their segments agree. A system prompt is one segment that
many prompts begin with; an answer is a segment too, so that a later turn can repeat it; a trace's chained block
hashes are segments of one block each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from capacity.errors import InvalidInput
from capacity.workload.columns import MAX_REQUEST_TOKENS, IntArray, int_column, token_column

RUN_BITS = 24  # a run of blocks is numbered run << 24 | block: MAX_REQUEST_TOKENS one-token blocks still fit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptContent:
    """Segments of every prompt, one after another: request i owns `offsets[i]:offsets[i + 1]`.

    `answer_ids[i]` names the text that request i's output tokens are the beginning of.
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

    @classmethod
    def from_segments(
        cls,
        prompts: Sequence[Iterable[tuple[int, int]]],
        *,
        answer_ids: Sequence[int] | IntArray | None = None,
    ) -> PromptContent:
        """Content of `prompts`, each its (id, tokens) segments; without `answer_ids`, no answer is ever repeated."""
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
        """Tokens of each prompt: the sum over its segments."""
        return np.add.reduceat(self.segment_tokens, self.offsets[:-1]) if len(self) else self.segment_tokens

    def segments_of(self, request: int) -> list[tuple[int, int]]:
        """The (id, tokens) segments of one prompt."""
        mine = slice(int(self.offsets[request]), int(self.offsets[request + 1]))
        return list(zip(self.segment_ids[mine].tolist(), self.segment_tokens[mine].tolist()))

    def take(self, order: IntArray) -> PromptContent:
        """The content of the requests `order`, in that order."""
        counts = np.diff(self.offsets)[order]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        picked = np.repeat(self.offsets[:-1][order] - offsets[:-1], counts) + np.arange(int(offsets[-1]))
        return PromptContent(
            offsets=offsets,
            segment_ids=self.segment_ids[picked],
            segment_tokens=self.segment_tokens[picked],
            answer_ids=self.answer_ids[order],
        )

    def clipped(self, prompt_tokens: IntArray) -> PromptContent:
        """The first `prompt_tokens[i]` tokens of every prompt i; none may be longer than the prompt is."""
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
        """Identities of the full blocks of `block_tokens` tokens of every prompt.

        With `output_tokens`, blocks reach on over the answer, as an engine's cache does while it decodes.
        With `partial`, an unfilled last block has an identity too: that of its tokens so far.
        """
        return _block_runs(self, block_tokens, output_tokens, partial=partial)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockRuns:
    """Chained block identities: equal ids mean equal tokens from the first block of the prompt through this one.

    Request i has the runs `offsets[i]:offsets[i + 1]`; run r is the blocks `first_ids[r], first_ids[r] + 1, ...`,
    `counts[r]` of them. Only full blocks have an identity, unless partial ones were asked for.
    """

    block_tokens: int
    offsets: IntArray
    first_ids: IntArray
    counts: IntArray

    def runs_of(self, request: int) -> list[tuple[int, int]]:
        """(first id, count) of each run of one request."""
        mine = slice(int(self.offsets[request]), int(self.offsets[request + 1]))
        return list(zip(self.first_ids[mine].tolist(), self.counts[mine].tolist()))

    def ids_of(self, request: int) -> list[int]:
        """The identity of each full block of one request."""
        return [block for first, count in self.runs_of(request) for block in range(first, first + count)]


def fresh_ids(used: Iterable[int] | IntArray, count: int) -> IntArray:
    """`count` segment ids that do not occur in `used`."""
    taken = np.asarray(used if isinstance(used, np.ndarray) else list(used), dtype=np.int64)
    first = int(taken.max()) + 1 if taken.size else 0
    return np.arange(first, first + count, dtype=np.int64)


def _block_runs(
    content: PromptContent, block_tokens: int, output_tokens: IntArray | None, *, partial: bool
) -> BlockRuns:
    if not 1 <= block_tokens <= MAX_REQUEST_TOKENS:
        raise InvalidInput(f"block_tokens must be from 1 to {MAX_REQUEST_TOKENS}, not {block_tokens}")
    numbers: dict[tuple[int, object, int], int] = {}
    ids = content.segment_ids.tolist()
    tokens = content.segment_tokens.tolist()
    bounds = content.offsets.tolist()
    answers = content.answer_ids.tolist()
    answer_tokens = [0] * len(content) if output_tokens is None else output_tokens.tolist()
    firsts: list[int] = []
    counts: list[int] = []
    offsets = [0]
    for request, (begin, end) in enumerate(pairwise(bounds)):
        segments = list(zip(ids[begin:end], tokens[begin:end]))
        if answer_tokens[request]:
            segments.append((answers[request], answer_tokens[request]))
        for first, count in _runs_of_segments(segments, block_tokens, numbers, partial=partial):
            firsts.append(first)
            counts.append(count)
        offsets.append(len(firsts))
    return BlockRuns(
        block_tokens=block_tokens,
        offsets=np.asarray(offsets, dtype=np.int64),
        first_ids=np.asarray(firsts, dtype=np.int64),
        counts=np.asarray(counts, dtype=np.int64),
    )


def _runs_of_segments(
    segments: list[tuple[int, int]],
    block_tokens: int,
    numbers: dict[tuple[int, object, int], int],
    *,
    partial: bool,
) -> list[tuple[int, int]]:
    """Runs of one token sequence. A run's number is that of (block before it, text, where in the text it begins)."""
    runs: list[tuple[int, int]] = []
    parent = -1
    open_pieces: list[tuple[int, int]] = []  # of the block that spans segments: (text, tokens)
    open_start = 0  # where in its first text that block begins
    missing = 0  # tokens until that block is full
    for text, length in segments:
        start = 0
        if missing:
            start = min(missing, length)
            open_pieces.append((text, start))
            missing -= start
            if missing:
                continue
            number = numbers.setdefault((parent, tuple(open_pieces), open_start), len(numbers))
            parent = number << RUN_BITS
            runs.append((parent, 1))
        blocks, rest = divmod(length - start, block_tokens)
        if blocks:
            first = numbers.setdefault((parent, text, start), len(numbers)) << RUN_BITS
            runs.append((first, blocks))
            parent = first + blocks - 1
        if rest:
            open_pieces = [(text, rest)]
            open_start = start + blocks * block_tokens
            missing = block_tokens - rest
    if partial and missing:
        number = numbers.setdefault((parent, tuple(open_pieces), open_start), len(numbers))
        runs.append((number << RUN_BITS, 1))
    return runs
