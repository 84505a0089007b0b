/* Common parts of the SGLang, TensorRT-LLM and TGI policies; see schedulers/batching.py.
 *
 * A token needs a block only where it begins one, and a block gets content only once it is full. Unlike Python, C does
 * not call the pool for the tokens in between.
 */
#ifndef CAPACITY_BATCHING_H
#define CAPACITY_BATCHING_H

#include "internal.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

typedef struct {
    policy policy;
    int overlapped;
    int runs;             /* over a run pool: a generation row needs one block at most */
    int caches_late;      /* no other request can hit the answer of a running request */
    i64 block_mask;       /* block_size - 1 where that is a power of two, else -1 */
    sequences generating; /* result of the last `generating()` */
} batching;

void batching_init(batching *p, const policy_ops *ops, memory *m, const core_engine *setup, pool *pool);
int batching_add(policy *p, sequence *r);
void batching_add_loaded(policy *p, sequence *r);
void batching_update(policy *p, step *s);
void batching_abort(policy *p, sequence *r);
void batching_finish(batching *p, sequence *r);
i64 batching_last_slot(const policy *p, const sequence *r);

void batching_generating(batching *p);
void batching_generate(batching *p, step *s, const sequences *rows, i64 count);
int batching_fits(batching *p, const sequences *rows);
void batching_start(batching *p, sequence *r, i64 cached);
void batching_prefill(batching *p, step *s, sequence *r, i64 tokens, const hit *h);
void batching_context_row(batching *p, step *s, sequence *r, i64 tokens, i64 cached);
void batching_give_up(batching *p, sequence *r, step *s);

static inline i64 within_block(const batching *p, i64 tokens)
{
    return p->block_mask >= 0 ? tokens & p->block_mask : tokens % p->policy.pool->block_size;
}

static inline i64 blocks_needed(const batching *p, const sequence *r, i64 tokens, const hit *h)
{
    return p->policy.pool->ops->blocks_needed(p->policy.pool, &r->table, tokens, h, 0);
}

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif
