/* Sums over the rows of a step. See shapes.py. */
#include "internal.h"

/* Pairs of one chunk whose queries see at most `window` tokens, themselves included. See step/shape.py. */
i64 windowed_pairs(i64 new_tokens, i64 cached, i64 window)
{
    if (cached + new_tokens <= window)
        return new_tokens * cached + new_tokens * (new_tokens + 1) / 2;
    i64 growing = MAX(0, window - cached);
    return growing * cached + growing * (growing + 1) / 2 + (new_tokens - growing) * window;
}

void empty_step(step *s)
{
    s->rows.count = s->preempted.count = s->finished.count = s->emitted.count = s->ending.count = 0;
    s->noted.count = s->gone.count = 0;
    s->sums = (shape){0};
    s->common_last = MISSING;
    s->common = 0;
    s->start = s->end = s->held_ps = s->num_parts = 0;
    s->stores = MISSING;
    s->grouped = 0;
    s->group = s->group_gap_ps = 0;
}
