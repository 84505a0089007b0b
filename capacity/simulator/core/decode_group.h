/* Decode rows of a regular vLLM V1 engine, stored as sums: the cost of a step does not depend on their number.
 *
 * While everything is regular, every running request that has finished its prompt takes part in every step with one
 * token. The batch is then described by its size, the sum of its contexts, the number of contexts at each position in
 * a block, and the last step of each request. Irregular events (a preemption, a request without blocks) are expanded
 * to rows for the policy to decide; the group forms again afterwards.
 */
#ifndef CAPACITY_DECODE_GROUP_H
#define CAPACITY_DECODE_GROUP_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

typedef struct {
    i64 at, ticket; /* clock of its last step, or at which its context fills the window */
    sequence *sequence;
} timed;
typedef VEC(timed) timed_heap;

enum { END_CLOCKS = 2048 };

typedef struct {
    memory *memory;
    pool *pool;
    i64 block_size, window; /* of the step shapes; -1: none */
    int asynchronous, window_lag, visits; /* window_lag: blocks before the window wait for steps in flight; visits: members allocate and fill blocks one by one, otherwise as a sum */
    int active;
    i64 place;                /* of the clock, modulo block size */
    i64 clock;                /* decode steps that the group has been scheduled for */
    i64 size, contexts;       /* members, and the sum of the contexts of their next step */
    i64 *phases;              /* members by the clock, modulo block size, at which they need a block */
    sequence **ends;          /* members by the clock of their last step, modulo END_CLOCKS: lists */
    uint64_t ended_at[END_CLOCKS / 64]; /* bits of the lists that are not empty */
    i64 growing, growing_contexts, saturated_contexts; /* contexts clipped to the window */
    timed_heap saturations;
    sequences prefilling;     /* running requests that are not members */
    /* with visits: members by -offset modulo block size, positions in a block that need one, and new members */
    sequences *buckets;
    VEC(i64) places;
    VEC(timed) fresh;
    sequences due;
    /* with chunks (KV offload): members by the position of their next full chunk, and lagging members */
    i64 chunk_tokens;
    sequences *chunk_buckets;
    VEC(timed) lagging;
    VEC(timed) full;          /* chunks that the next step fills: `at` tokens are known then */
} decode_group;

void group_init(decode_group *g, memory *m, const core_engine *setup, pool *p);
void group_clear(decode_group *g);
void group_join(decode_group *g, sequence *r, i64 computed, i64 clock);
void group_step(decode_group *g, sequences *ending); /* advance one step; add the members that it completes */
i64 group_steps_to_end(const decode_group *g); /* no member ends within this many steps */
i64 group_window_contexts(const decode_group *g);
void group_members(const decode_group *g, sequences *found); /* adds them, in no order */
void group_sort(sequences *list); /* by their places in the running list */
void group_find_due(decode_group *g);
void group_watch_chunks(decode_group *g, i64 chunk_tokens);
void group_lag(decode_group *g, sequence *r); /* look for a member's full chunk again before each step */
i64 group_blocks_needed(const decode_group *g); /* for its next step */
/* Apply the policy's actions for each running request, in list order; `chunks` are rows of prefilling requests. */
void group_allocate(decode_group *g, const step *chunks, const step *pending);

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif
