/* vLLM V1: continuous batching with chunked prefill, one token budget, recompute preemption. See vllm_v1.py. */
#include "vllm_v1.h"

#include "drafts.h"
#include "run_pool.h"
#include "stages.h"

/* the waiting queue: arrival order, or the least (priority, arrival, order) first */

static int stands_before(const sequence *a, const sequence *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->arrival != b->arrival)
        return a->arrival < b->arrival;
    return a->order != b->order ? a->order < b->order : a->request < b->request;
}

static void heap_up(vllm_v1 *v, i64 at)
{
    sequence **heap = v->by_priority.at, *r = heap[at];
    for (; at && stands_before(r, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = r;
}

static void heap_remove(vllm_v1 *v, i64 at)
{
    sequence **heap = v->by_priority.at;
    i64 count = --v->by_priority.count;
    if (at == count)
        return;
    sequence *r = heap[at] = heap[count];
    heap_up(v, at);
    if (heap[at] != r)
        return;
    for (i64 child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && stands_before(heap[child + 1], heap[child]))
            child++;
        if (!stands_before(heap[child], r))
            break;
        heap[at] = heap[child];
    }
    heap[at] = r;
}

i64 v1_waiting_count(const vllm_v1 *v)
{
    return v->base.limits.priority ? v->by_priority.count : v->base.waiting.count;
}

sequence *v1_waiting_head(vllm_v1 *v)
{
    return v->base.limits.priority ? v->by_priority.at[0] : queue_at(&v->base.waiting, 0);
}

sequence *v1_waiting_pop(vllm_v1 *v)
{
    if (!v->base.limits.priority)
        return queue_pop(&v->base.waiting);
    sequence *r = v->by_priority.at[0];
    heap_remove(v, 0);
    return r;
}

sequence *v1_waiting_defer(vllm_v1 *v)
{
    sequence *r = v1_waiting_pop(v);
    r->deferred = 1;
    return r;
}

/* Whether some request waits that no step has skipped. */
static int has_undeferred(vllm_v1 *v)
{
    for (i64 i = v1_waiting_count(v) - 1; i >= 0; i--)
        if (!(v->base.limits.priority ? v->by_priority.at[i] : queue_at(&v->base.waiting, i))->deferred)
            return 1;
    return 0;
}

static void waiting_add(vllm_v1 *v, sequence *r)
{
    if (v->base.limits.priority) {
        PUSH(v->base.memory, &v->by_priority, r);
        heap_up(v, v->by_priority.count - 1);
    } else {
        queue_append(v->base.memory, &v->base.waiting, r);
    }
}

void v1_waiting_put_back(vllm_v1 *v, sequence *r)
{
    if (v->base.limits.priority)
        waiting_add(v, r);
    else
        queue_prepend(v->base.memory, &v->base.waiting, r);
}

static void waiting_remove(vllm_v1 *v, sequence *r)
{
    if (!v->base.limits.priority) {
        queue_remove(&v->base.waiting, r);
        return;
    }
    for (i64 i = 0; i < v->by_priority.count; i++)
        if (v->by_priority.at[i] == r) {
            heap_remove(v, i);
            return;
        }
}

i64 v1_num_waiting(const policy *p)
{
    return v1_waiting_count((const vllm_v1 *)p);
}

int v1_add(policy *p, sequence *r)
{
    waiting_add((vllm_v1 *)p, r);
    return 1;
}

void v1_add_loaded(policy *p, sequence *r)
{
    if (p->limits.priority)
        waiting_add((vllm_v1 *)p, r);
    else
        insert_loaded(p, r);
}

/* decide */

/* The most tokens of one prefill in this step; 0: no limit. */
i64 v1_threshold(vllm_v1 *v)
{
    const limits *l = &v->base.limits;
    i64 limit = l->long_prefill_token_threshold;
    return limit && l->rules.lone_prefill_exempt && policy_unfinished(&v->base) <= 1 ? 0 : limit;
}

/* Whether prefills wait for decodes in this step (prefill_schedule_interval). */
static int holds_prefill(vllm_v1 *v)
{
    if (v->since_prefill < 0 || v->since_prefill >= v->base.limits.prefill_schedule_interval)
        return 0;
    if (v->admission_bound)
        return 0;
    for (i64 i = 0; i < v->base.running.count; i++)
        if (!v->base.running.at[i]->mid_prefill)
            return 1;
    return 0;
}

/* Register the content of full blocks, only if another one has become full. */
static inline void cache_full(vllm_v1 *v, sequence *r, i64 tokens)
{
    if (tokens < r->next_full)
        return;
    pool *p = v->base.pool;
    p->ops->cache(p, &r->table, tokens);
    r->next_full = tokens / p->block_size * p->block_size + p->block_size;
}

int v1_allocate_running(vllm_v1 *v, sequence *r, i64 tokens)
{
    pool *p = v->base.pool;
    i64 slots = MIN(r->computed + tokens + v->drafts.lookahead_slots, v->base.limits.max_model_len);
    if (slots > r->room) {
        if (p->ops->blocks_needed(p, &r->table, slots, NULL, 0) > p->free_blocks)
            return 0;
        p->ops->grow(p, &r->table, slots, NULL);
        r->room = ceil_div(slots, p->block_size) * p->block_size;
    }
    cache_full(v, r, MIN(r->computed + tokens, r->known));
    return 1;
}

/* Whether these tokens neither need a block nor fill one. */
static inline int has_room(const vllm_v1 *v, const sequence *r, i64 tokens)
{
    i64 end = r->computed + tokens;
    return MIN(end + v->drafts.lookahead_slots, v->base.limits.max_model_len) <= r->room && MIN(end, r->known) < r->next_full;
}

static sequence *victim_of(vllm_v1 *v)
{
    sequences *running = &v->base.running;
    if (!v->base.limits.priority)
        return running->at[running->count - 1];
    sequence *last = running->at[0];
    for (i64 i = 1; i < running->count; i++) {
        sequence *r = running->at[i];
        if (r->priority > last->priority || (r->priority == last->priority && r->arrival > last->arrival))
            last = r;
    }
    return last;
}

/* One token of a generating request: its earlier fields are not needed. */
static inline int commits_at_once(const sequence *r, i64 tokens)
{
    return tokens == 1 && r->computed >= r->prompt_tokens && !r->drafts;
}

/* The part of `v1_commit` for such a row, done when it is decided. */
static inline void add_decode_row(vllm_v1 *v, step *s, sequence *r)
{
    policy *p = &v->base;
    i64 computed = r->computed++;
    int yields = computed + 1 >= r->known;
    add_row(p->memory, s, (row){.sequence = r, .tokens = 1, .computed = computed, .epoch = r->epoch,
                                .yields = yields, .committed = 1});
    r->in_flight_tokens++;
    r->in_flight_yields += yields;
    r->placeholders += yields && p->asynchronous;
    if (yields)
        r->next_call = v->calls + p->limits.pipeline_stages;
    r->mid_prefill = !yields;
    r->rows_in_flight++;
    s->sums.decode_sequences++;
    s->sums.decode_context_tokens += computed + 1;
    s->sums.decode_window_context_tokens += MIN(computed + 1, p->window_tokens);
}

static void undo_decode_row(step *s, sequence *r, const row *w, const policy *p)
{
    r->next_call = 0;
    r->in_flight_tokens--;
    r->in_flight_yields -= w->yields;
    r->rows_in_flight--;
    s->sums.decode_sequences--;
    s->sums.decode_context_tokens -= w->computed + 1;
    s->sums.decode_window_context_tokens -= MIN(w->computed + 1, p->window_tokens);
}

/* Free all blocks of a request and requeue it; return the refunded budget, and 1 in `before` if it was before `index`.
 */
static i64 preempt(vllm_v1 *v, sequence *r, step *s, i64 index, i64 *before)
{
    policy *p = &v->base;
    if (!s->preempted.count) {
        v->order_before.count = 0;
        RESERVE(p->memory, &v->order_before, p->running.count);
        memcpy(v->order_before.at, p->running.at, (size_t)p->running.count * sizeof *p->running.at);
        v->order_before.count = p->running.count;
    }
    i64 position = running_index(p, r), refund = 0;
    REQUIRE(p->memory, position >= 0);
    REMOVE_AT(&p->running, position);
    for (i64 i = 0; i < s->rows.count; i++)
        if (s->rows.at[i].sequence == r) {
            refund = s->rows.at[i].tokens;
            if (s->rows.at[i].committed)
                undo_decode_row(s, r, &s->rows.at[i], p);
            REMOVE_AT(&s->rows, i);
            break;
        }
    p->pool->ops->release(p->pool, &r->table);
    if (v->encoder) {
        encoder_cancel(v->encoder, r);
        encoder_release(v->encoder, r);
    }
    r->lost = r->computed;
    r->computed = r->drafts = r->placeholders = r->deferred = 0;
    r->room = r->next_full = r->next_leave = 0;
    r->epoch++;
    r->preemptions++;
    r->status = WAITING;
    i64 skipped = 0;
    if (!p->limits.priority && !p->limits.rules.skipped_keep_place)
        while (skipped < p->waiting.count && queue_at(&p->waiting, skipped)->deferred)
            skipped++;
    if (skipped)
        queue_insert(p->memory, &p->waiting, skipped, r);
    else
        v1_waiting_put_back(v, r);
    PUSH(p->memory, &s->preempted, r);
    *before = position < index;
    return refund;
}

static i64 schedule_running(vllm_v1 *v, step *s, i64 budget, i64 threshold)
{
    policy *p = &v->base;
    const limits *l = &p->limits;
    i64 index = 0;
    while (index < p->running.count && budget > 0) {
        sequence *r = p->running.at[index++];
        if (v->holds && r->mid_prefill)
            continue;
        if (p->asynchronous && r->known + r->in_flight_yields >= r->max_known)
            continue;
        if (p->staggers && v->calls < r->next_call)
            continue;
        i64 tokens = r->known + r->drafts + r->placeholders - r->computed;
        if (threshold > 0 && threshold < tokens)
            tokens = threshold;
        tokens = MIN(MIN(tokens, budget), l->max_model_len - r->computed - 1);
        if (v->encoder)
            tokens = encoder_schedulable_tokens(v->encoder, r, r->computed, tokens);
        if (tokens <= 0)
            continue;
        leave_windows(p, r, r->computed - (l->rules.window_waits_for_steps ? r->in_flight_tokens : 0));
        int fits = 1;
        while (!has_room(v, r, tokens) && !v1_allocate_running(v, r, tokens)) {
            sequence *victim = victim_of(v);
            i64 before, refund = preempt(v, victim, s, index, &before);
            budget += refund;
            if (refund || victim == r || l->rules.preemption_shifts_index)
                index -= before;
            if (victim == r) {
                fits = 0;
                break;
            }
        }
        if (!fits) {
            if (l->priority && l->rules.self_preempt_continues)
                continue;
            break;
        }
        if (v->encoder)
            encoder_encode(v->encoder, r, r->computed, tokens);
        budget -= tokens;
        v->prefill_scheduled |= r->mid_prefill;
        if (!v->speculates && commits_at_once(r, tokens)) {
            add_decode_row(v, s, r);
            continue;
        }
        i64 drafts = tokens + r->computed - r->known - r->placeholders;
        add_row(p->memory, s, (row){.sequence = r, .tokens = tokens, .computed = r->computed, .drafts = MAX(drafts, 0),
                                    .yields = r->computed + tokens >= r->known, .epoch = r->epoch});
    }
    return budget;
}

/* Whether a request that starts with one token to compute gets drafts: if no running request of this step is in its
 * prefill, and either some run or the other tokens of the request are cached. */
static int pads_speculation(const vllm_v1 *v, i64 computed)
{
    const core_rules *rules = &v->base.limits.rules;
    int starts_cached = rules->pads_cached_starts && computed > 0;
    return rules->pads_drafts && !v->prefill_scheduled && (v->some_scheduled || starts_cached);
}

static int admit(vllm_v1 *v, sequence *r, i64 tokens, const hit *h)
{
    policy *p = &v->base;
    pool *q = p->pool;
    const limits *l = &p->limits;
    i64 free_blocks = q->free_blocks;
    if (l->watermark_blocks && p->running.count)
        free_blocks -= l->watermark_blocks;
    i64 end = h->tokens + tokens;
    i64 lookahead = l->rules.admits_with_lookahead ? v->drafts.lookahead_slots : 0;
    i64 slots = MIN(end + lookahead, l->max_model_len);
    if (l->reserve_full_isl && end != r->known) {
        i64 whole = MIN(r->known, l->max_model_len);
        if (q->ops->blocks_needed(q, &r->table, whole, h, 1) > free_blocks)
            return 0;
    }
    if (q->ops->blocks_needed(q, &r->table, slots, h, 0) > free_blocks)
        return 0;
    q->ops->grow(q, &r->table, slots, h);
    r->room = ceil_div(slots, q->block_size) * q->block_size;
    cache_full(v, r, MIN(end, r->known));
    return 1;
}

/* The last of the running requests. */
void v1_run(vllm_v1 *v, sequence *r)
{
    r->place = v->base.running.count;
    PUSH(v->base.memory, &v->base.running, r);
    r->status = RUNNING;
    r->ticket = v->next_ticket++;
}

/* Start the head of the queue; return its tokens in this step, 0 if it does not fit. */
i64 v1_start(vllm_v1 *v, sequence *r, step *s, i64 budget, i64 threshold)
{
    policy *p = &v->base;
    const hit *h = p->pool->ops->lookup(p->pool, &r->table, r->known - 1);
    i64 computed = h->tokens, tokens = r->known - computed;
    int is_prefill = tokens > 1;
    if (v->holds && is_prefill)
        return 0;
    if (threshold > 0 && threshold < tokens)
        tokens = threshold;
    if (tokens > budget) {
        if (!p->limits.enable_chunked_prefill)
            return 0;
        tokens = budget;
    }
    if (v->encoder && !(tokens = encoder_schedulable_tokens(v->encoder, r, computed, tokens)))
        return 0;
    if (v->speculates && !is_prefill && pads_speculation(v, computed)) {
        i64 padded = 1 + v->drafts.k, starts_unpadded = p->limits.rules.starts_without_room;
        int pads = computed + padded + starts_unpadded <= p->limits.max_model_len;
        if (pads ? padded > budget : !starts_unpadded)
            return 0;
        if (pads) {
            tokens = padded;
            r->drafts = v->drafts.k;
        }
    }
    if (!admit(v, r, tokens, h)) {
        r->drafts = 0;
        return 0;
    }
    if (v->encoder)
        encoder_encode(v->encoder, r, computed, tokens);
    v1_waiting_pop(v);
    if (p->waiting.count)
        __builtin_prefetch(queue_at(&p->waiting, 0));
    v1_run(v, r);
    v->prefill_started |= is_prefill;
    r->computed = computed;
    i64 drafts = tokens + computed - r->known;
    add_row(p->memory, s, (row){.sequence = r, .tokens = tokens, .computed = computed, .drafts = MAX(drafts, 0),
                                .yields = drafts >= 0, .epoch = r->epoch, .cached = computed});
    return tokens;
}

/* Start requests from the head of the queue until one does not fit. */
void v1_admit_waiting(policy *p, step *s, i64 budget)
{
    vllm_v1 *v = (vllm_v1 *)p;
    i64 threshold = p->limits.long_prefill_token_threshold ? v1_threshold(v) : 0;
    v->aside.count = 0;
    while (v1_waiting_count(v) && budget > 0 && p->running.count < p->limits.max_active) {
        if (waits_for_output(v, v1_waiting_head(v))) {
            PUSH(p->memory, &v->aside, v1_waiting_defer(v));
            continue;
        }
        i64 tokens = v1_start(v, v1_waiting_head(v), s, budget, threshold);
        if (!tokens)
            break;
        budget -= tokens;
    }
    for (i64 i = v->aside.count - 1; i >= 0; i--)
        v1_waiting_put_back(v, v->aside.at[i]);
}

/* Count the scheduled tokens as computed at once; the step's output corrects this. */
void v1_commit(vllm_v1 *v, step *s)
{
    for (i64 i = 0; i < s->rows.count; i++) {
        row *w = &s->rows.at[i];
        if (w->committed)
            continue;
        sequence *r = w->sequence;
        count_row(&v->base, s, w);
        r->computed += w->tokens;
        r->in_flight_tokens += w->tokens;
        r->mid_prefill = !w->yields;
        r->drafts = 0;
        if (w->yields) {
            r->in_flight_yields++;
            r->next_call = v->calls + v->base.limits.pipeline_stages;
            if (v->base.asynchronous) {
                r->placeholders += 1 + w->drafts;
                r->drafts = v->speculates ? v->drafts.k : 0;
            }
        }
    }
    if (v->prefill_scheduled || v->prefill_started)
        v->since_prefill = 1;
    else if (s->rows.count && v->since_prefill >= 0)
        v->since_prefill++;
}

/* Preempted requests, in the previous order of the running list. */
static void sort_preempted(vllm_v1 *v, step *s)
{
    i64 sorted = 0;
    for (i64 i = 0; i < v->order_before.count; i++)
        for (i64 k = sorted; k < s->preempted.count; k++)
            if (s->preempted.at[k] == v->order_before.at[i]) {
                sequence *r = s->preempted.at[k];
                s->preempted.at[k] = s->preempted.at[sorted];
                s->preempted.at[sorted++] = r;
                break;
            }
}

static void schedule_rows(vllm_v1 *v, step *s)
{
    policy *p = &v->base;
    i64 threshold = v1_threshold(v);
    if (v->encoder)
        encoder_begin_step(v->encoder);
    v->holds = holds_prefill(v);
    v->prefill_scheduled = v->prefill_started = 0;
    i64 budget = schedule_running(v, s, p->limits.max_num_batched_tokens, threshold);
    v->some_scheduled = s->rows.count > 0;
    if (!s->preempted.count) {
        v->admit_waiting(p, s, budget);
        if (!v->holds)
            v->admission_bound = has_undeferred(v);
    }
    if (s->preempted.count > 1)
        sort_preempted(v, s);
    v1_commit(v, s);
    if (v->encoder)
        encoder_count(v->encoder, &s->sums);
}

/* Decisions by sums. As long as the group is active, the running list is unordered and tickets give the order. */

/* Whether a request is the last of the running list. */
static int is_last(const vllm_v1 *v, const sequence *r)
{
    const sequences *running = &v->base.running;
    for (i64 i = 0; r->ticket + 1 < v->next_ticket && i < running->count; i++)
        if (running->at[i]->ticket > r->ticket)
            return 0;
    return 1;
}

static void leave_running(policy *p, const sequence *r)
{
    sequence *last = p->running.at[--p->running.count];
    p->running.at[r->place] = last;
    last->place = r->place;
}

/* The next chunk of every unfinished prompt; 0 if the budget or the pool would decide by list order. */
static int take_chunks(vllm_v1 *v, step *s, i64 *budget, i64 free_blocks)
{
    policy *p = &v->base;
    pool *q = p->pool;
    sequences *prefilling = &v->group.prefilling;
    i64 threshold = v1_threshold(v);
    for (i64 i = 0; i < prefilling->count; i++) {
        sequence *r = prefilling->at[i];
        i64 tokens = r->known - r->computed;
        if (threshold > 0 && threshold < tokens)
            tokens = threshold;
        if (*budget <= 0)
            return 0;
        if (tokens > *budget) {
            if (!is_last(v, r))
                return 0;
            tokens = *budget;
        }
        free_blocks -= q->ops->blocks_needed(q, &r->table, r->computed + tokens, NULL, 0);
        if (free_blocks < 0)
            return 0;
        *budget -= tokens;
        add_row(p->memory, s, (row){.sequence = r, .tokens = tokens, .computed = r->computed,
                                    .yields = r->computed + tokens >= r->known, .epoch = r->epoch});
    }
    return 1;
}

/* One step of a group and other rows; 0: the policy itself has to decide. Prefilling requests are in `v->group`. */
int v1_schedule_group(vllm_v1 *v, decode_group *g, step *s)
{
    policy *p = &v->base;
    sequences *prefilling = &v->group.prefilling;
    i64 budget = p->limits.max_num_batched_tokens - g->size;
    group_find_due(g);
    i64 new_blocks = group_blocks_needed(g);
    if (new_blocks > p->pool->free_blocks)
        return 0;
    if (prefilling->count && !take_chunks(v, s, &budget, p->pool->free_blocks - new_blocks)) {
        s->rows.count = 0;
        return 0;
    }
    group_allocate(g, s, v->pending);
    if (budget > 0)
        v->admit_waiting(p, s, budget);
    if (!s->rows.count && !g->size)
        return 1;
    s->grouped = 1;
    s->group = g->size;
    s->sums.decode_sequences = g->size;
    s->sums.decode_context_tokens = g->contexts;
    s->sums.decode_window_context_tokens = group_window_contexts(g);
    group_step(g, &s->ending);
    prefilling->count = 0;
    for (i64 i = 0; i < s->rows.count; i++) {
        row *w = &s->rows.at[i];
        sequence *r = w->sequence;
        count_row(p, s, w);
        r->computed = w->computed + w->tokens;
        if (!w->yields)
            PUSH(p->memory, prefilling, r);
        else if (r->known + 1 >= r->max_known)
            PUSH(p->memory, &s->ending, r);
        else
            group_join(g, r, r->computed, g->clock);
    }
    group_sort(&s->ending);
    return 1;
}

static const row *row_of(const step *s, const sequence *r)
{
    for (i64 i = 0; s && i < s->rows.count; i++)
        if (s->rows.at[i].sequence == r)
            return &s->rows.at[i];
    return NULL;
}

static int is_ending(const step *s, const sequence *r)
{
    for (i64 i = 0; s && i < s->ending.count; i++)
        if (s->ending.at[i] == r)
            return 1;
    return 0;
}

static int is_prefilling(const decode_group *g, const sequence *r)
{
    for (i64 i = 0; i < g->prefilling.count; i++)
        if (g->prefilling.at[i] == r)
            return 1;
    return 0;
}

/* Restore the state of every request, and the rows of the pending step. */
static void spell_out(vllm_v1 *v)
{
    policy *p = &v->base;
    pool *q = p->pool;
    decode_group *g = &v->group;
    step *pending = v->pending;
    sequences *running = &p->running;
    VEC(row) rows = {0};
    group_sort(running);
    for (i64 i = 0; i < running->count; i++) {
        sequence *r = running->at[i];
        const row *w = row_of(pending, r);
        int ends = is_ending(pending, r), grouped = !ends && !is_prefilling(g, r);
        r->room = r->next_full = r->next_leave = 0;
        if (grouped || (ends && !w)) {
            r->computed = ends ? r->max_known - 1 : r->offset + g->clock;
            r->known = pending ? r->computed : r->computed + 1;
            if (!g->visits) {
                r->table.held = ceil_div(r->computed, q->block_size);
                q->ops->cache(q, &r->table, r->computed - (pending ? 1 : 0));
            }
            if (!w)
                r->last_token = v->last_end_ps;
        }
        r->in_flight_tokens = r->in_flight_yields = r->placeholders = 0;
        if (!pending || (!w && !grouped && !ends))
            continue;
        row mine = w ? *w
                     : (row){.sequence = r, .tokens = 1, .computed = r->computed - 1, .yields = 1, .epoch = r->epoch};
        if (!w)
            r->rows_in_flight++;
        PUSH(p->memory, &rows, mine);
        r->in_flight_tokens = mine.tokens;
        r->in_flight_yields = r->placeholders = mine.yields;
    }
    if (pending) {
        pending->rows.count = 0;
        for (i64 i = 0; i < rows.count; i++)
            PUSH(p->memory, &pending->rows, rows.at[i]);
        pending->grouped = 0;
        pending->group = 0;
        pending->ending.count = 0;
    }
    free_memory(p->memory, rows.at);
    group_clear(g);
}

/* Form the group from the policy's state, if that is regular. */
static int take_over(vllm_v1 *v)
{
    policy *p = &v->base;
    decode_group *g = &v->group;
    step *pending = v->pending;
    sequences *running = &p->running;
    if (pending) {
        if (!pending->rows.count || pending->preempted.count)
            return 0;
        for (i64 i = 0; i < pending->rows.count; i++)
            if (pending->rows.at[i].sequence->status == FINISHED)
                return 0;
    }
    group_clear(g);
    i64 kept = 0, next = 0;
    for (i64 i = 0; i < running->count; i++) {
        sequence *r = running->at[i];
        r->in_flight_tokens = r->in_flight_yields = r->placeholders = 0;
        r->ticket = v->next_ticket++;
        r->place = i;
        int in_step = r->last_token == v->last_end_ps; /* it took part in the last step */
        const row *w = NULL; /* rows are in the order of the running list */
        if (pending && next < pending->rows.count && pending->rows.at[next].sequence == r)
            w = &pending->rows.at[next++];
        if (!w) {
            if (r->known - r->computed == 1 && in_step && !pending)
                group_join(g, r, r->computed, 0);
            else
                PUSH(p->memory, &g->prefilling, r);
            continue;
        }
        row mine = *w;
        if (mine.yields && in_step && mine.tokens == 1) {
            pending->group++;
            r->rows_in_flight--;
        } else {
            pending->rows.at[kept++] = mine;
        }
        if (mine.yields && r->known + 1 >= r->max_known) {
            PUSH(p->memory, &pending->ending, r);
            r->offset = 0;
        } else if (mine.yields) {
            group_join(g, r, r->computed, 0);
        } else {
            PUSH(p->memory, &g->prefilling, r);
        }
    }
    if (pending) {
        pending->rows.count = kept;
        pending->grouped = 1;
    }
    g->active = 1;
    return 1;
}

void v1_schedule(policy *p, step *s, i64 now_ps)
{
    (void)now_ps;
    vllm_v1 *v = (vllm_v1 *)p;
    v->calls++;
    int by_sums = v->regular && (v->group.active || take_over(v));
    if (v->stages)
        by_sums = stages_schedule(v, s);
    else if (v->drafted)
        by_sums = drafts_schedule(v, s);
    else if (by_sums && !v1_schedule_group(v, &v->group, s)) {
        spell_out(v);
        by_sums = 0;
    }
    if (!by_sums)
        schedule_rows(v, s);
    if (s->rows.count || s->group || s->preempted.count)
        v1_launched(v, s);
}

/* Add the step to those in flight. */
void v1_launched(vllm_v1 *v, step *s)
{
    v->pending = s;
    v->num_pending++;
    if (v->stages)
        stages_launched(v, s);
}

/* account */

static int append(vllm_v1 *v, sequence *r, const row *w, step *s)
{
    i64 accepted = 0;
    if (w->drafts && v->speculates)
        accepted = accepted_drafts(&v->drafts, r, w->drafts);
    i64 new_tokens = MIN(1 + accepted, r->max_known - r->known);
    r->known += new_tokens;
    emit(&v->base, s, r);
    if (w->epoch == r->epoch) {
        r->computed -= w->drafts - accepted;
        if (v->base.asynchronous)
            r->placeholders -= 1 + w->drafts;
        else if (v->speculates)
            r->drafts = v->drafts.k;
        if (v->base.asynchronous || v->base.limits.rules.caches_accepted_drafts)
            cache_full(v, r, MIN(r->computed - r->placeholders, r->known - 1));
    }
    return r->known >= r->max_known;
}

void v1_finish(vllm_v1 *v, sequence *r)
{
    if (r->status == WAITING)
        waiting_remove(v, r);
    else
        remove_running(&v->base, r);
    v->base.pool->ops->release(v->base.pool, &r->table);
    if (v->encoder)
        encoder_release(v->encoder, r);
    r->status = FINISHED;
}

void v1_abort(policy *p, sequence *r)
{
    vllm_v1 *v = (vllm_v1 *)p;
    if (v->group.active)
        spell_out(v);
    if (v->stages)
        stages_spell_out(v);
    if (v->drafted)
        drafts_spell_out(v);
    v->finish(v, r);
}

/* Account the end of a step whose decode rows are stored as sums. */
static void update_group(vllm_v1 *v, step *s)
{
    policy *p = &v->base;
    if (s->group)
        s->group_gap_ps = s->end - v->last_end_ps;
    for (i64 i = 0; i < s->rows.count; i++) {
        sequence *r = s->rows.at[i].sequence;
        row_ends(p, s, r);
        if (s->rows.at[i].yields)
            emit(p, s, r);
    }
    for (i64 i = 0; i < s->ending.count; i++) {
        sequence *r = s->ending.at[i];
        r->known = r->max_known;
        if (v->group.visits) {
            p->pool->ops->cache(p->pool, &r->table, r->known - 1);
            p->pool->ops->release(p->pool, &r->table);
        } else {
            run_pool_finish(p->pool, &r->table, r->known - 1);
        }
        leave_running(p, r);
        r->status = FINISHED;
        PUSH(p->memory, &s->finished, r);
    }
}

void v1_update_rows(vllm_v1 *v, step *s)
{
    policy *p = &v->base;
    for (i64 i = 0; i < s->rows.count; i++) {
        row *w = &s->rows.at[i];
        sequence *r = w->sequence;
        r->in_flight_tokens -= w->tokens;
        if (w->yields)
            r->in_flight_yields--;
        if (v->encoder && w->epoch == r->epoch)
            encoder_free_computed(v->encoder, r);
        if (row_ends(p, s, r) || !w->yields)
            continue;
        if (append(v, r, w, s))
            PUSH(p->memory, &s->finished, r);
    }
}

/* Append the sampled tokens; fill `finished` in row order. */
void v1_update(policy *p, step *s)
{
    vllm_v1 *v = (vllm_v1 *)p;
    if (v->pending == s)
        v->pending = NULL;
    v->num_pending--;
    for (i64 i = 0; i < s->gone.count; i++)
        s->gone.at[i]->rows_in_flight--; /* they ended in the previous step, as members of a group */
    if (v->stages)
        stages_ended(v, s);
    if (v->drafted && drafts_update(v, s))
        return;
    if (s->grouped) {
        update_group(v, s);
        v->last_end_ps = s->end;
        return;
    }
    v->last_end_ps = s->end;
    i64 already = s->finished.count;
    v1_update_rows(v, s);
    for (i64 i = already; i < s->finished.count; i++)
        v->finish(v, s->finished.at[i]);
}

static const policy_ops V1_OPS = {
    .add = v1_add, .add_loaded = v1_add_loaded, .schedule = v1_schedule, .update = v1_update,
    .abort = v1_abort, .num_waiting = v1_num_waiting,
};

/* Whether and how the rows of this engine can be stored as sums. */
static void init_groups(vllm_v1 *v, const policy_ops *ops, const core_engine *setup)
{
    policy *p = &v->base;
    int plain = ops == &V1_OPS;
    if (setup->max_loras || p->limits.prefill_schedule_interval > 1
        || setup->data_parallel_size > 1 || setup->keep_log || p->streams || setup->contiguous_blocks || v->encoder)
        return;
    group_init(&v->group, p->memory, setup, p->pool);
    if (!v->speculates && p->limits.pipeline_stages == 1)
        v->regular = 1;
    else if (!v->speculates && plain && !p->asynchronous && !v->group.visits)
        v->stages = stages_new(p->memory, setup, p->pool);
    else if (v->speculates && plain)
        v->drafted = drafts_new(v, setup);
}

void vllm_v1_init(vllm_v1 *v, const policy_ops *ops, memory *m, const core_engine *setup, pool *pool)
{
    policy *p = &v->base;
    policy_init(p, ops, m, setup, pool);
    p->aborts = 1;
    p->steps_in_flight = v1_steps_in_flight(setup);
    p->staggers = p->asynchronous && setup->pipeline_stages > 1;
    p->empty_steps = setup->rules.empty_steps_fill_queue ? p->steps_in_flight : 1;
    v->speculates = setup->draft_tokens > 0;
    v->drafts = (speculation){setup->draft_tokens, setup->lookahead_slots, setup->num_accept, setup->num_rates, setup->num_classes,
                              setup->accept, setup->rates, setup->draft_seed};
    v->since_prefill = -1;
    v->admit_waiting = v1_admit_waiting;
    v->finish = v1_finish;
    v->next_ticket = 1;
    v->last_end_ps = MISSING;
    v->encoder = setup->max_encoder_tokens ? encoder_new(m, setup->max_encoder_tokens) : NULL;
    init_groups(v, ops, setup);
}

policy *vllm_v1_new(memory *m, const core_engine *setup, pool *pool)
{
    vllm_v1 *v = take_memory(m, sizeof *v);
    vllm_v1_init(v, &V1_OPS, m, setup, pool);
    return &v->base;
}
