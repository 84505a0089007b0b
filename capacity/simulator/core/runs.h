/* Runs of cached KV blocks, common to the run pool and the block pool.
 *
 * A span is a stretch of one content: a run of shared blocks, or all private blocks of a request. Every group of
 * layers has its own copies of it. A run is a stretch of one copy whose blocks have the same reference count. It is
 * split where a hit, a window or an eviction takes a part of it. Runs without references form the free queue, the
 * least recently freed first. A run loses its deepest block first, as blocks freed in reverse order would. All results
 * therefore equal those of BlockPool (kv_cache/block_pool.py), at the cost of runs instead of blocks.
 *
 * Private blocks of a request are no run while the request holds them, because no other request can hit them, and the
 * table has their number. When they are freed, they enter the queue as a nameless stretch. This becomes runs only if
 * the same request looks it up after a preemption. For most requests it is evicted without any lookup.
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
    span *span;          /* NULL: a nameless stretch, of the same blocks of several groups, group after group */
    run *before, *after; /* neighbours in the free queue; NULL: not in it */
    union {
        struct {
            run *older, *newer; /* neighbours in the span */
            run *right;         /* leads a holder to the rest, if the run was split while it was held */
        };
        struct {
            i64 request, gone;  /* blocks of the stretch that are evicted */
            int32_t group, num_groups;
        };
    };
    int32_t start, stop, references;
    uint32_t owner;      /* number of the private text; 0: a shared span */
};

/* The private text of a request, while a block of it is cached. */
typedef struct {
    i64 request, num_spans; /* of all groups, those that have runs */
    span spans[];           /* one a group */
} owner;

/* Result of a lookup: these blocks of a run. */
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
    core_rules rules;
    run queue;             /* sentinel of the free queue */
    run *unused, *last_unused;
    span *shared;          /* of key k and group g: k * num_groups + g */
    uint32_t *owner_of;    /* by request; 0: no run of its private text is cached; may include HAS_STRETCHES */
    VEC(owner *) owners;   /* by number */
    uint32_t unused_owner; /* 0: none; the next one is stored in its `request` */
    VEC(piece) pieces;     /* of the last look-up */
    VEC(run *) split;
} run_store;

#define HAS_STRETCHES ((uint32_t)1 << 31) /* there may be some in the queue */

void init_runs(run_store *s, const pool_ops *ops, memory *m, const core_engine *setup,
               const core_requests *requests, i64 num_groups);
void evict_runs(run_store *s);
i64 follow_runs(run_store *s, i64 request, i64 group, i64 limit);
i64 follow_back(run_store *s, i64 request, i64 group, i64 limit, i64 needed, i64 *start);
void take_piece(run_store *s, part_list *held, piece found);
i64 private_start(const run_store *s, i64 request);
void register_shared_runs(run_store *s, part_list *held, i64 request, i64 group, i64 start, i64 stop);
void queue_uncached(run_store *s, i64 blocks);
void free_new_stretch(run_store *s, i64 request, i64 group, i64 start, i64 stop);
void name_stretches(run_store *s, i64 request);
void drop_part(run_store *s, part held);
void drop_front(run_store *s, part_list *held, i64 stop);

/* Number of full blocks of these tokens. */
static inline i64 full_blocks(const run_store *s, i64 tokens)
{
    return s->shift >= 0 ? tokens >> s->shift : tokens / s->pool.block_size;
}

/* Number of blocks that these tokens need. */
static inline i64 blocks_of(const run_store *s, i64 tokens)
{
    return full_blocks(s, tokens + s->pool.block_size - 1);
}

/* Eviction is delayed until it makes a difference. */
static inline void settle_runs(run_store *s)
{
    if (s->evictable > s->pool.free_blocks)
        evict_runs(s);
}

/* The last holder releases a run. */
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

/* Register the content of blocks that a request holds: shareable blocks become runs. Return where they end. */
static inline i64 register_runs(run_store *s, part_list *held, i64 request, i64 group, i64 start, i64 stop)
{
    if (!s->pool.contents)
        return start;
    stop = MIN(stop, private_start(s, request));
    if (start >= stop)
        return start;
    register_shared_runs(s, held, request, group, start, stop);
    return stop;
}

/* Private blocks with content that no request holds, deepest first. */
static inline void free_stretch(run_store *s, i64 request, i64 group, i64 start, i64 stop)
{
    run *last = s->queue.before;
    i64 blocks = stop - start;
    if (blocks <= 0)
        return;
    s->pool.free_blocks += blocks;
    s->evictable += blocks;
    if (last != &s->queue && !last->span && last->request == request && last->start == start && last->stop == stop
        && last->group + last->num_groups == group && !last->gone)
        last->num_groups++;
    else
        free_new_stretch(s, request, group, start, stop);
}

/* Free blocks without content. They are reused before all blocks in the queue, or queue for reuse like these. */
static inline void free_uncached(run_store *s, i64 blocks, int first)
{
    if (blocks <= 0)
        return;
    s->pool.free_blocks += blocks;
    if (!first && s->pool.prefix_caching)
        queue_uncached(s, blocks);
}

/* Called before a request looks up cached blocks. */
static inline void find_stretches(run_store *s, i64 request)
{
    if (s->owner_of && s->owner_of[request] & HAS_STRETCHES)
        name_stretches(s, request);
}

/* Release all blocks of a request, the last one first. */
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
