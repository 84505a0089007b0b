/* Sums over the rows of a step. See shapes.py. */
#include "internal.h"

/* Pairs of one chunk whose queries attend to at most `window` tokens, including themselves. See step/shape.py. */
static i64 windowed_pairs(i64 new_tokens, i64 cached, i64 window)
{
    if (cached + new_tokens <= window)
        return new_tokens * cached + new_tokens * (new_tokens + 1) / 2;
    i64 growing = MAX(0, window - cached);
    return growing * cached + growing * (growing + 1) / 2 + (new_tokens - growing) * window;
}

void count_prefill_row(const policy *p, step *s, const row *w)
{
    shape *sums = &s->sums;
    i64 tokens = w->tokens, context = w->computed + tokens, window = p->window_tokens;
    sums->prefill_sequences++;
    sums->prefill_tokens += tokens;
    sums->prefill_pairs += tokens * w->computed + tokens * (tokens + 1) / 2;
    sums->prefill_context_tokens += context;
    sums->prompts_completed += w->yields;
    sums->prefill_window_pairs += windowed_pairs(tokens, w->computed, window);
    sums->prefill_window_context_tokens += MIN(context, window + tokens - 1);
}

void note_row(const policy *p, step *s, const row *w)
{
    PUSH(p->memory, &s->noted, w - s->rows.at);
}

/* The first row of a step that is not its request's first determines the common last delivery. */
void emit_alone(const policy *p, step *s, sequence *r)
{
    if (s->common || p->streams || r->last_token == MISSING) {
        PUSH(p->memory, &s->emitted, r);
        return;
    }
    s->common_last = r->last_token;
    s->common = 1;
    r->last_token = s->end;
}

void empty_step(step *s)
{
    s->rows.count = s->preempted.count = s->finished.count = s->emitted.count = s->ending.count = 0;
    s->noted.count = s->gone.count = 0;
    s->sums = NO_ROWS;
    s->common_last = MISSING;
    s->common = 0;
    s->slots = 1;
    s->start = s->end = s->held_ps = s->num_parts = 0;
    s->stores = MISSING;
    s->grouped = 0;
    s->group = s->group_gap_ps = 0;
}
