/* Baseline before paging: each request reserves one contiguous region for its maximum length.
 *
 * A request may not fit although enough blocks are free, because they are not contiguous (external fragmentation).
 * Nothing is shared.
 */
#include "internal.h"

typedef struct {
    i64 start, length;
} hole;

typedef struct {
    pool pool;
    i64 reserved_blocks;
    VEC(hole) holes; /* in order, never adjacent */
    hit hit;         /* always 0 */
} contiguous_pool;

static void open_table(pool *p, table *t, i64 request)
{
    (void)p;
    t->request = request;
    t->start = t->held = 0;
}

static const hit *lookup(pool *p, table *t, i64 max_tokens)
{
    (void)t, (void)max_tokens;
    return &((contiguous_pool *)p)->hit;
}

/* The first hole that is long enough, or -1. */
static i64 first_fit(const contiguous_pool *p, i64 wanted)
{
    for (i64 i = 0; i < p->holes.count; i++)
        if (p->holes.at[i].length >= wanted)
            return i;
    return -1;
}

static i64 wanted_blocks(const contiguous_pool *p, i64 tokens)
{
    return MAX(p->reserved_blocks, ceil_div(tokens, p->pool.block_size));
}

/* Blocks to reserve; more than the pool has where no hole is long enough. */
static i64 blocks_needed(pool *pool, const table *t, i64 tokens, const hit *h, int capped)
{
    const contiguous_pool *p = (contiguous_pool *)pool;
    (void)h, (void)capped;
    if (t->held && ceil_div(tokens, pool->block_size) <= t->held)
        return 0;
    i64 wanted = wanted_blocks(p, tokens);
    return !t->held && first_fit(p, wanted) >= 0 ? wanted : pool->num_blocks + 1;
}

static void grow(pool *pool, table *t, i64 tokens, const hit *h)
{
    contiguous_pool *p = (contiguous_pool *)pool;
    (void)h;
    if (t->held)
        return;
    i64 wanted = wanted_blocks(p, tokens), at = first_fit(p, wanted);
    REQUIRE(pool->memory, at >= 0);
    hole *found = &p->holes.at[at];
    t->start = found->start;
    t->held = wanted;
    found->start += wanted;
    found->length -= wanted;
    if (!found->length)
        REMOVE_AT(&p->holes, at);
    pool->free_blocks -= wanted;
}

static void cache(pool *p, table *t, i64 tokens)
{
    (void)p, (void)t, (void)tokens; /* contents are not shared */
}

static void leave_window(pool *p, table *t, i64 processed_tokens)
{
    (void)p, (void)t, (void)processed_tokens; /* the whole region stays reserved */
}

static void release(pool *pool, table *t)
{
    contiguous_pool *p = (contiguous_pool *)pool;
    hole freed = {t->start, t->held};
    if (!t->held)
        return;
    pool->free_blocks += t->held;
    t->held = 0;
    i64 at = 0;
    while (at < p->holes.count && p->holes.at[at].start < freed.start)
        at++;
    if (at < p->holes.count && freed.start + freed.length == p->holes.at[at].start) {
        freed.length += p->holes.at[at].length;
        REMOVE_AT(&p->holes, at);
    }
    if (at > 0 && p->holes.at[at - 1].start + p->holes.at[at - 1].length == freed.start) {
        p->holes.at[at - 1].length += freed.length;
        return;
    }
    RESERVE(pool->memory, &p->holes, p->holes.count + 1);
    memmove(&p->holes.at[at + 1], &p->holes.at[at], (size_t)(p->holes.count - at) * sizeof freed);
    p->holes.at[at] = freed;
    p->holes.count++;
}

static i64 held_blocks(const pool *p, const table *t)
{
    (void)p;
    return t->held;
}

static const pool_ops OPS = {
    open_table, lookup, blocks_needed, grow, cache, leave_window, release, held_blocks, NULL, NULL, /* KV is not transferred */
};

pool *contiguous_pool_new(memory *m, const core_engine *setup)
{
    contiguous_pool *p = take_memory(m, sizeof *p);
    p->pool.ops = &OPS;
    p->pool.memory = m;
    p->pool.num_blocks = p->pool.free_blocks = setup->num_blocks;
    p->pool.block_size = setup->block_size;
    p->reserved_blocks = setup->contiguous_blocks;
    hole whole = {0, setup->num_blocks};
    PUSH(m, &p->holes, whole);
    return &p->pool;
}
