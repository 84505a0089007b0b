/* Runs of cached KV blocks: what the run pool and the block pool share.
 *
 * A span is a stretch of one content: a run of shared blocks, or all that is private to a request; every
 * group of layers has its own copies of it. A run is a stretch of one copy whose blocks have the same
 * reference count. It is split where a hit, a window or an eviction takes a part of it. Runs without
 * references form the free queue, least recently freed first; a run gives up its deepest block first, as
 * blocks freed tail first would. So all answers are those of BlockPool (kv_cache/block_pool.py), at the cost
 * of runs instead of blocks.
 */
#ifndef CAPACITY_RUNS_H
#define CAPACITY_RUNS_H

#include "internal.h"

typedef struct run run;

/* The cached copies of a span, first cached first. */
typedef struct {
    run *first, *last;
} span;

/* Blocks `start` to `stop` of a request's table. */
struct run {
    span *span;
    run *before, *after; /* neighbours in the free queue; NULL: not in it */
    run *older, *newer;  /* neighbours in the span */
    run *right;          /* leads a holder on to the rest, if the run was split while it was held */
    int32_t start, stop, references;
    uint32_t owner;      /* number of the private text; 0: a shared span */
};

/* The private text of a request, while a block of it is cached. */
typedef struct {
    i64 request, num_spans; /* of all groups, those that have runs */
    span spans[];           /* one a group */
} owner;

/* What a look-up finds: these blocks of a run. */
typedef struct {
    run *run;
    i64 start, stop;
} piece;

/* A pool whose cached blocks are runs. */
typedef struct {
    pool pool;
    i64 num_groups;
    int shift;             /* blocks have 2^shift tokens; -1: not a power of two */
    i64 evictable;         /* blocks in the queue; the other free blocks have no content */
    run queue;             /* sentinel of the free queue */
    run *unused;
    span *shared;          /* of key k and group g: k * num_groups + g */
    uint32_t *owner_of;    /* of every request; 0: nothing private of it is cached */
    VEC(owner *) owners;   /* by number */
    uint32_t unused_owner; /* 0: none; the next one stands in its `request` */
    VEC(piece) pieces;     /* of the last look-up */
    VEC(run *) split;
} run_store;

void init_runs(run_store *s, const pool_ops *ops, memory *m, const core_engine *setup,
               const core_requests *requests, i64 num_groups);
void evict_runs(run_store *s);
i64 follow_runs(run_store *s, i64 request, i64 group, i64 limit);
i64 follow_back(run_store *s, i64 request, i64 group, i64 limit, i64 needed, i64 *start);
void take_piece(run_store *s, part_list *held, piece found);
void register_new_runs(run_store *s, part_list *held, i64 request, i64 group, i64 start, i64 stop);
void drop_part(run_store *s, part held);
void drop_front(run_store *s, part_list *held, i64 stop);

/* Whole blocks in so many tokens. */
static inline i64 full_blocks(const run_store *s, i64 tokens)
{
    return s->shift >= 0 ? tokens >> s->shift : tokens / s->pool.block_size;
}

/* Blocks that so many tokens take. */
static inline i64 blocks_of(const run_store *s, i64 tokens)
{
    return full_blocks(s, tokens + s->pool.block_size - 1);
}

/* Eviction is put off until it can make a difference. */
static inline void settle_runs(run_store *s)
{
    if (s->evictable > s->pool.free_blocks)
        evict_runs(s);
}

/* The last holder lets go of a run. */
static inline void free_run(run_store *s, run *r)
{
    i64 size = r->stop - r->start;
    r->references = 0;
    s->pool.free_blocks += size;
    s->evictable += size;
    run *last = s->queue.before;
    last->after = r;
    r->before = last;
    r->after = &s->queue;
    s->queue.before = r;
}

static inline void drop_run(run_store *s, run *r)
{
    if (r->references > 1)
        r->references--;
    else
        free_run(s, r);
}

/* Whether the last run that a request holds can take in the blocks behind it: no copy is newer than it is. */
static inline int ends_in(const part_list *held, i64 block)
{
    if (!held->count)
        return 0;
    const run *last = held->at[held->count - 1].run;
    return last->stop == block && last->references == 1 && !last->newer;
}

/* Blocks that a request holds get their content, so that others can hit them. */
static inline void register_runs(run_store *s, part_list *held, i64 request, i64 group, i64 start, i64 stop)
{
    if (ends_in(held, start) && held->at[held->count - 1].run->owner && stop <= INT32_MAX) {
        part *last = &held->at[held->count - 1]; /* of its private text */
        last->run->stop = (int32_t)stop;
        last->stop = stop;
    } else {
        register_new_runs(s, held, request, group, start, stop);
    }
}

/* Drops all that a request holds, tail first. */
static inline void drop_parts(run_store *s, part_list *held)
{
    for (i64 i = held->count - 1; i >= 0; i--) {
        part last = held->at[i];
        if (last.run->stop < last.stop)
            drop_part(s, last);
        else
            drop_run(s, last.run);
    }
    held->count = 0;
}

#endif
