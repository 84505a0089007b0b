"""Shapes of a step: sums over its rows, by brute force; and step times that pieces agree with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capacity.step import AffineStepTimes, StepShape, decode_shape, prefill_shape
from capacity.step.shape import SlowestRank, picoseconds, windowed_pairs

TOKENS = st.integers(1, 60)
CACHED = st.integers(0, 60)
WINDOW = st.none() | st.integers(1, 80)


@given(new=TOKENS, cached=CACHED, window=WINDOW)
def test_pairs_are_those_of_a_causal_mask(new: int, cached: int, window: int | None) -> None:
    seen = [min(cached + query + 1, window or 1000) for query in range(new)]
    assert windowed_pairs(new, cached, window) == sum(seen)
    assert windowed_pairs(new, cached, None) == prefill_shape(1, new, cached_tokens=cached).prefill_pairs


@given(prompts=st.integers(1, 9), first=TOKENS, second=TOKENS, cached=CACHED, window=WINDOW)
def test_chunks_add_up_to_the_prompt(
    prompts: int, first: int, second: int, cached: int, window: int | None
) -> None:
    whole = prefill_shape(prompts, first + second, cached_tokens=cached, window_tokens=window)
    chunks = [
        prefill_shape(prompts, first, cached_tokens=cached, window_tokens=window),
        prefill_shape(prompts, second, cached_tokens=cached + first, window_tokens=window),
    ]
    for name in ("prefill_tokens", "prefill_pairs", "prefill_window_pairs"):
        assert sum(getattr(chunk, name) for chunk in chunks) == getattr(whole, name)
    assert chunks[1].prefill_context_tokens == whole.prefill_context_tokens


@given(rows=st.integers(1, 500), context=st.integers(1, 10**6), window=WINDOW)
def test_a_decode_reads_its_context_or_its_window(rows: int, context: int, window: int | None) -> None:
    shape = decode_shape(rows, context, window_tokens=window)
    assert shape.num_tokens == shape.sampled_tokens == rows
    assert shape.decode_context_tokens == rows * context
    assert shape.decode_window_context_tokens == rows * min(context, window or context)


@given(rows=st.integers(1, 300), drafts=st.integers(0, 300), context=st.integers(0, 10**6))
def test_a_piece_is_the_step_it_was_asked_for(rows: int, drafts: int, context: int) -> None:
    shape = StepShape(decode_sequences=rows, draft_tokens=drafts, decode_context_tokens=context)
    times = AffineStepTimes(1e-3, 2e-6, per_context_token_s=3e-9)
    piece = times.decode_piece(shape)
    assert piece.base_ps + piece.context_ps * context == times.step_ps(shape)
    assert times.step_ps(shape) == picoseconds(1e-3) + (rows + drafts) * picoseconds(2e-6) + context * 3000


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any))
def test_ranks_wait_for_the_slowest(rows: list[int]) -> None:
    times = AffineStepTimes(1e-3, 2e-6)
    shapes = [StepShape(decode_sequences=count) for count in rows]
    assert SlowestRank(times).joint_ps(shapes) == times.step_ps(StepShape(decode_sequences=max(rows)))
