/* Direct calls of the run pool, for a policy that accounts for a decode group in sums. */
#ifndef CAPACITY_RUN_POOL_H
#define CAPACITY_RUN_POOL_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

/* Allocate free blocks, first those without content, then the least recently freed. The holder reports them to
 * `run_pool_finish`, or in `held` of the table. */
static inline void run_pool_take(pool *p, i64 blocks) { p->free_blocks -= blocks; }

/* A request ends whose first `tokens` tokens have slots and content: `cache` them, `release` all. */
void run_pool_finish(pool *p, table *t, i64 tokens);

/* The pool's operations without the indirection. */
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
