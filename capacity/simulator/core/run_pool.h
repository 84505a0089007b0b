/* The run pool's direct calls, for a policy that keeps books of a decode group by its sums. */
#ifndef CAPACITY_RUN_POOL_H
#define CAPACITY_RUN_POOL_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

/* Take free blocks, those without content first, then the least recently freed. Whoever holds them says so to
 * `run_pool_finish`, or in `held` of the table. */
static inline void run_pool_take(pool *p, i64 blocks) { p->free_blocks -= blocks; }

/* A request ends whose first `tokens` tokens have their place and content: `cache` them, `release` all. */
void run_pool_finish(pool *p, table *t, i64 tokens);

/* What the pool's operations do, without the detour. */
void run_pool_open(pool *p, table *t, i64 request);
const hit *run_pool_lookup(pool *p, table *t, i64 max_tokens);
i64 run_pool_blocks_needed(pool *p, const table *t, i64 tokens, const hit *h, int capped);
void run_pool_grow(pool *p, table *t, i64 tokens, const hit *h);
void run_pool_cache(pool *p, table *t, i64 tokens);
void run_pool_release(pool *p, table *t);

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif
