/* From the rows of a step to its sufficient statistics. See shapes.py. */
#include "engine.h"

/* Pairs of one chunk whose queries see at most `window` tokens, themselves included. See step/shape.py. */
static i64 windowed_pairs(i64 new_tokens, i64 cached, i64 window)
{
    if (cached + new_tokens <= window)
        return new_tokens * cached + new_tokens * (new_tokens + 1) / 2;
    i64 growing = MAX(0, window - cached);
    return growing * cached + growing * (growing + 1) / 2 + (new_tokens - growing) * window;
}

void sum_rows(const step *s, i64 window, shape *out)
{
    shape sums = {0};
    sums.decode_sequences = s->group;
    sums.decode_context_tokens = s->group_contexts;
    sums.decode_window_context_tokens = s->group_window_contexts;
    for (i64 i = 0; i < s->rows.count; i++) {
        const row *w = &s->rows.at[i];
        i64 context = w->computed + w->tokens;
        if (w->tokens - w->drafts == 1 && w->computed >= w->sequence->prompt_tokens) {
            sums.decode_sequences++;
            sums.draft_tokens += w->drafts;
            sums.decode_context_tokens += context;
            sums.decode_window_context_tokens += window < 0 ? context : MIN(context, window);
        } else if (w->tokens) {
            sums.prefill_sequences++;
            sums.prefill_tokens += w->tokens;
            sums.prefill_pairs += w->tokens * w->computed + w->tokens * (w->tokens + 1) / 2;
            sums.prefill_context_tokens += context;
            sums.prompts_completed += w->yields;
            if (window >= 0) {
                sums.prefill_window_pairs += windowed_pairs(w->tokens, w->computed, window);
                sums.prefill_window_context_tokens += MIN(context, window + w->tokens - 1);
            }
        }
    }
    if (window < 0) {
        sums.prefill_window_pairs = sums.prefill_pairs;
        sums.prefill_window_context_tokens = sums.prefill_context_tokens;
    }
    *out = sums;
}
