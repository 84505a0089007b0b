/* Parts of the core without a fleet around them, for their own tests. */
#include <stdlib.h>

#include "gaps.h"
#include "internal.h"
#include "work.h"

memory *alone_new(void);
void alone_free(memory *m);
gaps *alone_gaps(memory *m);
work *alone_work(memory *m);
int alone_exhaust(memory *m, int larger);
int alone_gaps_add(memory *m, gaps *g, const i64 *entries, i64 count);
int alone_work_steps(memory *m, work *w, const i64 *steps, i64 count);

memory *alone_new(void) { return calloc(1, sizeof(memory)); }

void alone_free(memory *m)
{
    free_all_memory(m);
    free(m);
}

gaps *alone_gaps(memory *m) { return setjmp(m->on_error) ? NULL : gaps_new(m); }

work *alone_work(memory *m) { return setjmp(m->on_error) ? NULL : work_new(m); }

/* Take more memory than there is, or enlarge some to that; an error or OK. */
int alone_exhaust(memory *m, int larger)
{
    if (setjmp(m->on_error))
        return m->error;
    resize_memory(m, larger ? take_memory(m, 8) : NULL, 8, SIZE_MAX);
    return OK;
}

/* Pairs of a gap and how often; an error or OK. */
int alone_gaps_add(memory *m, gaps *g, const i64 *entries, i64 count)
{
    if (setjmp(m->on_error))
        return m->error;
    for (i64 i = 0; i < count; i++)
        gaps_add(g, entries[2 * i], entries[2 * i + 1]);
    return OK;
}

/* A shape, its duration and what it was held; an error or OK. */
int alone_work_steps(memory *m, work *w, const i64 *steps, i64 count)
{
    const i64 width = sizeof(shape) / sizeof(i64) + 2;
    if (setjmp(m->on_error))
        return m->error;
    for (i64 i = 0; i < count; i++) {
        const i64 *step = steps + i * width;
        work_step(w, (const shape *)step, step[width - 2], step[width - 1]);
    }
    return OK;
}
