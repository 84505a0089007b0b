"""Random step shapes: consistent ones as engines make them, over all sizes."""

from __future__ import annotations

import random

from capacity.step import StepShape

DECODE_ONLY, PREFILL_ONLY, MIXED = "decode", "prefill", "mixed"


def random_shape(rng: random.Random, *, most_rows: int = 4096, window: int | None = None) -> StepShape:
    """One step: of decode rows, of prefill rows or of both; now and then without rows."""
    kind = rng.choice((DECODE_ONLY, DECODE_ONLY, PREFILL_ONLY, MIXED))
    shape = StepShape()
    if rng.random() < 0.01:
        return shape
    if kind != PREFILL_ONLY:
        shape = _with_decodes(shape, rng, most_rows, window)
    if kind != DECODE_ONLY:
        shape = _with_prefills(shape, rng, most_rows, window)
    return shape


def _size(rng: random.Random, most: int) -> int:
    """Small ones as often as large ones."""
    return max(1, int(most ** rng.random()))


def _with_decodes(shape: StepShape, rng: random.Random, most_rows: int, window: int | None) -> StepShape:
    sequences = _size(rng, min(most_rows, 1024))
    drafts = rng.choice((0, 0, 0, sequences * rng.randint(1, 8), _size(rng, 64)))
    context = sequences * _size(rng, 1 << 18) + rng.randrange(sequences)
    clipped = min(context, sequences * (window or rng.choice((128, 1024, 1 << 20))))
    return shape._replace(
        decode_sequences=sequences,
        draft_tokens=drafts,
        decode_context_tokens=context,
        decode_window_context_tokens=rng.choice((context, clipped)),
    )


def _with_prefills(shape: StepShape, rng: random.Random, most_rows: int, window: int | None) -> StepShape:
    tokens = _size(rng, most_rows)
    prompts = min(tokens, _size(rng, 16))
    context = tokens + rng.choice((0, 0, _size(rng, 1 << 20)))
    pairs = tokens * (context - tokens) + tokens * (tokens + 1) // 2
    clipped = min(pairs, tokens * (window or rng.choice((128, 1024, 1 << 20))))
    return shape._replace(
        prefill_sequences=prompts,
        prefill_tokens=tokens,
        prefill_pairs=pairs,
        prefill_context_tokens=context,
        prefill_window_pairs=rng.choice((pairs, clipped)),
        prefill_window_context_tokens=rng.choice((context, min(context, clipped))),
        prompts_completed=rng.randint(0, prompts),
    )
