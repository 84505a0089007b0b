/* Paged KV cache of one group of layers with full attention, run by run instead of block by block.
 *
 * A table has `held` blocks. The first `cached` of them have content, and the first `named` of those are parts of
 * runs. Blocks with KV of another engine are held before the request runs: it hits `loaded` tokens until they are
 * released.
 */
#include "run_pool.h"
#include "runs.h"

typedef struct {
    run_store runs;
    hit hit;
} run_pool;

void run_pool_open(pool *p, table *t, i64 request)
{
    (void)p;
    t->request = request;
    t->held = t->cached = t->named = t->loaded = 0;
    t->parts.count = 0;
}

/* look-up */

static const hit *find_prefix(run_pool *p, const table *t, i64 max_tokens)
{
    run_store *s = &p->runs;
    settle_runs(s);
    s->pieces.count = 0;
    find_stretches(s, t->request);
    i64 limit = s->pool.prefix_caching && max_tokens > 0 ? full_blocks(s, max_tokens) : 0;
    p->hit.tokens = limit ? follow_runs(s, t->request, 0, limit) * s->pool.block_size : 0;
    return &p->hit;
}

const hit *run_pool_lookup(pool *pool, table *t, i64 max_tokens)
{
    run_pool *p = (run_pool *)pool;
    if (!t->loaded)
        return find_prefix(p, t, max_tokens);
    p->runs.pieces.count = 0;
    p->hit.tokens = MIN(t->loaded, max_tokens);
    return &p->hit;
}

/* allocation */

i64 run_pool_blocks_needed(pool *pool, const table *t, i64 tokens, const hit *h, int capped)
{
    run_store *s = &((run_pool *)pool)->runs;
    (void)capped;
    i64 needed = blocks_of(s, tokens) - t->held, evictable = 0;
    for (i64 i = 0; h && i < s->pieces.count; i++) {
        piece found = s->pieces.at[i];
        needed -= found.stop - found.start;
        if (found.run->references == 0)
            evictable += found.stop - found.start;
    }
    return MAX(needed, 0) + evictable;
}

static void take_hit(run_store *s, table *t)
{
    if (!s->pieces.count)
        return;
    for (i64 i = 0; i < s->pieces.count; i++) {
        piece found = s->pieces.at[i];
        take_piece(s, &t->parts, found);
        t->held += found.stop - found.start;
    }
    s->pieces.count = 0;
    t->cached = t->named = t->held;
}

void run_pool_grow(pool *pool, table *t, i64 tokens, const hit *h)
{
    run_store *s = &((run_pool *)pool)->runs;
    if (h && !t->loaded)
        take_hit(s, t);
    i64 added = blocks_of(s, tokens) - t->held;
    if (added > 0) {
        t->held += added;
        pool->free_blocks -= added;
    }
}

void run_pool_cache(pool *pool, table *t, i64 tokens)
{
    run_store *s = &((run_pool *)pool)->runs;
    i64 full = full_blocks(s, tokens);
    if (full <= t->cached || !pool->prefix_caching)
        return;
    if (t->named == t->cached)
        t->named = register_runs(s, &t->parts, t->request, 0, t->named, full);
    t->cached = full;
}

static void leave_window(pool *p, table *t, i64 processed_tokens)
{
    (void)p, (void)t, (void)processed_tokens; /* full attention uses every token */
}

/* release */

void run_pool_release(pool *pool, table *t)
{
    run_store *s = &((run_pool *)pool)->runs;
    settle_runs(s);
    free_uncached(s, t->held - t->cached, s->rules.reuses_uncached_first != 0);
    free_stretch(s, t->request, 0, t->named, t->cached);
    drop_parts(s, &t->parts);
    t->held = t->cached = t->named = t->loaded = 0;
}

void run_pool_finish(pool *pool, table *t, i64 tokens)
{
    t->held = blocks_of(&((run_pool *)pool)->runs, tokens);
    run_pool_cache(pool, t, tokens);
    run_pool_release(pool, t);
}

static i64 held_blocks(const pool *p, const table *t)
{
    (void)p;
    return t->held;
}

/* KV computed elsewhere */

static int load(pool *pool, table *t, i64 tokens)
{
    const hit *h = find_prefix((run_pool *)pool, t, tokens);
    if (run_pool_blocks_needed(pool, t, tokens, h, 0) > pool->free_blocks)
        return 0;
    t->loaded = 0;
    run_pool_grow(pool, t, tokens, h);
    t->loaded = tokens;
    return 1;
}

static int hold_computed(pool *pool, table *t, i64 tokens, const hit *h)
{
    if (run_pool_blocks_needed(pool, t, tokens, h, 0) > pool->free_blocks)
        return 0;
    run_pool_grow(pool, t, tokens, h);
    return 1;
}

static const pool_ops OPS = {
    run_pool_open, run_pool_lookup, run_pool_blocks_needed, run_pool_grow, run_pool_cache, leave_window,
    run_pool_release, held_blocks, load, hold_computed,
};

pool *run_pool_new(memory *m, const core_engine *setup, const core_requests *requests)
{
    run_pool *p = take_memory(m, sizeof *p);
    init_runs(&p->runs, &OPS, m, setup, requests, 1);
    return &p->runs.pool;
}
