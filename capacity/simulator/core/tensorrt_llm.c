/* TensorRT-LLM in-flight batching: a capacity scheduler selects requests, a micro-batch scheduler rows. See
 * tensorrt_llm.py. */
#include "batching.h"

typedef struct {
    batching base;
    int max_utilization; /* else guaranteed_no_evict */
    i64 batch_wait_steps, prompts_per_step;
    double batch_wait_tokens;
    i64 waited;
} tensorrt_llm;

/* decide */

/* Preempt the most recently started requests until the other rows fit. */
static void pause_last(tensorrt_llm *p, step *s)
{
    policy *base = &p->base.policy;
    sequences *rows = &p->base.generating;
    while (base->running.count > 1 && !batching_fits(&p->base, rows)) {
        sequence *last = base->running.at[base->running.count - 1];
        if (rows->count && rows->at[rows->count - 1] == last) /* both are in the order in which they started */
            rows->count--;
        batching_give_up(&p->base, last, s);
    }
    if (!batching_fits(&p->base, rows))
        rows->count = 0;
}

/* Tokens of a prompt in this step: all, or whole blocks up to the budget. */
static i64 share(const tensorrt_llm *p, i64 wanted, i64 budget)
{
    if (wanted <= budget)
        return wanted;
    if (!p->base.policy.limits.enable_chunked_prefill || budget < 0)
        return 0;
    i64 block = p->base.policy.pool->block_size;
    return budget / block * block;
}

/* Whether new prompts wait for more prompts: only with generation rows, and for a number of steps. */
static int waits(tensorrt_llm *p, const step *s, i64 budget, i64 most)
{
    const queue *waiting = &p->base.policy.waiting;
    if (!p->batch_wait_steps || !s->rows.count)
        return 0;
    i64 tokens = 0;
    for (i64 place = 0; place < waiting->count; place++) {
        const sequence *r = queue_at(waiting, place);
        if (place >= most || tokens + r->known > budget)
            break;
        tokens += r->known;
    }
    if (tokens == 0)
        return 0;
    if (p->waited < p->batch_wait_steps && (double)(s->rows.count + tokens) < p->batch_wait_tokens) {
        p->waited++;
        return 1;
    }
    p->waited = 0;
    return 0;
}

/* Tokens for which guaranteed_no_evict reserves blocks: the prompt and max_tokens, last token included. */
static i64 reserved_tokens(const policy *base, const sequence *r)
{
    return batching_last_slot(base, r) + 1;
}

/* Blocks that running requests still need up to their last token. */
static i64 reserved_blocks(const tensorrt_llm *p)
{
    const policy *base = &p->base.policy;
    i64 reserved = 0;
    if (p->max_utilization)
        return 0;
    for (i64 i = 0; i < base->running.count; i++) {
        const sequence *r = base->running.at[i];
        reserved += blocks_needed(&p->base, r, reserved_tokens(base, r), NULL);
    }
    return reserved;
}

/* Start up to `most` waiting prompts in order of arrival. A prompt that gets no tokens still takes a seat and its blocks
 * in this step, and the next prompts may use the remaining budget. */
static void start_prompts(tensorrt_llm *p, step *s, i64 budget, i64 seats, i64 most)
{
    policy *base = &p->base.policy;
    pool *blocks = base->pool;
    i64 reserved = reserved_blocks(p), place = 0;
    while (place < base->waiting.count && seats > 0 && most > 0 && budget > 0
           && base->limits.max_num_seqs - base->running.count > place) {
        sequence *r = queue_at(&base->waiting, place);
        i64 granted = share(p, r->known, budget); /* cached tokens count too */
        if (r->in_flight_yields || (granted <= 0 && !base->limits.enable_chunked_prefill))
            return;
        const hit *h = blocks->ops->lookup(blocks, &r->table, r->known - 1);
        i64 tokens = MIN(granted, r->known - h->tokens);
        i64 needed = p->max_utilization ? blocks_needed(&p->base, r, h->tokens + tokens, h)
                                        : blocks_needed(&p->base, r, reserved_tokens(base, r), NULL);
        if (needed + reserved > blocks->free_blocks)
            return;
        seats--;
        if (tokens <= 0) {
            place++, reserved += needed;
            continue;
        }
        queue_remove(&base->waiting, r);
        i64 before = blocks->free_blocks;
        batching_prefill(&p->base, s, r, tokens, h);
        if (!p->max_utilization)
            reserved += needed - (before - blocks->free_blocks);
        budget -= granted, most--;
    }
}

/* Schedule started prompts, then new ones in order of arrival until one does not fit in the KV cache. */
static void contexts(tensorrt_llm *p, step *s, i64 budget)
{
    policy *base = &p->base.policy;
    i64 seats = base->limits.max_num_seqs - s->rows.count;
    i64 most = p->prompts_per_step ? p->prompts_per_step : seats;
    for (i64 i = 0; i < base->running.count; i++) {
        sequence *r = base->running.at[i];
        if (r->computed >= r->prompt_tokens && r->known - r->computed <= 1)
            continue;
        seats--;
        i64 tokens = share(p, r->known - r->computed, budget);
        if (tokens <= 0 && base->limits.enable_chunked_prefill)
            continue;
        if (tokens <= 0 || blocks_needed(&p->base, r, r->computed + tokens, NULL) > base->pool->free_blocks)
            return;
        batching_prefill(&p->base, s, r, tokens, NULL);
        budget -= tokens, most--;
    }
    if (base->waiting.count && !base->holds_prompts && !waits(p, s, budget, MIN(seats, most)))
        start_prompts(p, s, budget, seats, most);
}

static void schedule(policy *base, step *s, i64 now_ps)
{
    (void)now_ps;
    tensorrt_llm *p = (tensorrt_llm *)base;
    sequences *rows = &p->base.generating;
    batching_generating(&p->base);
    if (!batching_fits(&p->base, rows))
        pause_last(p, s);
    batching_generate(&p->base, s, rows, MIN(rows->count, base->limits.max_num_seqs));
    if (!s->preempted.count)
        contexts(p, s, base->limits.max_num_batched_tokens - s->rows.count);
}

policy *tensorrt_llm_new(memory *m, const core_engine *setup, pool *pool)
{
    static const policy_ops ops = {
        .add = batching_add,
        .add_loaded = batching_add_loaded,
        .schedule = schedule,
        .update = batching_update,
        .abort = batching_abort,
        .last_slot = batching_last_slot,
    };
    tensorrt_llm *p = take_memory(m, sizeof *p);
    batching_init(&p->base, &ops, m, setup, pool);
    p->base.policy.can_hold_prompts = 1;
    p->max_utilization = setup->trt_max_utilization != 0;
    p->base.policy.reserves_to_end = !p->max_utilization;
    p->batch_wait_steps = setup->trt_batch_wait_steps;
    p->batch_wait_tokens = setup->trt_batch_wait_tokens;
    p->prompts_per_step = setup->trt_prompts_per_step;
    return &p->base.policy;
}
