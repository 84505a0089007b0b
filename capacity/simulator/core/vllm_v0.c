/* vLLM V0: prefill first. A step either admits whole prompts or decodes all running requests: schedulers/vllm_v0.py. */
#include "content_pool.h"

#define WATERMARK_FRACTION 0.01 /* vLLM 0.8.5 CacheConfig, not a flag */

typedef struct {
    policy base;
    queue swapped;
    int swaps;
    i64 free_cpu_blocks, swap_block_ps, swapped_out, swapped_in, refused;
    i64 watermark_blocks, calls;
    i64 new_in_front, new_behind; /* number of waiting requests added since the rest was sorted */
    sequences before;             /* running requests at the start of a decision */
    sequences victims;
} vllm_v0;

/* Tokens and sequences of one step; running requests count as sequences from the start. */
typedef struct {
    const limits *limits;
    i64 tokens, sequences;
} budget;

static int allows(const budget *b, i64 tokens)
{
    return b->tokens + tokens <= b->limits->max_num_batched_tokens && b->sequences < b->limits->max_num_seqs;
}

static void add_to_budget(budget *b, i64 tokens)
{
    b->tokens += tokens;
    b->sequences++;
}

static int more_urgent(const sequence *a, const sequence *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

static i64 unfinished(const policy *p)
{
    return p->running.count + p->waiting.count + ((const vllm_v0 *)p)->swapped.count;
}

static i64 num_waiting(const policy *p)
{
    return p->waiting.count + ((const vllm_v0 *)p)->swapped.count;
}

/* waiting requests */

static int add(policy *p, sequence *r)
{
    queue_append(p->memory, &p->waiting, r);
    ((vllm_v0 *)p)->new_behind++;
    return 1;
}

static void put_in_front(vllm_v0 *v, sequence *r)
{
    queue_prepend(v->base.memory, &v->base.waiting, r);
    v->new_in_front++;
}

static sequence *pop_waiting(vllm_v0 *v)
{
    sequence *r = queue_pop(&v->base.waiting);
    if (v->new_in_front)
        v->new_in_front--;
    else
        v->new_behind = MIN(v->new_behind, v->base.waiting.count);
    return r;
}

/* Insert into the sorted queue, before or after equal requests. */
static void insert_waiting(vllm_v0 *v, sequence *r, int before_equals)
{
    queue *waiting = &v->base.waiting;
    i64 low = 0, high = waiting->count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        const sequence *other = queue_at(waiting, middle);
        if (before_equals ? more_urgent(other, r) : !more_urgent(r, other))
            low = middle + 1;
        else
            high = middle;
    }
    if (low)
        queue_insert(v->base.memory, waiting, low, r);
    else
        queue_prepend(v->base.memory, waiting, r);
}

/* Sort by urgency; equals keep their order. Only the new requests are unsorted. */
static void sort_waiting(vllm_v0 *v)
{
    memory *m = v->base.memory;
    queue *waiting = &v->base.waiting;
    sequences *new = &v->victims;
    new->count = 0;
    for (i64 i = 0; i < v->new_in_front; i++)
        PUSH(m, new, queue_pop(waiting));
    for (i64 i = waiting->count - v->new_behind; i < waiting->count; i++)
        PUSH(m, new, queue_at(waiting, i));
    waiting->count -= v->new_behind;
    for (i64 i = v->new_in_front - 1; i >= 0; i--)
        insert_waiting(v, new->at[i], 1);
    for (i64 i = v->new_in_front; i < new->count; i++)
        insert_waiting(v, new->at[i], 0);
    v->new_in_front = v->new_behind = 0;
}

static void sort_running(policy *p)
{
    sequence **at = p->running.at;
    for (i64 i = 1; i < p->running.count; i++) {
        sequence *r = at[i];
        i64 place = i;
        for (; place > 0 && more_urgent(r, at[place - 1]); place--)
            at[place] = at[place - 1];
        at[place] = r;
    }
}

/* decide */

static void start(vllm_v0 *v, sequence *r, step *s, i64 tokens, i64 cached)
{
    i64 computed = r->known - tokens;
    r->table.accessed = v->calls;
    add_row(v->base.memory, s, (row){.sequence = r, .tokens = tokens, .computed = computed,
                                     .cached = cached, .yields = 1});
    count_row(&v->base, s, &s->rows.at[s->rows.count - 1]);
}

/* Admit whole prompts from the head of the queue; drop those that can never fit. */
static void admit(vllm_v0 *v, step *s, budget *b)
{
    policy *p = &v->base;
    const limits *l = &p->limits;
    while (p->waiting.count) {
        sequence *r = queue_at(&p->waiting, 0);
        i64 cached = content_pool_cached_tokens(p->pool, &r->table, r->known), uncached = r->known - cached;
        i64 blocks = ceil_div(r->known, p->pool->block_size);
        int too_long = r->known > MIN(l->max_model_len, l->max_num_batched_tokens);
        if (too_long || p->pool->num_blocks - blocks < v->watermark_blocks) {
            pop_waiting(v)->status = FINISHED;
            PUSH(p->memory, &s->finished, r);
            continue;
        }
        if (p->pool->free_blocks - blocks < v->watermark_blocks)
            break;
        if (b->tokens >= l->max_num_batched_tokens || !allows(b, MAX(1, uncached)))
            break;
        pop_waiting(v);
        content_pool_allocate(p->pool, &r->table, r->known);
        r->status = RUNNING;
        add_to_budget(b, MAX(1, uncached));
        PUSH(p->memory, &p->running, r);
        start(v, r, s, uncached, cached);
    }
}

/* Free the blocks by dropping or swapping them; 1: dropped, so the request must start again. */
static int preempt(vllm_v0 *v, sequence *victim, step *s)
{
    policy *p = &v->base;
    i64 held = victim->table.blocks.count;
    victim->status = WAITING;
    p->pool->ops->release(p->pool, &victim->table);
    if (v->swaps) {
        if (held <= v->free_cpu_blocks) {
            v->free_cpu_blocks -= held;
            v->swapped_out += held;
            s->held_ps += held * v->swap_block_ps;
            queue_append(p->memory, &v->swapped, victim);
            return 0;
        }
        v->refused++;
    }
    victim->lost = victim->known - 1;
    victim->preemptions++;
    PUSH(p->memory, &s->preempted, victim);
    return 1;
}

/* Preempt requests of lower priority than the head of the queue until it fits. */
static void preempt_for_priority(vllm_v0 *v, step *s, budget *b)
{
    policy *p = &v->base;
    sequences *running = &p->running;
    sort_running(p);
    if (!p->waiting.count)
        return;
    sequence *head = pop_waiting(v);
    i64 uncached = head->known - content_pool_cached_tokens(p->pool, &head->table, head->known);
    i64 blocks = ceil_div(head->known, p->pool->block_size);
    while (running->count && more_urgent(head, running->at[running->count - 1])) {
        int fits = p->pool->free_blocks - blocks >= v->watermark_blocks;
        if (fits && allows(b, MAX(1, uncached)))
            break;
        sequence *victim = running->at[--running->count];
        b->sequences--;
        if (preempt(v, victim, s))
            put_in_front(v, victim);
    }
    put_in_front(v, head);
    sort_waiting(v);
}

/* Decode the running requests in order; one without a free block preempts the last unscheduled one. */
static void decode(vllm_v0 *v, step *s)
{
    policy *p = &v->base;
    pool *blocks = p->pool;
    sequences *running = &p->running;
    i64 served = 0, last = running->count, contexts = 0, clipped = 0;
    v->victims.count = 0;
    RESERVE(p->memory, &s->rows, last);
    for (i64 next = 0; next < last; next++) {
        sequence *r = running->at[next], *victim = NULL;
        while (blocks->free_blocks < 1) {
            victim = next + 1 < last ? running->at[--last] : r;
            if (preempt(v, victim, s))
                PUSH(p->memory, &v->victims, victim);
            if (victim == r)
                break;
        }
        if (victim == r)
            break;
        content_pool_append(blocks, &r->table, r->known);
        running->at[served++] = r;
        r->table.accessed = v->calls;
        r->rows_in_flight++;
        add_row(p->memory, s, (row){.sequence = r, .tokens = 1, .computed = r->known - 1,
                                    .yields = 1});
        contexts += r->known;
        clipped += MIN(r->known, p->window_tokens);
    }
    running->count = served;
    s->sums.decode_sequences += served;
    s->sums.decode_context_tokens += contexts;
    s->sums.decode_window_context_tokens += clipped;
    for (i64 i = 0; i < v->victims.count; i++)
        put_in_front(v, v->victims.at[i]);
}

static void swap_in(vllm_v0 *v, step *s, budget *b)
{
    policy *p = &v->base;
    i64 block_size = p->pool->block_size;
    while (v->swapped.count) {
        sequence *r = queue_at(&v->swapped, 0);
        i64 held = ceil_div(r->known - 1, block_size), touched = (r->known - 1) / block_size + 1;
        if (p->pool->free_blocks - touched < v->watermark_blocks || !allows(b, 1))
            break;
        queue_pop(&v->swapped);
        v->free_cpu_blocks += held;
        v->swapped_in += held;
        s->held_ps += held * v->swap_block_ps;
        content_pool_allocate(p->pool, &r->table, r->known - 1);
        content_pool_append(p->pool, &r->table, r->known);
        r->status = RUNNING;
        add_to_budget(b, 1);
        PUSH(p->memory, &p->running, r);
        start(v, r, s, 1, 0);
    }
}

/* Restore the previous order of the running list: a lower ticket marks preempted requests. */
static void sort_preempted(vllm_v0 *v, step *s)
{
    for (i64 i = 0; i < v->before.count; i++)
        v->before.at[i]->ticket = 0;
    for (i64 i = 0; i < s->preempted.count; i++)
        s->preempted.at[i]->ticket = 1;
    s->preempted.count = 0;
    for (i64 i = 0; i < v->before.count; i++)
        if (v->before.at[i]->ticket)
            s->preempted.at[s->preempted.count++] = v->before.at[i];
}

static void schedule(policy *p, step *s, i64 now_ps)
{
    (void)now_ps;
    vllm_v0 *v = (vllm_v0 *)p;
    v->calls++;
    budget b = {&p->limits, 0, p->running.count};
    if (!v->swapped.count)
        admit(v, s, &b);
    if (!s->rows.count) {
        RESERVE(p->memory, &v->before, p->running.count);
        v->before.count = p->running.count;
        if (p->running.count)
            memcpy(v->before.at, p->running.at, (size_t)p->running.count * sizeof *p->running.at);
        if (p->limits.priority)
            preempt_for_priority(v, s, &b);
        i64 swapped_before = v->swapped.count;
        decode(v, s);
        if (s->preempted.count == 0 && v->swapped.count == swapped_before)
            swap_in(v, s, &b);
    }
    if (s->preempted.count > 1)
        sort_preempted(v, s);
    if (s->rows.count)
        content_pool_mark_computed(p->pool);
}

/* account */

/* Append one token and the accepted drafts for every row; finished requests in order, dropped ones last. */
static void update(policy *p, step *s)
{
    vllm_v0 *v = (vllm_v0 *)p;
    i64 dropped = s->finished.count;
    for (i64 i = 0; i < s->rows.count; i++) {
        sequence *r = s->rows.at[i].sequence;
        row_ends(p, s, r);
        r->known++;
        emit(p, s, r);
        if (r->known >= r->max_known) {
            p->pool->ops->release(p->pool, &r->table);
            remove_running(p, r);
            r->status = FINISHED;
            PUSH(p->memory, &s->finished, r);
        }
    }
    if (dropped == 0 || dropped == s->finished.count)
        return;
    v->victims.count = 0;
    for (i64 i = 0; i < dropped; i++)
        PUSH(p->memory, &v->victims, s->finished.at[i]);
    sequence **at = s->finished.at;
    i64 others = s->finished.count - dropped;
    memmove(at, at + dropped, (size_t)others * sizeof *at);
    memcpy(at + others, v->victims.at, (size_t)dropped * sizeof *at);
}

/* Blocks swapped out and in. */
i64 vllm_v0_swap_use(const policy *p, core_tier_use *uses)
{
    const vllm_v0 *v = (const vllm_v0 *)p;
    if (!v->swaps)
        return 0;
    *uses = (core_tier_use){
        .stored = v->swapped_out,
        .evicted = v->swapped_in,
        .loaded = v->swapped_in,
        .held = v->swapped_out - v->swapped_in,
        .refused = v->refused,
    };
    return 1;
}

static const policy_ops VLLM_V0 = {
    .add = add,
    .schedule = schedule,
    .update = update,
    .unfinished = unfinished,
    .num_waiting = num_waiting,
};

policy *vllm_v0_new(memory *m, const core_engine *setup, pool *p)
{
    vllm_v0 *v = take_memory(m, sizeof *v);
    policy_init(&v->base, &VLLM_V0, m, setup, p);
    v->base.asynchronous = 0;
    v->swaps = setup->v0_swap != 0;
    v->free_cpu_blocks = setup->v0_num_cpu_blocks;
    v->swap_block_ps = setup->v0_swap_block_ps;
    v->watermark_blocks = (i64)(WATERMARK_FRACTION * (double)p->num_blocks);
    return &v->base;
}
