/* TGI v3: a request allocates all its blocks at its start, so no request is ever preempted. See tgi.py. */
#include "batching.h"

typedef struct {
    batching base;
    double waiting_served_ratio;
    i64 max_waiting_steps;
    i64 decode_steps; /* since the last prefill */
} tgi;

/* decide */

/* Whether a prefill may pause decode now. */
static int joins(const tgi *p)
{
    const policy *base = &p->base.policy;
    if (!base->running.count)
        return 1;
    i64 least = (i64)((double)base->running.count * p->waiting_served_ratio);
    return base->waiting.count >= MAX(least, 1) || p->decode_steps >= p->max_waiting_steps;
}

static void decode(tgi *p, step *s)
{
    batching_generating(&p->base);
    batching_generate(&p->base, s, &p->base.generating, p->base.generating.count);
}

static void prefill(tgi *p, step *s, i64 budget)
{
    policy *base = &p->base.policy;
    pool *blocks = base->pool;
    int chunking = base->limits.enable_chunked_prefill;
    for (i64 i = 0; i < base->running.count; i++) {
        sequence *r = base->running.at[i];
        i64 tokens = MIN(r->known - r->computed, budget);
        if (r->computed < r->prompt_tokens && tokens > 0) {
            batching_prefill(&p->base, s, r, tokens, NULL);
            budget -= tokens;
        }
    }
    while (base->waiting.count && budget > 0 && base->running.count < base->limits.max_num_seqs) {
        sequence *r = queue_at(&base->waiting, 0);
        const hit *h = blocks->ops->lookup(blocks, &r->table, r->known - 1);
        i64 cached = h->tokens;
        i64 wanted = r->known - cached;
        i64 padded = ceil_div(wanted, blocks->block_size) * blocks->block_size;
        if (padded > budget && !chunking && s->rows.count)
            return;
        i64 last_slot = batching_last_slot(base, r);
        if (blocks_needed(&p->base, r, last_slot, h) > blocks->free_blocks)
            return;
        queue_pop(&base->waiting);
        i64 tokens = chunking ? MIN(wanted, budget) : wanted;
        blocks->ops->grow(blocks, &r->table, last_slot, h);
        batching_start(&p->base, r, cached);
        blocks->ops->cache(blocks, &r->table, MIN(r->computed + tokens, r->known));
        batching_context_row(&p->base, s, r, tokens, cached);
        budget -= chunking ? tokens : padded;
    }
}

static void schedule(policy *base, step *s, i64 now_ps)
{
    (void)now_ps;
    tgi *p = (tgi *)base;
    i64 budget = base->limits.max_num_batched_tokens;
    if (base->limits.enable_chunked_prefill) {
        decode(p, s);
        prefill(p, s, budget - s->rows.count);
    } else {
        if (joins(p))
            prefill(p, s, budget);
        if (s->rows.count) {
            p->decode_steps = 0;
        } else {
            decode(p, s);
            p->decode_steps++;
        }
    }
}

policy *tgi_new(memory *m, const core_engine *setup, pool *pool)
{
    static const policy_ops ops = {
        .add = batching_add,
        .add_loaded = batching_add_loaded,
        .schedule = schedule,
        .update = batching_update,
        .abort = batching_abort,
        .last_slot = batching_last_slot,
    };
    tgi *p = take_memory(m, sizeof *p);
    batching_init(&p->base, &ops, m, setup, pool);
    p->base.policy.reserves_to_end = 1;
    p->waiting_served_ratio = setup->tgi_waiting_served_ratio;
    p->max_waiting_steps = setup->tgi_max_waiting_steps;
    return &p->base.policy;
}
