/* SGLang: prefill first. While any waiting prompt can start, a step only prefills. See sglang.py. */
#include <stdlib.h>

#include "batching.h"

#define CLIPPED_OUTPUT_TOKENS 4096 /* most tokens reserved for an output */
#define INITIAL_RATIO 0.7          /* fraction of outputs reserved at the start, times the conservativeness */
#define LEAST_RATIO 0.14           /* times the initial ratio */
#define DECAY_STEPS 600            /* decode steps from the initial to the least ratio */
#define RETRACT_DECODE_STEPS 20    /* expected further tokens per request after a retraction */
#define WINDOW_EVICTION_TOKENS 128 /* a request frees this many tokens behind its window at once */
#define NO_ROOM INT64_MIN          /* no chunk of the request fits in the pool of windows */
#define LPM_LIMIT 128 /* waiting requests above which longest-prefix-match falls back to first come first served */

typedef struct {
    batching base;
    int lpm, mixed_chunk, ignore_eos;
    int full; /* no request starts before the running batch becomes smaller */
    i64 max_prefill_tokens, recv_interval;
    i64 window, window_tokens;
    i64 window_used; /* tokens of the pool of windows that running requests keep */
    i64 window_room; /* tokens that requests which start in this step can reserve there */
    i64 decodes;      /* decode steps since requests were last received */
    i64 not_received; /* requests at the end of the queue that the scheduler has not received */
    double initial_ratio, least_ratio, new_token_ratio;
    sequence *chunked;
    VEC(i64) hits;                    /* cached tokens of waiting requests, in their order */
    VEC(struct candidate) candidates; /* for retraction */
    sequences stay;
} sglang;

struct candidate {
    i64 outputs, prompt_tokens, place;
    sequence *sequence;
};

/* decide */

/* Tokens of the pages that `tokens` tokens need. */
static i64 whole_pages(const sglang *p, i64 tokens)
{
    i64 page = p->base.policy.pool->block_size;
    return (tokens + page - 1) / page * page;
}

static i64 outputs_left(const sequence *r) { return MIN(r->asked_known - r->known, CLIPPED_OUTPUT_TOKENS); }

/* Tokens that a request which starts in this step reserves in addition to its prompt. */
static i64 reserved_tokens(const sglang *p, const sequence *r)
{
    const policy *base = &p->base.policy;
    i64 page = base->limits.rules.reserves_page ? base->pool->block_size : 0;
    return MIN(r->asked_known - r->prompt_tokens, CLIPPED_OUTPUT_TOKENS) + page;
}

/* Tokens that the running requests are expected to generate; the chunked one does not count. */
static double promised_tokens(const sglang *p)
{
    const policy *base = &p->base.policy;
    int every = p->ignore_eos && base->limits.rules.reserves_ignored_eos;
    i64 promised = 0;
    for (i64 i = 0; i < base->running.count; i++)
        if (base->running.at[i] != p->chunked)
            promised += outputs_left(base->running.at[i]);
    return (every ? 1.0 : p->new_token_ratio) * (double)promised;
}

/* The separate pool of layers with a window. */

static int budgets_windows(const sglang *p)
{
    return p->window_tokens > 0 && p->base.policy.limits.rules.budgets_windows_apart;
}

/* Tokens that a request keeps in it: the window of its prompt, chunks in flight, and late outputs. */
static i64 kept_in_windows(const sglang *p, const sequence *r)
{
    const policy *base = &p->base.policy;
    const core_rules *rules = &base->limits.rules;
    if (!p->window_tokens)
        return 0;
    i64 outputs = MAX(r->computed - r->prompt_tokens, 0);
    i64 chunk = MAX(r->in_flight_tokens - outputs, 0);
    i64 locked = rules->locks_windows_only ? p->window : MAX(p->window, base->limits.max_num_batched_tokens);
    i64 every = rules->frees_windows_by_128 ? WINDOW_EVICTION_TOKENS : p->window;
    i64 behind = outputs - p->window - every + (r->prompt_tokens < every ? r->prompt_tokens : 0);
    i64 kept = behind < 0 ? outputs : p->window + behind % every;
    return MIN(r->computed - outputs - chunk, locked) + chunk + kept;
}

static void count_windows(sglang *p)
{
    const policy *base = &p->base.policy;
    p->window_used = 0;
    for (i64 i = 0; p->window_tokens && i < base->running.count; i++)
        p->window_used += kept_in_windows(p, base->running.at[i]);
}

static i64 window_headroom(const sglang *p, const sequence *r, i64 tokens)
{
    return MIN(tokens + outputs_left(r), p->window) + p->base.policy.pool->block_size;
}

/* Tokens that a prompt part and its outputs reserve in the pool of windows. */
static i64 window_budget(const sglang *p, const sequence *r, i64 tokens, i64 chunk_left)
{
    const policy *base = &p->base.policy;
    if (!budgets_windows(p))
        return tokens;
    i64 pages = whole_pages(p, tokens);
    i64 chunk = base->limits.enable_chunked_prefill ? MIN(pages, chunk_left) : pages;
    if (!base->limits.rules.budgets_window_outputs)
        return MAX(chunk, p->window) + base->pool->block_size;
    return MAX(chunk - p->window, 0) + window_headroom(p, r, pages);
}

/* The most tokens of a prompt in this step, or NO_ROOM. Only a request that never fits gets smaller chunks. */
static i64 chunk_limit(const sglang *p, const sequence *r, i64 hit, i64 chunk_left)
{
    i64 budget = window_budget(p, r, r->known - hit, chunk_left), room = p->window_room - MIN(hit, p->window);
    if (!budgets_windows(p) || budget < room)
        return chunk_left;
    i64 most = room - window_headroom(p, r, 0);
    int never = p->base.policy.limits.enable_chunked_prefill && budget >= p->window_tokens;
    return never && most > 0 ? MIN(chunk_left, most) : NO_ROOM;
}

/* Free tokens without those of a prefix; before separate budgets, of the smaller pool. */
static i64 free_tokens(const sglang *p, i64 evictable, i64 locked)
{
    const pool *blocks = p->base.policy.pool;
    i64 left = blocks->free_blocks * blocks->block_size - evictable;
    return p->window_tokens && !budgets_windows(p) ? MIN(left, p->window_room - locked) : left;
}

/* Whether any request could start after those of this step. */
static int has_memory(const sglang *p, double promised)
{
    return (double)free_tokens(p, 0, 0) > promised && !(budgets_windows(p) && p->window_room <= 0);
}

/* Whether the next tokens of these requests fit in all pools. */
static int can_decode(const sglang *p, const sequences *rows)
{
    if (p->window_tokens && p->window_used + rows->count > p->window_tokens)
        return 0;
    return batching_fits(&p->base, rows);
}

static i64 received(const sglang *p) { return p->base.policy.waiting.count - p->not_received; }

/* Whether requests start by the length of their cached prefix; look it up for all waiting requests. */
static int ordered_by_prefix(sglang *p)
{
    policy *base = &p->base.policy;
    if (!p->lpm || received(p) > LPM_LIMIT)
        return 0;
    p->hits.count = 0;
    for (i64 i = 0; i < received(p); i++) {
        sequence *r = queue_at(&base->waiting, i);
        PUSH(base->memory, &p->hits, base->pool->ops->lookup(base->pool, &r->table, r->known - 1)->tokens);
    }
    return 1;
}

/* Position in the queue of the next request: the first, or the first with the longest prefix. */
static i64 next_place(const sglang *p, int by_prefix)
{
    i64 longest = 0;
    if (by_prefix)
        for (i64 i = 1; i < p->hits.count; i++)
            if (p->hits.at[i] > p->hits.at[longest])
                longest = i;
    return longest;
}

/* Start requests with KV from a prefill engine. Their rows compute nothing and yield the first token. */
static void start_loaded(sglang *p, step *s)
{
    policy *base = &p->base.policy;
    pool *blocks = base->pool;
    while (base->waiting.count && base->running.count < base->limits.max_num_seqs) {
        sequence *r = queue_at(&base->waiting, 0);
        if (!blocks->ops->held_blocks(blocks, &r->table))
            break;
        queue_pop(&base->waiting);
        batching_prefill(&p->base, s, r, 0, blocks->ops->lookup(blocks, &r->table, r->known));
    }
}

static void start_prompts(sglang *p, step *s, i64 chunk_left, i64 input_left, double promised)
{
    policy *base = &p->base.policy;
    pool *blocks = base->pool;
    const core_rules *rules = &base->limits.rules;
    int chunking = base->limits.enable_chunked_prefill;
    i64 page = blocks->block_size;
    int by_prefix = ordered_by_prefix(p), spent = input_left <= 0 || (chunking && chunk_left <= 0);
    if (spent && s->rows.count && rules->spent_step_ends && has_memory(p, promised))
        return;
    while (received(p) > 0) {
        if (base->running.count >= base->limits.max_num_seqs) {
            p->full = 1;
            break;
        }
        i64 place = next_place(p, by_prefix);
        sequence *r = queue_at(&base->waiting, place);
        if (r->in_flight_yields)
            break;
        const hit *h = blocks->ops->lookup(blocks, &r->table, r->known - 1);
        i64 extend = r->known - h->tokens;
        i64 needed = extend + outputs_left(r) + (rules->admits_with_page ? page : 0);
        i64 unlocked = blocks_needed(&p->base, r, h->tokens, h); /* blocks of the prefix that are evictable */
        /* a loaded request behind a retracted one already has its blocks */
        int loaded = blocks->ops->held_blocks(blocks, &r->table) > 0;
        i64 limit = chunk_limit(p, r, h->tokens, chunk_left), locked = MIN(h->tokens, p->window);
        double left = (double)free_tokens(p, unlocked * page, locked) - promised;
        if (!loaded && (limit == NO_ROOM || (double)needed >= left)) {
            p->full = base->running.count > 0;
            break;
        }
        if (limit == NO_ROOM)
            limit = chunk_left;
        if (spent)
            break;
        if (!(chunking && rules->chunks_past_prefill_limit) && s->rows.count && whole_pages(p, extend) >= input_left)
            break;
        i64 tokens = extend;
        if (chunking && whole_pages(p, extend) > limit) {
            tokens = limit / page * page;
            if (tokens <= 0)
                break;
        }
        if (blocks_needed(&p->base, r, h->tokens + tokens, h) > blocks->free_blocks)
            break;
        if (place)
            queue_remove(&base->waiting, r);
        else
            queue_pop(&base->waiting);
        if (by_prefix)
            REMOVE_AT(&p->hits, place);
        batching_prefill(&p->base, s, r, tokens, h);
        p->window_used += tokens + locked;
        p->window_room -= window_budget(p, r, tokens, chunk_left) + locked;
        if (tokens < extend) {
            p->chunked = r;
            p->full = 0;
            break;
        }
        chunk_left -= whole_pages(p, tokens);
        input_left -= whole_pages(p, tokens);
        promised += (double)reserved_tokens(p, r);
        if (!has_memory(p, promised)) {
            p->full = 1;
            break;
        }
        if (input_left <= 0 || (chunking && chunk_left <= 0))
            break;
    }
}

static void prefill(sglang *p, step *s, i64 num_generating)
{
    policy *base = &p->base.policy;
    sequence *r = p->chunked;
    if (base->running.count == (r != NULL) || (p->window_tokens && base->limits.rules.retries_windowed_prompts))
        p->full = 0;
    if (!r && (p->full || received(p) <= 0))
        return;
    i64 chunk_left = base->limits.max_num_batched_tokens;
    i64 input_left = p->max_prefill_tokens - num_generating;
    if (base->limits.enable_chunked_prefill)
        chunk_left -= num_generating;
    double promised = (double)num_generating + promised_tokens(p);
    p->window_room = p->window_tokens - p->window_used;
    if (r) {
        i64 left = (i64)((double)free_tokens(p, 0, 0) - promised);
        i64 tokens = left > 0 ? MIN(chunk_left, left) : chunk_left;
        if (budgets_windows(p))
            tokens = MIN(MIN(chunk_left, left), p->window_room - base->pool->block_size);
        tokens = MIN(r->known - r->computed, tokens);
        if (tokens <= 0 || blocks_needed(&p->base, r, r->computed + tokens, NULL) > base->pool->free_blocks)
            return;
        batching_prefill(&p->base, s, r, tokens, NULL);
        p->window_used += tokens;
        if (!s->rows.at[s->rows.count - 1].yields) {
            p->full = 0;
            return;
        }
        p->chunked = NULL;
        p->window_room -= window_budget(p, r, tokens, chunk_left);
        chunk_left -= whole_pages(p, tokens);
        input_left -= whole_pages(p, tokens);
        promised += (double)reserved_tokens(p, r);
    }
    if (received(p) > 0)
        start_prompts(p, s, chunk_left, input_left, promised);
}

/* The chunked request does not decode before its last chunk is computed. */
static void generating(sglang *p)
{
    batching_generating(&p->base);
    sequences *rows = &p->base.generating;
    for (i64 i = 0; p->chunked && i < rows->count; i++)
        if (rows->at[i] == p->chunked) {
            REMOVE_AT(rows, i);
            break;
        }
}

/* Most outputs first, then the shortest prompt; equals in running order. */
static int compared(const void *one, const void *other)
{
    const struct candidate *a = one, *b = other;
    if (a->outputs != b->outputs)
        return a->outputs > b->outputs ? -1 : 1;
    if (a->prompt_tokens != b->prompt_tokens)
        return a->prompt_tokens < b->prompt_tokens ? -1 : 1;
    return a->place < b->place ? -1 : 1;
}

static void sort_to_stay(sglang *p, const sequences *rows)
{
    memory *m = p->base.policy.memory;
    p->candidates.count = p->stay.count = 0;
    for (i64 i = 0; i < rows->count; i++) {
        sequence *r = rows->at[i];
        PUSH(m, &p->candidates, ((struct candidate){r->known - r->prompt_tokens, r->prompt_tokens, i, r}));
    }
    qsort(p->candidates.at, (size_t)rows->count, sizeof *p->candidates.at, compared);
    for (i64 i = 0; i < rows->count; i++)
        PUSH(m, &p->stay, p->candidates.at[i].sequence);
}

/* Retract requests with the fewest outputs, then the longest prompts, until the others fit; keep one. They wait behind
 * all requests that the scheduler has received. */
static void retract(sglang *p, step *s)
{
    sequences *rows = &p->base.generating, *stay = &p->stay;
    sort_to_stay(p, rows);
    while (stay->count > 1 && !can_decode(p, stay)) {
        policy *base = &p->base.policy;
        sequence *last = stay->at[--stay->count];
        p->window_used -= kept_in_windows(p, last);
        batching_give_up(&p->base, last, s);
        queue_pop(&base->waiting);
        queue_insert(base->memory, &base->waiting, received(p), last);
        p->full = 0;
    }
    if (!can_decode(p, stay)) {
        rows->count = 0; /* SGLang aborts the last request; the simulator reports the stall */
        return;
    }
    i64 produced = 0, wanted = 0;
    for (i64 i = 0; i < stay->count; i++) {
        const sequence *r = stay->at[i];
        produced += r->known - r->prompt_tokens;
        wanted += r->asked_known - r->prompt_tokens;
    }
    double ratio = (double)(produced + RETRACT_DECODE_STEPS * stay->count) / (double)(wanted + 1);
    p->new_token_ratio = ratio < 1.0 ? ratio : 1.0;
    i64 kept = 0;
    for (i64 i = 0; i < rows->count; i++)
        if (rows->at[i]->status == RUNNING)
            rows->at[kept++] = rows->at[i];
    rows->count = kept;
}

/* A decode row for each request that `generating` found. */
static void decode(sglang *p, step *s)
{
    const sequences *rows = &p->base.generating;
    if (!rows->count)
        return;
    if (!can_decode(p, rows)) {
        retract(p, s);
    } else {
        double decay = (p->initial_ratio - p->least_ratio) / DECAY_STEPS;
        double decayed = p->new_token_ratio - decay;
        p->new_token_ratio = p->least_ratio > decayed ? p->least_ratio : decayed;
    }
    batching_generate(&p->base, s, rows, rows->count);
}

static void schedule(policy *base, step *s, i64 now_ps)
{
    (void)now_ps;
    sglang *p = (sglang *)base;
    if (p->decodes >= p->recv_interval || !base->running.count)
        p->decodes = p->not_received = 0;
    start_loaded(p, s);
    if (s->rows.count)
        return;
    count_windows(p);
    if (p->mixed_chunk) {
        generating(p); /* a request that starts in this step decodes from the next on */
        prefill(p, s, p->base.generating.count);
        decode(p, s);
    } else {
        prefill(p, s, 0);
        if (!s->rows.count) {
            generating(p);
            decode(p, s);
        }
    }
    if (s->rows.count)
        p->decodes = s->sums.prefill_sequences ? p->recv_interval : p->decodes + 1;
}

/* account */

static int add(policy *base, sequence *r)
{
    sglang *p = (sglang *)base;
    p->not_received += p->recv_interval > 1;
    return batching_add(base, r);
}

static void update(policy *base, step *s)
{
    batching_update(base, s);
    if (s->finished.count)
        ((sglang *)base)->full = 0;
}

static void abort_request(policy *base, sequence *r)
{
    sglang *p = (sglang *)base;
    if (r->status != WAITING)
        p->full = 0;
    for (i64 i = received(p); i < base->waiting.count; i++)
        if (queue_at(&base->waiting, i) == r) {
            p->not_received--;
            break;
        }
    if (p->chunked == r)
        p->chunked = NULL;
    batching_abort(base, r);
}

policy *sglang_new(memory *m, const core_engine *setup, pool *pool)
{
    static const policy_ops ops = {
        .add = add,
        .add_loaded = batching_add_loaded,
        .schedule = schedule,
        .update = update,
        .abort = abort_request,
        .last_slot = batching_last_slot,
    };
    sglang *p = take_memory(m, sizeof *p);
    batching_init(&p->base, &ops, m, setup, pool);
    p->window = setup->sglang_window;
    p->window_tokens = (i64)((double)(setup->num_blocks * setup->block_size) * setup->sglang_window_share);
    p->lpm = setup->sglang_lpm != 0;
    p->mixed_chunk = setup->sglang_mixed_chunk != 0;
    p->ignore_eos = setup->sglang_ignore_eos != 0;
    p->max_prefill_tokens = setup->sglang_max_prefill_tokens;
    p->recv_interval = setup->sglang_recv_interval;
    double initial = INITIAL_RATIO * setup->sglang_conservativeness;
    p->initial_ratio = 1.0 < initial ? 1.0 : initial;
    p->least_ratio = p->initial_ratio * LEAST_RATIO;
    p->new_token_ratio = p->initial_ratio;
    return &p->base.policy;
}
