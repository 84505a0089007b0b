/* Functions of vLLM V0's pool in addition to those of every pool. */
#ifndef CAPACITY_CONTENT_POOL_H
#define CAPACITY_CONTENT_POOL_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

i64 content_pool_cached_tokens(pool *p, table *t, i64 tokens);
void content_pool_allocate(pool *p, table *t, i64 tokens);
void content_pool_mark_computed(pool *p);
void content_pool_take_last(pool *p, table *t);
void content_pool_fill_last(pool *p, table *t);

/* Allocate a slot for token number `tokens`, the next one; a block that becomes full gets its content or is replaced
 * by an equal one. */
static inline void content_pool_append(pool *p, table *t, i64 tokens)
{
    if (tokens > t->blocks.count * p->block_size)
        content_pool_take_last(p, t);
    if (tokens == t->blocks.count * p->block_size)
        content_pool_fill_last(p, t);
}

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif
