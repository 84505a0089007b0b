"""Prompt content: blocks are equal exactly where their tokens are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_workloads import tokens_of

from capacity.base.errors import InvalidInput
from capacity.workload import PromptContent

FEW = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 4)), min_size=1, max_size=4
)  # texts that often coincide


SEGMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5)


@example(prompts=[[(1, 2), (0, 6)], [(1, 2), (0, 2), (0, 4)]], block_tokens=4, partial=False, answer_tokens=0)
@example(
    prompts=[[(1, 2), (0, 4), (1, 2)], [(1, 2), (0, 2), (0, 2), (1, 2)]],
    block_tokens=4,
    partial=False,
    answer_tokens=0,
)
@example(prompts=[[(0, 1)], [(0, 1)]], block_tokens=2, partial=True, answer_tokens=0)
@given(
    prompts=st.lists(FEW | SEGMENTS, min_size=1, max_size=8),
    block_tokens=st.integers(1, 4) | st.integers(1, 7),
    partial=st.booleans(),
    answer_tokens=st.integers(0, 8),
)
def test_blocks_are_equal_exactly_where_all_tokens_through_them_are(
    prompts: list[list[tuple[int, int]]], block_tokens: int, partial: bool, answer_tokens: int
) -> None:
    answer_ids = [row % 4 for row in range(len(prompts))]
    content = PromptContent.from_segments(prompts, answer_ids=answer_ids)
    answers = np.full(len(prompts), answer_tokens)
    blocks = content.block_runs(block_tokens, output_tokens=answers, partial=partial)
    prefix_of_id: dict[int, tuple[tuple[int, int], ...]] = {}
    id_of_prefix: dict[tuple[tuple[int, int], ...], int] = {}
    for row, prompt in enumerate(prompts):
        tokens = tokens_of([*prompt, (answer_ids[row], answer_tokens)])
        ids = blocks.request_block_ids(row)
        assert len(ids) == (-(-len(tokens) // block_tokens) if partial else len(tokens) // block_tokens)
        for index, block in enumerate(ids):
            prefix = tuple(tokens[: (index + 1) * block_tokens])
            assert prefix_of_id.setdefault(block, prefix) == prefix
            assert id_of_prefix.setdefault(prefix, block) == block


@given(prompts=st.lists(SEGMENTS, min_size=1, max_size=6), data=st.data())
def test_parts_of_content(prompts: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    content = PromptContent.from_segments(prompts)
    lengths = [sum(length for _, length in prompt) for prompt in prompts]
    assert content.prompt_tokens.tolist() == lengths
    order = data.draw(st.lists(st.sampled_from(range(len(prompts))), min_size=1, max_size=8))
    taken = content.take(np.asarray(order))
    assert [taken.request_segments(row) for row in range(len(order))] == [prompts[row] for row in order]
    kept = [data.draw(st.integers(1, length)) for length in lengths]
    clipped = content.clip(np.asarray(kept))
    for row, prompt in enumerate(prompts):
        assert tokens_of(clipped.request_segments(row)) == tokens_of(prompt)[: kept[row]]


def test_fresh_answers_are_shared_with_nobody() -> None:
    content = PromptContent.from_segments([[(5, 16)], [(5, 16)]])
    first, second = (
        content.block_runs(16, output_tokens=np.asarray([16, 16])).request_block_ids(row) for row in (0, 1)
    )
    assert first[0] == second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"offsets": np.asarray([0, 2])}, "offsets must rise"),
        ({"offsets": np.asarray([1, 1])}, "offsets must rise"),
        ({"offsets": np.asarray([0])}, "offsets has 1 values for 2"),
        ({"segment_tokens": np.asarray([0])}, "segment_tokens of request 0 is below 1"),
        ({"segment_tokens": np.asarray([1, 2])}, "has 2 values for 1"),
    ],
)
def test_content_is_checked(changes: dict[str, np.ndarray], part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(PromptContent.from_segments([[(0, 5)]]), **changes)
    assert part in str(caught.value)


def test_block_size_is_checked() -> None:
    with pytest.raises(InvalidInput, match="block_tokens must be"):
        PromptContent.from_segments([[(0, 5)]]).block_runs(0)
