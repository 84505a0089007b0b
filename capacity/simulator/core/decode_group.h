/* The decode rows of a regular vLLM V1 engine, known by their sums: a step costs the same however many there are.
 *
 * While all is regular, every running request that has finished its prompt takes part in every step with one token.
 * Then the batch is its size, the sum of its contexts, how many contexts stand at each place within a block, and the
 * step at which each request ends. What is not regular (a preemption, a starved request) is spelled out, row by row,
 * for the policy itself to decide; the group forms again afterwards.
 */
#ifndef CAPACITY_DECODE_GROUP_H
#define CAPACITY_DECODE_GROUP_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

typedef struct {
    i64 at, ticket; /* clock of its last step; or from which its context fills the window */
    sequence *sequence;
} timed;
typedef VEC(timed) timed_heap;

enum { END_CLOCKS = 2048 };

typedef struct {
    memory *memory;
    pool *pool;
    i64 block_size, window; /* of the step shapes; -1: none */
    int asynchronous, visits; /* visits: members take and fill their blocks one by one, else as a sum */
    int active;
    i64 place;                /* of the clock, modulo block size */
    i64 clock;                /* decode steps that the group has been scheduled for */
    i64 size, contexts;       /* members, and the sum of the contexts of their next step */
    i64 *phases;              /* members by the clock, modulo block size, at which they need a block */
    sequence **ends;          /* members by the clock of their last step, modulo END_CLOCKS: lists */
    uint64_t ended_at[END_CLOCKS / 64]; /* which of them have anybody, as bits */
    i64 growing, growing_contexts, saturated_contexts; /* contexts clipped to the window */
    timed_heap saturations;
    sequences prefilling;     /* running requests that are not members */
    /* with visits: members by -offset modulo block size, the places within a block that need one, and who is new */
    sequences *buckets;
    VEC(i64) places;
    VEC(timed) fresh;
    sequences due;
    /* with chunks, that is with KV offload: members by where their next chunk is full, and those who lag behind */
    i64 chunk_tokens;
    sequences *chunk_buckets;
    VEC(timed) lagging;
    VEC(timed) full;          /* chunks that the next step fills: `at` tokens are known then */
} decode_group;

void group_init(decode_group *g, memory *m, const core_engine *setup, pool *p);
void group_clear(decode_group *g);
void group_join(decode_group *g, sequence *r, i64 computed, i64 clock);
void group_step(decode_group *g, sequences *ending); /* one step on; adds those whom it completes */
i64 group_steps_to_end(const decode_group *g); /* no member ends with any of so many steps */
i64 group_window_contexts(const decode_group *g);
void group_members(const decode_group *g, sequences *found); /* adds them, in no order */
void group_sort(sequences *list); /* by their places in the running list */
void group_find_due(decode_group *g);
void group_watch_chunks(decode_group *g, i64 chunk_tokens);
void group_lag(decode_group *g, sequence *r); /* a member's full chunk is to be found again before each step */
i64 group_blocks_needed(const decode_group *g); /* for its next step */
/* What the policy does for each running request, in list order; `chunks` are rows of prefilling requests. */
void group_allocate(decode_group *g, const step *chunks, const step *pending);

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif
