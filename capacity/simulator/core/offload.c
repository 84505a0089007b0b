/* vLLM V1 with KV offload: KV that the GPU's prefix cache evicted is loaded back instead of recomputed:
 * schedulers/offloading.py. */
#include "tiers.h"
#include "vllm_v1.h"

enum { NOTHING, BEGUN, ELSEWHERE, NO_ROOM }; /* outcome for the head of the queue */

/* A request whose KV is being loaded: `tokens` tokens of it will be on the GPU at `end_ps`. */
typedef struct {
    sequence *sequence;
    i64 tokens, end_ps;
    names chunks;
} arrival;

/* Chunks to copy when a step ends, row by row. */
typedef struct copies {
    places places;
    VEC(i64) ends;
    sequences owners;
    i64 next_unused; /* + 1; 0: none */
} copies;

typedef struct {
    vllm_v1 v1;
    tier_stack tiers;
    i64 now_ps, held_ps;
    VEC(arrival) loading;
    i64 num_loading; /* the rest of `loading` keeps its memory for later loads */
    queue loaded;    /* they hold blocks, so they start before waiting requests */
    name_map on_the_way;
    VEC(copies) stores;
    i64 unused_stores; /* + 1; 0: none */
    sequences aside;
} offloading_v1;

static i64 num_waiting(const policy *p)
{
    const offloading_v1 *o = (const offloading_v1 *)p;
    return v1_waiting_count(&o->v1) + o->num_loading + o->loaded.count;
}

static i64 wake_ps(const policy *p)
{
    const offloading_v1 *o = (const offloading_v1 *)p;
    i64 first_ps = NEVER;
    for (i64 i = 0; i < o->num_loading; i++)
        first_ps = MIN(first_ps, o->loading.at[i].end_ps);
    return first_ps;
}

/* loads */

/* Remove an arrival; its memory moves behind the remaining ones. */
static void remove_arrival(offloading_v1 *o, i64 place)
{
    arrival gone = o->loading.at[place];
    for (i64 i = 0; i < gone.chunks.count; i++)
        name_map_drop(&o->on_the_way, gone.chunks.at[i]);
    o->num_loading--;
    memmove(&o->loading.at[place], &o->loading.at[place + 1], (size_t)(o->num_loading - place) * sizeof gone);
    o->loading.at[o->num_loading] = gone;
}

/* Register loaded KV in the prefix cache and make its requests ready to run, the first to arrive first. */
static void take_arrivals(offloading_v1 *o)
{
    pool *q = o->v1.base.pool;
    for (;;) {
        i64 first = -1;
        for (i64 i = 0; i < o->num_loading; i++)
            if (o->loading.at[i].end_ps <= o->now_ps
                && (first < 0 || o->loading.at[i].end_ps < o->loading.at[first].end_ps))
                first = i;
        if (first < 0)
            return;
        sequence *r = o->loading.at[first].sequence;
        i64 tokens = o->loading.at[first].tokens;
        remove_arrival(o, first);
        q->ops->cache(q, &r->table, tokens);
        r->computed = MIN(tokens, r->known - 1);
        queue_append(o->v1.base.memory, &o->loaded, r);
    }
}

/* Blocks that prompts with some blocks still need. */
static i64 promised_blocks(const offloading_v1 *o)
{
    pool *q = o->v1.base.pool;
    const sequences *running = &o->v1.base.running;
    i64 promised = 0;
    for (i64 i = 0; i < o->num_loading; i++) {
        const sequence *r = o->loading.at[i].sequence;
        promised += q->ops->blocks_needed(q, &r->table, r->known, NULL, 0);
    }
    for (i64 i = 0; i < o->loaded.count; i++) {
        const sequence *r = queue_at(&o->loaded, i);
        promised += q->ops->blocks_needed(q, &r->table, r->known, NULL, 0);
    }
    for (i64 i = 0; i < running->count; i++) {
        const sequence *r = running->at[i];
        if (r->computed < r->prompt_tokens)
            promised += q->ops->blocks_needed(q, &r->table, r->known, NULL, 0);
    }
    return promised;
}

/* Add the prompt tokens of a first admission to the hits of the tiers that had them. */
static void count(offloading_v1 *o, const sequence *r, const tier_hit *below, i64 gpu_tokens)
{
    if (r->preemptions)
        return;
    i64 size = o->tiers.chunk_tokens, at = gpu_tokens, begin = gpu_tokens / size;
    for (i64 number = 0; number < below->tiers.count; number++) {
        i64 end = MIN((begin + number + 1) * size, r->known - 1);
        count_hit_tokens(&o->tiers, below->tiers.at[number], end - at);
        at = end;
    }
}

static void begin(offloading_v1 *o, sequence *r, i64 tokens, const tier_hit *below)
{
    memory *m = o->v1.base.memory;
    i64 end_ps = load_from_below(&o->tiers, &r->table, below, o->now_ps);
    if (o->tiers.synchronous) {
        o->held_ps = MAX(o->held_ps, end_ps - o->now_ps);
        end_ps = o->now_ps;
    }
    if (o->num_loading == o->loading.count)
        PUSH(m, &o->loading, (arrival){0});
    arrival *new = &o->loading.at[o->num_loading++];
    new->sequence = r;
    new->tokens = tokens;
    new->end_ps = end_ps;
    new->chunks.count = 0;
    for (i64 i = 0; i < below->places.count; i++) {
        i64 name = chunk_name(&o->tiers, r->request, below->places.at[i]);
        PUSH(m, &new->chunks, name);
        name_map_put(m, &o->on_the_way, name, 0);
    }
    if (end_ps <= o->now_ps)
        take_arrivals(o);
}

/* Start to load the chunks of the first waiting request that the tiers have beyond the GPU's hit. */
static int try_load(offloading_v1 *o, sequence *r)
{
    policy *p = &o->v1.base;
    pool *q = p->pool;
    i64 size = o->tiers.chunk_tokens;
    const hit *h = q->ops->lookup(q, &r->table, r->known - 1);
    i64 gpu_tokens = h->tokens;
    const tier_hit *below = find_below(&o->tiers, &r->table, gpu_tokens / size, r->known / size, o->now_ps);
    i64 tokens = (gpu_tokens / size + below->places.count) * size;
    if (tokens - gpu_tokens < size)
        return NOTHING;
    for (i64 i = 0; i < below->places.count && o->on_the_way.count; i++)
        if (name_map_find(&o->on_the_way, chunk_name(&o->tiers, r->request, below->places.at[i])))
            return ELSEWHERE;
    i64 whole = MAX(tokens, MIN(r->known, p->limits.max_model_len));
    i64 wanted = p->limits.reserve_full_isl ? whole : tokens;
    i64 free_blocks = q->free_blocks - promised_blocks(o);
    if (p->limits.watermark_blocks && p->running.count)
        free_blocks -= p->limits.watermark_blocks;
    if (q->ops->blocks_needed(q, &r->table, wanted, h, 0) > free_blocks)
        return NO_ROOM;
    v1_waiting_pop(&o->v1);
    q->ops->grow(q, &r->table, tokens, h);
    r->room = r->next_full = 0;
    r->loaded = MIN(tokens, r->known - 1) - gpu_tokens;
    r->stored_chunks = tokens / size;
    count(o, r, below, gpu_tokens);
    begin(o, r, tokens, below);
    return BEGUN;
}

/* decide */

/* Start a request whose KV has arrived; return its tokens in this step, 0 if it does not fit. */
static i64 resume(offloading_v1 *o, sequence *r, step *s, i64 budget, i64 threshold)
{
    policy *p = &o->v1.base;
    i64 tokens = r->known - r->computed;
    int is_prefill = tokens > 1;
    if (o->v1.holds && is_prefill)
        return 0;
    if (threshold > 0 && threshold < tokens)
        tokens = threshold;
    if (tokens > budget) {
        if (!p->limits.enable_chunked_prefill)
            return 0;
        tokens = budget;
    }
    if (!v1_allocate_running(&o->v1, r, tokens))
        return 0;
    queue_pop(&o->loaded);
    v1_run(&o->v1, r);
    o->v1.prefill_started |= is_prefill;
    add_row(p->memory, s, (row){.sequence = r, .tokens = tokens, .computed = r->computed, .epoch = r->epoch,
                                .yields = r->computed + tokens >= r->known, .cached = r->computed});
    return tokens;
}

/* Start requests whose KV has arrived, then requests of the queue; set aside those that wait for KV. */
static void admit_waiting(policy *p, step *s, i64 budget)
{
    offloading_v1 *o = (offloading_v1 *)p;
    i64 threshold = v1_threshold(&o->v1), tokens;
    o->aside.count = 0;
    while (budget > 0 && p->running.count < p->limits.max_active) {
        if (o->loaded.count) {
            tokens = resume(o, queue_at(&o->loaded, 0), s, budget, threshold);
        } else if (v1_waiting_count(&o->v1)) {
            int came = try_load(o, v1_waiting_head(&o->v1));
            if (came == BEGUN)
                continue;
            if (came == ELSEWHERE) {
                PUSH(p->memory, &o->aside, v1_waiting_defer(&o->v1));
                continue;
            }
            if (came == NO_ROOM)
                break;
            tokens = v1_start(&o->v1, v1_waiting_head(&o->v1), s, budget, threshold);
        } else {
            break;
        }
        if (!tokens)
            break;
        budget -= tokens;
    }
    for (i64 i = o->aside.count - 1; i >= 0; i--)
        v1_waiting_put_back(&o->v1, o->aside.at[i]);
}

/* copies out of the GPU */

static copies *copies_of(offloading_v1 *o, step *s)
{
    if (s->stores != MISSING)
        return &o->stores.at[s->stores];
    if (o->unused_stores) {
        s->stores = o->unused_stores - 1;
        o->unused_stores = o->stores.at[s->stores].next_unused;
    } else {
        s->stores = o->stores.count;
        PUSH(o->v1.base.memory, &o->stores, (copies){0});
    }
    return &o->stores.at[s->stores];
}

/* Reserve space in the first tier for the chunks that a row completes, with which `known` tokens are known. */
static void reserve(offloading_v1 *o, sequence *r, i64 known, step *s)
{
    memory *m = o->v1.base.memory;
    if (known < (r->stored_chunks + 1) * o->tiers.chunk_tokens)
        return;
    i64 chunks = known / o->tiers.chunk_tokens;
    copies *c = copies_of(o, s);
    i64 before = c->places.count;
    int lagged = r->lags;
    r->lags = !reserve_below(&o->tiers, &r->table, r->stored_chunks, chunks, &c->places, o->now_ps);
    if (r->lags) {
        if (!lagged)
            group_lag(&o->v1.group, r);
        return;
    }
    r->stored_chunks = chunks;
    if (c->places.count > before) {
        touch_nearest(&o->tiers, &r->table, chunks);
        PUSH(m, &c->ends, c->places.count);
        PUSH(m, &c->owners, r);
    }
}

/* For the rows of a step and for those stored as sums, in the order of the running list. */
static void reserve_all(offloading_v1 *o, step *s)
{
    const decode_group *g = &o->v1.group;
    i64 next = 0, count = s->grouped ? g->full.count : 0;
    for (i64 i = 0; i <= s->rows.count; i++) {
        const row *w = i < s->rows.count ? &s->rows.at[i] : NULL;
        for (; next < count && (!w || g->full.at[next].ticket < w->sequence->ticket); next++)
            reserve(o, g->full.at[next].sequence, g->full.at[next].at, s);
        if (w)
            reserve(o, w->sequence, MIN(w->computed + w->tokens - w->drafts, w->sequence->known), s);
    }
}

static void schedule(policy *p, step *s, i64 now_ps)
{
    offloading_v1 *o = (offloading_v1 *)p;
    o->now_ps = now_ps;
    o->held_ps = 0;
    take_arrivals(o);
    v1_schedule(p, s, now_ps);
    s->held_ps = o->held_ps;
    if (s->held_ps && !s->rows.count && !s->group && !s->preempted.count)
        v1_launched(&o->v1, s);
    reserve_all(o, s);
}

/* account */

static void update(policy *p, step *s)
{
    offloading_v1 *o = (offloading_v1 *)p;
    v1_update(p, s);
    if (s->stores == MISSING)
        return;
    copies *c = &o->stores.at[s->stores];
    i64 start = 0;
    for (i64 i = 0; i < c->ends.count; i++) {
        places stored = {.at = c->places.at + start, .count = c->ends.at[i] - start};
        store_below(&o->tiers, &c->owners.at[i]->table, &stored, s->end);
        start = c->ends.at[i];
    }
    c->places.count = c->ends.count = c->owners.count = 0;
    c->next_unused = o->unused_stores;
    o->unused_stores = s->stores + 1;
    s->stores = MISSING;
}

static void finish(vllm_v1 *v, sequence *r)
{
    offloading_v1 *o = (offloading_v1 *)v;
    i64 loaded = o->loaded.count;
    for (i64 i = 0; i < o->num_loading; i++)
        if (o->loading.at[i].sequence == r) {
            remove_arrival(o, i);
            v1_waiting_put_back(v, r);
            break;
        }
    if (loaded) {
        queue_remove(&o->loaded, r);
        if (o->loaded.count < loaded)
            v1_waiting_put_back(v, r);
    }
    v1_finish(v, r);
}

i64 offloading_tier_use(const policy *p, core_tier_use *uses)
{
    return tier_stack_use(&((const offloading_v1 *)p)->tiers, uses);
}

static const policy_ops OFFLOADING_V1 = {
    .add = v1_add,
    .add_loaded = v1_add_loaded,
    .schedule = schedule,
    .update = update,
    .abort = v1_abort,
    .wake_ps = wake_ps,
    .num_waiting = num_waiting,
};

policy *offloading_v1_new(memory *m, const core_engine *setup, pool *p, const core_requests *requests)
{
    offloading_v1 *o = take_memory(m, sizeof *o);
    REQUIRE(m, p->prefix_caching && setup->chunk_blocks >= 1);
    vllm_v1_init(&o->v1, &OFFLOADING_V1, m, setup, p);
    o->v1.admit_waiting = admit_waiting;
    o->v1.finish = finish;
    tier_stack_init(&o->tiers, m, setup, requests);
    if (o->v1.regular)
        group_watch_chunks(&o->v1.group, o->tiers.chunk_tokens);
    return &o->v1.base;
}
