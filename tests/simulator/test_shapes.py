"""A step's sums from its rows, against the same sums term by term."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.simulator.schedulers import Row, Sequence
from capacity.simulator.shapes import sum_rows

PROMPT = 12
ROWS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), max_size=8)


def rows(sizes: list[tuple[int, int]]) -> list[Row]:
    """Rows of `tokens` after `computed`; those past the prompt decode one token."""
    sequence = Sequence(0, id=0, arrival=0, prompt_tokens=PROMPT, max_known=99, priority=0, table=None)
    return [
        Row(sequence, 1 if computed >= PROMPT else tokens, computed, 0, True, 0) for tokens, computed in sizes
    ]


@given(ROWS, st.one_of(st.none(), st.integers(1, 20)))
def test_attended_pairs_are_those_of_each_token(sizes: list[tuple[int, int]], window: int | None) -> None:
    """A token at position p attends to p + 1 tokens, or to the window's, whatever its row."""
    shape = sum_rows(rows(sizes), window)
    reach = 10**9 if window is None else window
    prefills = [row for row in rows(sizes) if row.computed < PROMPT]
    positions = [row.computed + token for row in prefills for token in range(row.tokens)]
    assert shape.prefill_tokens == len(positions)
    assert shape.prefill_pairs == sum(position + 1 for position in positions)
    assert shape.prefill_window_pairs == sum(min(position + 1, reach) for position in positions)
    assert shape.num_tokens == sum(row.tokens for row in rows(sizes))


def test_drafts_are_decode_tokens() -> None:
    sequence = Sequence(0, id=0, arrival=0, prompt_tokens=4, max_known=99, priority=0, table=None)
    shape = sum_rows([Row(sequence, 4, 10, 3, True, 0)])
    assert (shape.decode_sequences, shape.num_tokens) == (1, 4)
    assert shape.decode_context_tokens == pytest.approx(14)
