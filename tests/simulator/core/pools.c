/* The core's pools without a fleet around them, one operation a call. */
#include <stdlib.h>

#include "internal.h"
#include "run_pool.h"

enum {
    OPEN, LOOKUP, BLOCKS_NEEDED, GROW, CACHE, LEAVE_WINDOW, RELEASE, HELD_BLOCKS, LOAD, HOLD_COMPUTED,
    FREE_BLOCKS, TAKE, FINISH, SET_HELD
};
enum { RUN_POOL, BLOCK_POOL, CONTIGUOUS_POOL };

typedef struct {
    memory memory;
    pool *pool;
    const hit *hit;
    table *tables;
    core_contents contents;
} pools;

pools *pools_new(const i64 *values, const i64 *windows, const core_contents *contents);
void pools_free(pools *s);
i64 pools_do(pools *s, i64 operation, i64 number, i64 tokens, i64 with_hit, i64 capped);
void pools_serve(pools *s, i64 num_requests, i64 prompt_tokens, i64 output_tokens, i64 in_flight,
                 i64 chunk_tokens);

static pools *fill(pools *s, const i64 *values, const i64 *windows)
{
    core_requests requests = {.count = values[8]};
    core_engine setup = {
        .num_blocks = values[1], .block_size = values[2], .prefix_caching = values[3],
        .num_windows = values[4], .windows = windows, .max_model_len = values[5],
        .max_num_batched_tokens = values[6], .contiguous_blocks = values[7], .contents = &s->contents,
        .rules = {.reuses_uncached_first = 1, .reuses_uncached_window_first = 1},
    };
    s->tables = take_memory(&s->memory, (size_t)values[9] * sizeof *s->tables);
    if (values[0] == RUN_POOL)
        s->pool = run_pool_new(&s->memory, &setup, &requests);
    else if (values[0] == BLOCK_POOL)
        s->pool = block_pool_new(&s->memory, &setup, &requests);
    else
        s->pool = contiguous_pool_new(&s->memory, &setup);
    return s;
}

/* Values: kind, num_blocks, block_size, prefix_caching, num_windows, max_model_len, max_num_batched_tokens,
 * contiguous_blocks, requests, tables. */
pools *pools_new(const i64 *values, const i64 *windows, const core_contents *contents)
{
    pools *s = calloc(1, sizeof *s);
    s->contents = *contents;
    return setjmp(s->memory.on_error) ? NULL : fill(s, values, windows);
}

void pools_free(pools *s)
{
    free_all_memory(&s->memory);
    free(s);
}

i64 pools_do(pools *s, i64 operation, i64 number, i64 tokens, i64 with_hit, i64 capped)
{
    pool *p = s->pool;
    table *t = &s->tables[number];
    const hit *h = with_hit ? s->hit : NULL;
    if (setjmp(s->memory.on_error))
        return -1000 - s->memory.error;
    switch (operation) {
    case OPEN: p->ops->open(p, t, tokens); return 0;
    case LOOKUP: s->hit = p->ops->lookup(p, t, tokens); return s->hit->tokens;
    case BLOCKS_NEEDED: return p->ops->blocks_needed(p, t, tokens, h, (int)capped);
    case GROW: p->ops->grow(p, t, tokens, h); return 0;
    case CACHE: p->ops->cache(p, t, tokens); return 0;
    case LEAVE_WINDOW: p->ops->leave_window(p, t, tokens); return 0;
    case RELEASE: p->ops->release(p, t); return 0;
    case HELD_BLOCKS: return p->ops->held_blocks(p, t);
    case LOAD: return p->ops->load(p, t, tokens);
    case HOLD_COMPUTED: return p->ops->hold_computed(p, t, tokens, h);
    case FREE_BLOCKS: return p->free_blocks;
    case TAKE: run_pool_take(p, tokens); return 0;
    case FINISH: run_pool_finish(p, t, tokens); return 0;
    case SET_HELD: t->held = tokens; return 0;
    default: return -1;
    }
}

/* What a V1 policy asks for so many requests, `in_flight` at a time, each visited when a block ends. */
void pools_serve(pools *s, i64 num_requests, i64 prompt_tokens, i64 output_tokens, i64 in_flight,
                 i64 chunk_tokens)
{
    pool *p = s->pool;
    if (setjmp(s->memory.on_error))
        abort();
    for (i64 i = 0; i < num_requests + in_flight; i++) {
        table *t = &s->tables[i % in_flight];
        if (i >= in_flight)
            p->ops->release(p, t);
        if (i >= num_requests)
            continue;
        p->ops->open(p, t, i);
        const hit *h = p->ops->lookup(p, t, prompt_tokens - 1);
        i64 computed = h->tokens, last = prompt_tokens + output_tokens - 1;
        while (computed < last) {
            i64 end = computed < prompt_tokens ? MIN(computed + chunk_tokens, prompt_tokens)
                                               : MIN((computed / p->block_size + 1) * p->block_size, last);
            p->ops->leave_window(p, t, computed);
            REQUIRE(p->memory, p->ops->blocks_needed(p, t, end, h, 0) <= p->free_blocks);
            p->ops->grow(p, t, end, h);
            p->ops->cache(p, t, end);
            computed = end;
            h = NULL;
        }
    }
}
