/* Paged KV cache whose blocks are shared by groups of layers, some of them with a sliding window.
 *
 * All groups have one position in the table per block of the request. A windowed group has no block at the positions
 * before `first`, because no later token attends to them. Positions with content before `named` are parts of runs.
 */
#include "runs.h"

struct group {
    i64 first, cached; /* positions from `first` on have blocks; those before `cached` (or the table's) have content */
    i64 named;
    part_list parts;   /* from `first` to `named` */
};

typedef struct {
    i64 start, stop;  /* its cached blocks */
    i64 begin, end;   /* pieces of these blocks */
} group_hit;

typedef struct {
    run_store runs;
    i64 *windows;     /* -1: full attention */
    i64 *window_caps; /* blocks; -1: none */
    hit hit;
    group_hit *hits;
} block_pool;

static void open_table(pool *pool, table *t, i64 request)
{
    i64 num_groups = ((block_pool *)pool)->runs.num_groups;
    if (!t->groups)
        t->groups = take_memory(pool->memory, (size_t)num_groups * sizeof *t->groups);
    t->request = request;
    t->held = t->cached = t->loaded = t->leaves_at = 0;
    for (i64 g = 0; g < num_groups; g++) {
        t->groups[g].first = t->groups[g].cached = t->groups[g].named = 0;
        t->groups[g].parts.count = 0;
    }
}

/* look-up */

static const hit *find_prefix(block_pool *p, const table *t, i64 max_tokens)
{
    run_store *s = &p->runs;
    settle_runs(s);
    s->pieces.count = 0;
    find_stretches(s, t->request);
    i64 length = s->pool.prefix_caching && max_tokens > 0 ? full_blocks(s, max_tokens) : 0;
    for (i64 g = 0; g < s->num_groups; g++) {
        group_hit *h = &p->hits[g];
        h->begin = s->pieces.count;
        h->start = 0;
        if (length && p->windows[g] < 0)
            length = follow_runs(s, t->request, g, length);
        else if (length)
            length = follow_back(s, t->request, g, length, blocks_of(s, p->windows[g] - 1), &h->start);
        h->end = s->pieces.count;
    }
    for (i64 g = 0; g < s->num_groups; g++)
        p->hits[g].stop = length;
    p->hit.tokens = length * s->pool.block_size;
    return &p->hit;
}

static const hit *lookup(pool *pool, table *t, i64 max_tokens)
{
    block_pool *p = (block_pool *)pool;
    if (!t->loaded)
        return find_prefix(p, t, max_tokens);
    memset(p->hits, 0, (size_t)p->runs.num_groups * sizeof *p->hits);
    p->hit.tokens = MIN(t->loaded, max_tokens);
    return &p->hit;
}

/* A piece within the positions from `start` to `stop`; empty: start = stop. */
static piece clip(piece found, i64 start, i64 stop)
{
    found.start = MAX(found.start, start);
    found.stop = MAX(MIN(found.stop, stop), found.start);
    return found;
}

/* Blocks of a group's hit that are free now. */
static i64 evictable_blocks(const block_pool *p, const group_hit *h)
{
    i64 evictable = 0;
    for (i64 i = h->begin; i < h->end; i++) {
        piece found = clip(p->runs.pieces.at[i], h->start, h->stop);
        if (found.run->references == 0)
            evictable += found.stop - found.start;
    }
    return evictable;
}

/* allocation */

static i64 blocks_needed(pool *pool, const table *t, i64 tokens, const hit *h, int capped)
{
    const block_pool *p = (block_pool *)pool;
    i64 required = blocks_of(&p->runs, tokens), needed = 0;
    if (!h && !capped)
        return MAX(required - t->held, 0) * p->runs.num_groups;
    for (i64 g = 0; g < p->runs.num_groups; g++) {
        i64 cap = p->window_caps[g], held = t->held;
        i64 most = capped && cap >= 0 ? MIN(required, cap) : required;
        if (h) {
            held += p->hits[g].stop;
            needed += evictable_blocks(p, &p->hits[g]);
        }
        needed += MAX(most - held, 0);
    }
    return needed;
}

static void take_hit(block_pool *p, table *t)
{
    for (i64 g = 0; g < p->runs.num_groups; g++) {
        const group_hit *h = &p->hits[g];
        struct group *group = &t->groups[g];
        group->first = group->cached = group->named = h->stop;
        for (i64 i = h->begin; i < h->end; i++) {
            piece found = clip(p->runs.pieces.at[i], h->start, h->stop);
            if (found.start == found.stop)
                continue;
            group->first = MIN(group->first, found.start);
            take_piece(&p->runs, &group->parts, found);
        }
    }
}

static void grow(pool *pool, table *t, i64 tokens, const hit *h)
{
    block_pool *p = (block_pool *)pool;
    if (h && h->tokens && !t->loaded) {
        take_hit(p, t);
        t->held = p->hits[0].stop;
    }
    i64 added = blocks_of(&p->runs, tokens) - t->held;
    if (added > 0) {
        t->held += added;
        pool->free_blocks -= added * p->runs.num_groups;
    }
}

/* The position where the content of a group's blocks ends. */
static i64 content_end(const table *t, const struct group *group)
{
    return MAX(t->cached, group->cached);
}

static void cache(pool *pool, table *t, i64 tokens)
{
    run_store *s = &((block_pool *)pool)->runs;
    i64 full = full_blocks(s, tokens), before = t->cached;
    if (full <= before || !pool->prefix_caching)
        return;
    t->cached = full;
    if (!pool->contents || before >= private_start(s, t->request))
        return;
    for (i64 g = 0; g < s->num_groups; g++) {
        struct group *group = &t->groups[g];
        i64 start = MAX(MAX(before, group->cached), group->first);
        if (start < full)
            group->named = register_runs(s, &group->parts, t->request, g, start, full);
    }
}

/* release */

/* Whether the freed blocks without content of a group are reused first. */
static int uncached_first(const run_store *s, i64 g)
{
    int windowed = ((const block_pool *)s)->windows[g] >= 0;
    return (windowed ? s->rules.reuses_uncached_window_first : s->rules.reuses_uncached_first) != 0;
}

/* Free the positions before `stop`, from the first that has a block, the last one first. */
static void leave_blocks(run_store *s, const table *t, i64 g, i64 stop)
{
    struct group *group = &t->groups[g];
    i64 content = content_end(t, group), named = MAX(group->named, group->first);
    free_uncached(s, stop - MAX(group->first, content), uncached_first(s, g));
    free_stretch(s, t->request, g, named, MIN(stop, content));
    if (group->parts.count)
        drop_front(s, &group->parts, stop);
    group->first = stop;
}

/* Free the blocks of windowed groups that no later token attends to. */
static void leave_window(pool *pool, table *t, i64 processed_tokens)
{
    block_pool *p = (block_pool *)pool;
    run_store *s = &p->runs;
    if (processed_tokens < t->leaves_at)
        return;
    t->leaves_at = NEVER;
    for (i64 g = 0; g < s->num_groups; g++) {
        struct group *group = &t->groups[g];
        if (p->windows[g] < 0)
            continue;
        i64 passed = processed_tokens - p->windows[g] + 1;
        i64 behind = passed > 0 ? MIN(full_blocks(s, passed), t->held) : 0;
        if (behind > group->first) {
            settle_runs(s);
            leave_blocks(s, t, g, behind);
        }
        t->leaves_at = MIN(t->leaves_at, (group->first + 1) * pool->block_size + p->windows[g] - 1);
    }
}

/* Free all blocks, group by group, the last block of each group first. */
static void release(pool *pool, table *t)
{
    run_store *s = &((block_pool *)pool)->runs;
    settle_runs(s);
    for (i64 g = 0; g < s->num_groups; g++) {
        struct group *group = &t->groups[g];
        i64 content = content_end(t, group), named = MAX(group->named, group->first);
        free_uncached(s, t->held - MAX(group->first, content), uncached_first(s, g));
        free_stretch(s, t->request, g, named, content);
        drop_parts(s, &group->parts);
        group->first = group->cached = group->named = 0;
    }
    t->held = t->cached = t->loaded = t->leaves_at = 0;
}

static i64 held_blocks(const pool *pool, const table *t)
{
    i64 num_groups = ((const block_pool *)pool)->runs.num_groups, held = 0;
    for (i64 g = 0; g < num_groups; g++)
        held += t->held - t->groups[g].first;
    return held;
}

/* KV that is not computed here */

/* Windowed layers hold no blocks that the next token does not attend to. */
static int hold_computed(pool *pool, table *t, i64 tokens, const hit *h)
{
    block_pool *p = (block_pool *)pool;
    (void)h; /* result of the last lookup: p->hits */
    i64 required = blocks_of(&p->runs, tokens), taken = 0;
    for (i64 g = 0; g < p->runs.num_groups; g++) {
        group_hit *found = &p->hits[g];
        i64 tokens_passed = p->windows[g] < 0 ? 0 : MAX(tokens - p->windows[g], 0);
        i64 passed = MIN(full_blocks(&p->runs, tokens_passed), required);
        found->start = MAX(found->start, passed);
        found->stop = MAX(found->stop, passed);
        taken += required - found->stop + evictable_blocks(p, found);
    }
    if (taken > pool->free_blocks)
        return 0;
    take_hit(p, t);
    for (i64 g = 0; g < p->runs.num_groups; g++)
        pool->free_blocks -= required - p->hits[g].stop;
    t->held = required;
    return 1;
}

static int load(pool *pool, table *t, i64 tokens)
{
    if (!hold_computed(pool, t, tokens, find_prefix((block_pool *)pool, t, tokens)))
        return 0;
    t->loaded = tokens;
    return 1;
}

static const pool_ops OPS = {
    open_table, lookup, blocks_needed, grow, cache, leave_window, release, held_blocks, load, hold_computed,
};

/* The most blocks that a windowed group can hold. */
static i64 window_cap(const core_engine *setup, i64 window)
{
    if (window < 0)
        return -1;
    i64 steps = setup->rules.window_waits_for_steps ? v1_steps_in_flight(setup) : 1;
    i64 tokens = MIN(window - 1 + steps * setup->max_num_batched_tokens, setup->max_model_len);
    return ceil_div(tokens, setup->block_size) + 1;
}

pool *block_pool_new(memory *m, const core_engine *setup, const core_requests *requests)
{
    block_pool *p = take_memory(m, sizeof *p);
    i64 num_groups = setup->num_windows;
    init_runs(&p->runs, &OPS, m, setup, requests, num_groups);
    p->windows = take_memory(m, (size_t)num_groups * sizeof *p->windows);
    p->window_caps = take_memory(m, (size_t)num_groups * sizeof *p->window_caps);
    p->hits = take_memory(m, (size_t)num_groups * sizeof *p->hits);
    for (i64 g = 0; g < num_groups; g++) {
        p->windows[g] = setup->windows[g];
        p->window_caps[g] = window_cap(setup, setup->windows[g]);
    }
    return &p->runs.pool;
}
