/* Running and waiting requests and the output of a step, for policies with a prefill and a decode phase. See
 * batching.py. */
#include "batching.h"

#include "run_pool.h"

void batching_init(batching *p, const policy_ops *ops, memory *m, const core_engine *setup, pool *pool)
{
    policy *base = &p->policy;
    policy_init(base, ops, m, setup, pool);
    base->aborts = 1;
    p->overlapped = setup->asynchronous && base->limits.pipeline_stages == 1;
    base->asynchronous = p->overlapped;
    base->steps_in_flight = base->limits.pipeline_stages + p->overlapped;
    p->runs = setup->num_windows == 1 && setup->windows[0] < 0 && !setup->contiguous_blocks;
    p->caches_late = p->runs && setup->answers_private;
    i64 mask = pool->block_size - 1;
    p->block_mask = pool->block_size & mask ? -1 : mask;
}

int batching_add(policy *p, sequence *r)
{
    queue_append(p->memory, &p->waiting, r);
    return 1;
}

void batching_add_loaded(policy *p, sequence *r)
{
    insert_loaded(p, r);
}

/* decide */

static inline int generates(const batching *p, const sequence *r)
{
    i64 expected = r->known + r->in_flight_yields;
    return expected - r->computed == 1 && r->computed >= r->prompt_tokens && expected < r->max_known
           && (p->overlapped || !r->in_flight_tokens);
}

/* Running requests that get a generation row in the next step. */
void batching_generating(batching *p)
{
    const sequences *running = &p->policy.running;
    sequences *rows = &p->generating;
    RESERVE(p->policy.memory, rows, running->count);
    rows->count = 0;
    for (i64 i = 0; i < running->count; i++)
        if (generates(p, running->at[i]))
            rows->at[rows->count++] = running->at[i];
}

/* The most tokens whose KV the request can hold; the last token is never stored. */
i64 batching_last_slot(const policy *p, const sequence *r)
{
    (void)p;
    return r->asked_known - 1;
}

/* Allocate the blocks for `tokens` more tokens, which must be free. */
static void grow(batching *p, sequence *r, i64 tokens, const hit *h)
{
    pool *blocks = p->policy.pool;
    i64 until = (h ? h->tokens : r->computed) + tokens;
    blocks->ops->grow(blocks, &r->table, until, h);
    blocks->ops->cache(blocks, &r->table, MIN(until, r->known));
}

/* Allocate a slot for the token after the computed ones. */
static inline void grow_by_one(batching *p, sequence *r)
{
    pool *blocks = p->policy.pool;
    if (within_block(p, r->computed))
        return;
    if (!p->runs) {
        blocks->ops->grow(blocks, &r->table, r->computed + 1, NULL);
    } else if (r->table.held * blocks->block_size <= r->computed) {
        run_pool_take(blocks, 1);
        r->table.held++;
    }
}

/* Since its last row, a request has got at most as many known tokens as steps are in flight: only then can a block
 * have become full. Content that no other request can hit is registered when the request releases it. */
static inline void cache_known(batching *p, sequence *r)
{
    pool *blocks = p->policy.pool;
    if (p->caches_late)
        r->known_at_row = r->known;
    else if (within_block(p, r->known) < p->policy.steps_in_flight && blocks->prefix_caching)
        blocks->ops->cache(blocks, &r->table, r->known);
}

/* Add a generation row for each of the first `count` requests; their blocks must be free. The token counts as computed
 * at once. */
void batching_generate(batching *p, step *s, const sequences *rows, i64 count)
{
    RESERVE(p->policy.memory, &s->rows, s->rows.count + count);
    row *next = s->rows.at + s->rows.count;
    i64 contexts = 0, clipped = 0, window = p->policy.window_tokens;
    s->rows.count += count;
    for (i64 i = 0; i < count; i++) {
        sequence *r = rows->at[i];
        grow_by_one(p, r);
        cache_known(p, r);
        i64 computed = r->computed++;
        *next++ = (row){.sequence = r, .tokens = 1, .computed = computed, .yields = 1};
        r->in_flight_tokens++;
        r->in_flight_yields++;
        r->rows_in_flight++;
        contexts += computed + 1;
        clipped += MIN(computed + 1, window);
    }
    s->sums.decode_sequences += count;
    s->sums.decode_context_tokens += contexts;
    s->sums.decode_window_context_tokens += clipped;
}

/* Free blocks that one more token for each of `rows` needs. */
static i64 generation_blocks(batching *p, const sequences *rows)
{
    for (i64 i = 0; i < rows->count; i++)
        leave_windows(&p->policy, rows->at[i], rows->at[i]->computed - rows->at[i]->in_flight_tokens);
    i64 needed = 0;
    for (i64 i = 0; i < rows->count; i++) {
        const sequence *r = rows->at[i];
        if (within_block(p, r->computed) == 0)
            needed += blocks_needed(p, r, r->computed + 1, NULL);
    }
    return needed;
}

/* Whether there are free blocks for one more token of each of `rows`. */
int batching_fits(batching *p, const sequences *rows)
{
    i64 free_blocks = p->policy.pool->free_blocks;
    if (p->runs && rows->count <= free_blocks)
        return 1;
    return generation_blocks(p, rows) <= p->policy.pool->free_blocks;
}

/* Start a request that was removed from the queue, after `cached` tokens. */
void batching_start(batching *p, sequence *r, i64 cached)
{
    r->computed = cached;
    r->status = RUNNING;
    PUSH(p->policy.memory, &p->policy.running, r);
}

/* Add a context row of `tokens` tokens, whose blocks are free or allocated. With a hit, start the request first. */
void batching_prefill(batching *p, step *s, sequence *r, i64 tokens, const hit *h)
{
    i64 cached = h ? h->tokens : 0;
    grow(p, r, tokens, h);
    if (h)
        batching_start(p, r, cached);
    batching_context_row(p, s, r, tokens, cached);
}

void batching_context_row(batching *p, step *s, sequence *r, i64 tokens, i64 cached)
{
    add_row(p->policy.memory, s, (row){
        .sequence = r, .tokens = tokens, .computed = r->computed, .cached = cached,
        .yields = r->computed + tokens >= r->known
    });
    const row *w = &s->rows.at[s->rows.count - 1];
    count_row(&p->policy, s, w);
    r->computed += tokens; /* at once */
    r->in_flight_tokens += tokens;
    r->in_flight_yields += w->yields;
}

/* Preempt (pause or retract) a request: free its KV and requeue it at the front for recomputation. */
void batching_give_up(batching *p, sequence *r, step *s)
{
    policy *base = &p->policy;
    remove_running(base, r);
    if (p->caches_late)
        base->pool->ops->cache(base->pool, &r->table, r->known_at_row);
    base->pool->ops->release(base->pool, &r->table);
    r->lost = r->computed;
    r->computed = r->next_leave = r->known_at_row = 0;
    r->preemptions++;
    r->status = WAITING;
    queue_prepend(base->memory, &base->waiting, r);
    PUSH(base->memory, &s->preempted, r);
}

/* account */

/* Append the sampled tokens; finished requests are in row order. */
void batching_update(policy *base, step *s)
{
    batching *p = (batching *)base;
    for (i64 i = 0; i < s->rows.count; i++) {
        const row *w = &s->rows.at[i];
        sequence *r = w->sequence;
        r->in_flight_tokens -= w->tokens;
        r->in_flight_yields -= w->yields;
        if (row_ends(base, s, r) || !w->yields)
            continue;
        r->known++;
        emit(base, s, r);
        if (r->known >= r->max_known) {
            batching_finish(p, r);
            PUSH(base->memory, &s->finished, r);
        }
    }
}

void batching_abort(policy *p, sequence *r)
{
    batching_finish((batching *)p, r);
}

void batching_finish(batching *p, sequence *r)
{
    policy *base = &p->policy;
    if (r->status == WAITING) {
        queue_remove(&base->waiting, r);
    } else {
        base->pool->ops->cache(base->pool, &r->table, MIN(r->computed, r->known - 1));
        remove_running(base, r);
    }
    base->pool->ops->release(base->pool, &r->table);
    r->status = FINISHED;
}
