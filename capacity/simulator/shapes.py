"""Sums over the rows of a step (requests with their tokens), which determine the step's time (`StepShape`)."""

from collections.abc import Sequence

from capacity.simulator.schedulers import Row, Step
from capacity.simulator.schedulers.encoding import is_audio
from capacity.step import StepShape, windowed_pairs


def sum_rows(rows: Sequence[Row], window_tokens: int | None = None) -> StepShape:
    """Return the `StepShape` of these rows; `window_tokens` is the attention window of windowed layers.

    A row is a decode if its prompt is computed and it computes one token plus its drafts; all other rows are prefill.
    """
    p_seqs = p_tokens = p_pairs = p_context = p_window_pairs = p_window_context = completed = 0
    d_seqs = d_drafts = d_context = d_window = 0
    for sequence, tokens, computed, drafts, yields, _, _ in rows:
        context = computed + tokens
        if computed >= sequence.prompt_tokens and tokens - drafts == 1:
            d_seqs += 1
            d_drafts += drafts
            d_context += context
            if window_tokens is not None:
                d_window += min(context, window_tokens)
        elif tokens:
            p_seqs += 1
            p_tokens += tokens
            p_pairs += tokens * computed + tokens * (tokens + 1) // 2
            p_context += context
            completed += yields
            if window_tokens is not None:
                p_window_pairs += windowed_pairs(tokens, computed, window_tokens)
                p_window_context += min(context, window_tokens + tokens - 1)
    if window_tokens is None:
        p_window_pairs, p_window_context, d_window = p_pairs, p_context, d_context
    return StepShape(
        p_seqs, p_tokens, p_pairs, p_context, p_window_pairs, p_window_context, completed,
        d_seqs, d_drafts, d_context, d_window,
    )  # fmt: skip


def sum_step(step: Step, window_tokens: int | None = None) -> StepShape:
    """Return the `StepShape` of a step, including the images that it encodes."""
    shape = sum_rows(step.rows, window_tokens)
    if not step.encoded:
        return shape
    images = [r.image_tokens for r, image in step.encoded if not is_audio(r, image)]
    clips = [r.audio_tokens for r, image in step.encoded if is_audio(r, image)]
    return shape._replace(
        encoder_tokens=sum(images),
        encoder_pairs=sum(size * size for size in images),
        audio_tokens=sum(clips),
        audio_pairs=sum(size * size for size in clips),
    )
