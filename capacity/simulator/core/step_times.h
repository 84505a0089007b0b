/* How long steps take: the step model as data. Filled by Python (capacity.step), evaluated here in the same order of
 * operations, with one rounding to whole picoseconds, so that every time equals Python's. */
#ifndef CAPACITY_STEP_TIMES_H
#define CAPACITY_STEP_TIMES_H

#include "core.h"

/* The fields of capacity.step.StepShape, in order. */
typedef struct {
    i64 prefill_sequences, prefill_tokens, prefill_pairs, prefill_context_tokens;
    i64 prefill_window_pairs, prefill_window_context_tokens, prompts_completed;
    i64 decode_sequences, draft_tokens, decode_context_tokens, decode_window_context_tokens;
} shape;

/* The straight line on which decode steps of one size lie, up to its limits (inclusive; NEVER: none). */
typedef struct {
    i64 base_ps, context_ps, window_context_ps, max_context_tokens, max_window_context_tokens;
} decode_line;

i64 step_ps(step_times *t, const shape *s);                       /* at least 1; -1: the callback failed */
i64 joint_ps(step_times *t, const shape *shapes, i64 count);      /* of data-parallel ranks, together */
int decode_piece(step_times *t, const shape *s, decode_line *out); /* 0: no line: ask for each step */

#endif
