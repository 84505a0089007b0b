/* Decode rows of a regular vLLM V1 engine, stored as sums. See decode_group.h. */
#include <stdlib.h>

#include "decode_group.h"

static i64 modulo(i64 a, i64 size)
{
    i64 rest = a % size;
    return rest < 0 ? rest + size : rest;
}

/* heaps: the least `at` first, among equals the earliest in the running list */

static int comes_before(timed a, timed b)
{
    return a.at < b.at || (a.at == b.at && a.ticket < b.ticket);
}

static void heap_push(memory *m, timed_heap *h, timed value)
{
    PUSH(m, h, value);
    i64 at = h->count - 1;
    for (; at && comes_before(value, h->at[(at - 1) / 2]); at = (at - 1) / 2)
        h->at[at] = h->at[(at - 1) / 2];
    h->at[at] = value;
}

static timed heap_pop(timed_heap *h)
{
    timed first = h->at[0], value = h->at[--h->count];
    i64 at = 0;
    for (i64 child; (child = 2 * at + 1) < h->count; at = child) {
        if (child + 1 < h->count && comes_before(h->at[child + 1], h->at[child]))
            child++;
        if (!comes_before(h->at[child], value))
            break;
        h->at[at] = h->at[child];
    }
    h->at[at] = value;
    return first;
}

/* membership */

static void add_place(decode_group *g, i64 place)
{
    place = modulo(place, g->block_size);
    for (i64 i = 0; i < g->places.count; i++)
        if (g->places.at[i] == place)
            return;
    PUSH(g->memory, &g->places, place);
}

void group_init(decode_group *g, memory *m, const core_engine *setup, pool *p)
{
    g->memory = m;
    g->pool = p;
    g->block_size = setup->block_size;
    g->window = setup->window_tokens;
    g->asynchronous = setup->asynchronous != 0;
    g->visits = !setup->answers_private;
    g->window_lag = g->asynchronous && setup->rules.window_waits_for_steps;
    add_place(g, 0);
    add_place(g, g->asynchronous ? 0 : -1); /* a block is full when its last token is known */
    for (i64 i = 0; i < setup->num_windows; i++)
        if (setup->windows[i] >= 0) {
            g->visits = 1;
            add_place(g, setup->windows[i] - 1 + g->window_lag);
        }
    g->phases = take_memory(m, (size_t)g->block_size * sizeof *g->phases);
    g->ends = take_memory(m, END_CLOCKS * sizeof *g->ends);
    if (g->visits)
        g->buckets = take_memory(m, (size_t)g->block_size * sizeof *g->buckets);
    group_clear(g);
}

void group_clear(decode_group *g)
{
    g->clock = g->place = g->size = g->contexts = 0;
    g->growing = g->growing_contexts = g->saturated_contexts = 0;
    for (i64 i = 0; i < END_CLOCKS; i++)
        if (g->ended_at[i / 64] & (uint64_t)1 << i % 64)
            g->ends[i] = NULL;
    memset(g->ended_at, 0, sizeof g->ended_at);
    g->saturations.count = g->prefilling.count = g->fresh.count = g->due.count = 0;
    memset(g->phases, 0, (size_t)g->block_size * sizeof *g->phases);
    for (i64 i = 0; g->visits && i < g->block_size; i++)
        g->buckets[i].count = 0;
    for (i64 i = 0; i < g->chunk_tokens; i++) {
        for (i64 k = 0; k < g->chunk_buckets[i].count; k++)
            g->chunk_buckets[i].at[k]->chunk_bucket = 0;
        g->chunk_buckets[i].count = 0;
    }
    g->lagging.count = g->full.count = 0;
    g->active = 0;
}

/* chunks of KV to copy out once they are full */

void group_watch_chunks(decode_group *g, i64 chunk_tokens)
{
    g->chunk_tokens = chunk_tokens;
    g->chunk_buckets = take_memory(g->memory, (size_t)chunk_tokens * sizeof *g->chunk_buckets);
}

/* Known tokens of a member when its next step is decided. */
static i64 known_tokens(const decode_group *g, const sequence *r) { return r->offset + g->clock + !g->asynchronous; }

void group_lag(decode_group *g, sequence *r)
{
    if (g->active && r->chunk_bucket)
        PUSH(g->memory, &g->lagging, ((timed){0, r->ticket, r}));
}

static void join_chunks(decode_group *g, sequence *r)
{
    i64 place = modulo(g->clock - known_tokens(g, r), g->chunk_tokens);
    sequences *bucket = &g->chunk_buckets[place];
    r->chunk_bucket = place + 1;
    r->place_in_chunk_bucket = bucket->count;
    PUSH(g->memory, bucket, r);
    if (r->lags)
        PUSH(g->memory, &g->lagging, ((timed){0, r->ticket, r}));
}

static void leave_chunks(decode_group *g, sequence *r)
{
    sequences *bucket = &g->chunk_buckets[r->chunk_bucket - 1];
    sequence *last = bucket->at[--bucket->count];
    bucket->at[r->place_in_chunk_bucket] = last;
    last->place_in_chunk_bucket = r->place_in_chunk_bucket;
    r->chunk_bucket = 0;
}

/* Check lagging members before every step, the others once where a chunk becomes full. */
static void find_full_chunks(decode_group *g)
{
    g->full.count = 0;
    if (!g->chunk_tokens)
        return;
    const sequences *bucket = &g->chunk_buckets[g->clock % g->chunk_tokens];
    for (i64 i = 0; i < bucket->count; i++) {
        sequence *r = bucket->at[i];
        if (!r->lags)
            PUSH(g->memory, &g->full, ((timed){known_tokens(g, r), r->ticket, r}));
    }
    i64 kept = 0;
    for (i64 i = 0; i < g->lagging.count; i++) {
        sequence *r = g->lagging.at[i].sequence;
        if (r->ticket != g->lagging.at[i].ticket || !r->chunk_bucket || !r->lags)
            continue;
        g->lagging.at[kept++] = g->lagging.at[i];
        PUSH(g->memory, &g->full, ((timed){known_tokens(g, r), r->ticket, r}));
    }
    g->lagging.count = kept;
    timed *at = g->full.at;
    for (i64 i = 1; i < g->full.count; i++) {
        timed one = at[i];
        i64 k = i;
        for (; k && at[k - 1].ticket > one.ticket; k--)
            at[k] = at[k - 1];
        at[k] = one;
    }
}

/* ends */

static void end_at(decode_group *g, sequence *r, i64 clock)
{
    i64 place = clock & (END_CLOCKS - 1);
    r->last_clock = clock;
    r->next_end = g->ends[place];
    g->ends[place] = r;
    g->ended_at[place / 64] |= (uint64_t)1 << place % 64;
}

/* Remove the members whose last step was that of `clock` from their list; the others in it end a round later, or more.
 */
static sequence *take_ends(decode_group *g, i64 clock)
{
    i64 place = clock & (END_CLOCKS - 1);
    uint64_t bit = (uint64_t)1 << place % 64;
    sequence *ended = NULL, *next;
    if (!(g->ended_at[place / 64] & bit))
        return NULL;
    sequence *all = g->ends[place];
    g->ends[place] = NULL;
    g->ended_at[place / 64] &= ~bit;
    for (sequence *r = all; r; r = next) {
        next = r->next_end;
        if (r->last_clock > clock) {
            end_at(g, r, r->last_clock);
        } else {
            r->next_end = ended;
            ended = r;
        }
    }
    return ended;
}

void group_members(const decode_group *g, sequences *found)
{
    for (i64 i = 0; g->size && i < END_CLOCKS; i++)
        for (sequence *r = g->ended_at[i / 64] & (uint64_t)1 << i % 64 ? g->ends[i] : NULL; r; r = r->next_end)
            PUSH(g->memory, found, r);
}

i64 group_steps_to_end(const decode_group *g)
{
    i64 place = g->clock & (END_CLOCKS - 1), word = place / 64;
    uint64_t bits = g->ended_at[word] >> place % 64;
    if (bits)
        return __builtin_ctzll(bits);
    for (i64 i = 1; i <= END_CLOCKS / 64; i++) {
        bits = g->ended_at[(word + i) & (END_CLOCKS / 64 - 1)];
        if (bits)
            return 64 * i - place % 64 + __builtin_ctzll(bits);
    }
    return NEVER;
}

/* `r` takes its next decode step, which computes token number `computed`, at `clock`. */
void group_join(decode_group *g, sequence *r, i64 computed, i64 clock)
{
    i64 offset = r->offset = computed - clock, place = r->bucket = modulo(-offset, g->block_size);
    g->size++;
    g->contexts += computed + 1;
    g->phases[place]++;
    if (g->visits) {
        r->place_in_bucket = g->buckets[place].count;
        PUSH(g->memory, &g->buckets[place], r);
        PUSH(g->memory, &g->fresh, ((timed){clock, r->ticket, r}));
    }
    if (g->chunk_tokens)
        join_chunks(g, r);
    end_at(g, r, r->max_known - 2 - offset);
    r->growing = 0;
    if (g->window < 0)
        return;
    i64 full_at = g->window - 1 - offset;
    if (full_at <= clock) {
        g->saturated_contexts += g->window;
    } else {
        r->growing = 1;
        g->growing++;
        g->growing_contexts += computed + 1;
        heap_push(g->memory, &g->saturations, (timed){full_at, r->ticket, r});
    }
}

static void leave_group(decode_group *g, sequence *r)
{
    i64 context = r->offset + g->clock + 1;
    g->size--;
    g->contexts -= context;
    g->phases[r->bucket]--;
    if (g->visits) {
        sequences *bucket = &g->buckets[r->bucket];
        sequence *last = bucket->at[--bucket->count];
        bucket->at[r->place_in_bucket] = last;
        last->place_in_bucket = r->place_in_bucket;
    }
    r->bucket = -1;
    if (g->chunk_tokens)
        leave_chunks(g, r);
    if (g->window < 0)
        return;
    if (r->growing) {
        r->growing = 0; /* its entry in the heap is stale from now on */
        g->growing--;
        g->growing_contexts -= context;
    } else {
        g->saturated_contexts -= g->window;
    }
}

/* Growing contexts grow, and contexts that reach the window stay at its size. */
static void saturate(decode_group *g)
{
    g->growing_contexts += g->growing;
    while (g->saturations.count && g->saturations.at[0].at <= g->clock) {
        timed full = heap_pop(&g->saturations);
        if (full.sequence->ticket != full.ticket || !full.sequence->growing)
            continue;
        full.sequence->growing = 0;
        g->growing--;
        g->growing_contexts -= g->window;
        g->saturated_contexts += g->window;
    }
}

void group_step(decode_group *g, sequences *ending)
{
    g->clock++;
    if (++g->place == g->block_size)
        g->place = 0;
    g->contexts += g->size;
    if (g->window >= 0)
        saturate(g);
    for (sequence *r = take_ends(g, g->clock - 1); r; r = r->next_end) {
        leave_group(g, r);
        PUSH(g->memory, ending, r);
    }
    const sequence *next = g->ends[g->clock & (END_CLOCKS - 1)];
    if (next)
        __builtin_prefetch(next, 1);
}

/* Sum of the next step's contexts, each clipped to the window. */
i64 group_window_contexts(const decode_group *g)
{
    return g->window < 0 ? g->contexts : g->growing_contexts + g->saturated_contexts;
}

/* blocks, one by one */

static int by_ticket(const void *a, const void *b)
{
    i64 x = (*(sequence *const *)a)->ticket, y = (*(sequence *const *)b)->ticket;
    return (x > y) - (x < y);
}

void group_sort(sequences *list)
{
    if (list->count > 32) {
        qsort(list->at, (size_t)list->count, sizeof *list->at, by_ticket);
        return;
    }
    for (i64 i = 1; i < list->count; i++) {
        sequence *r = list->at[i];
        i64 k = i;
        for (; k && list->at[k - 1]->ticket > r->ticket; k--)
            list->at[k] = list->at[k - 1];
        list->at[k] = r;
    }
}

/* Members to visit before the next step, in the order of the running list: at positions in a block where they need a
 * block, fill one or leave one behind, and in their first two steps, because the chunk before may be in flight. */
void group_find_due(decode_group *g)
{
    sequences *due = &g->due;
    due->count = 0;
    find_full_chunks(g);
    if (!g->visits)
        return;
    for (i64 i = 0; i < g->places.count; i++) {
        sequences *bucket = &g->buckets[modulo(g->place - g->places.at[i], g->block_size)];
        for (i64 k = 0; k < bucket->count; k++)
            PUSH(g->memory, due, bucket->at[k]);
    }
    i64 kept = 0;
    for (i64 i = 0; i < g->fresh.count; i++) {
        timed entry = g->fresh.at[i];
        if (g->clock - entry.at > 1)
            continue;
        g->fresh.at[kept++] = entry;
        if (entry.sequence->ticket == entry.ticket && entry.sequence->bucket >= 0)
            PUSH(g->memory, due, entry.sequence);
    }
    g->fresh.count = kept;
    group_sort(due);
    i64 unique = 0;
    for (i64 i = 0; i < due->count; i++)
        if (!unique || due->at[unique - 1] != due->at[i])
            due->at[unique++] = due->at[i];
    due->count = unique;
}

i64 group_blocks_needed(const decode_group *g)
{
    if (!g->visits)
        return g->size ? g->phases[g->place] : 0;
    i64 needed = 0;
    for (i64 i = 0; i < g->due.count; i++) {
        sequence *r = g->due.at[i];
        needed += g->pool->ops->blocks_needed(g->pool, &r->table, r->offset + g->clock + 1, NULL, 0);
    }
    return needed;
}

/* Tokens of a request that the pending step computes and for which blocks before the window wait. */
static i64 tokens_pending(const decode_group *g, const step *pending, const sequence *r, i64 otherwise)
{
    if (!pending || !g->window_lag)
        return 0;
    for (i64 i = 0; i < pending->rows.count; i++)
        if (pending->rows.at[i].sequence == r)
            return pending->rows.at[i].tokens;
    return otherwise;
}

static void visit(decode_group *g, sequence *r, i64 computed, i64 tokens, i64 known, i64 processed)
{
    pool *p = g->pool;
    p->ops->leave_window(p, &r->table, processed);
    p->ops->grow(p, &r->table, computed + tokens, NULL);
    p->ops->cache(p, &r->table, MIN(computed + tokens, known));
}

void group_allocate(decode_group *g, const step *chunks, const step *pending)
{
    if (!g->visits) {
        i64 blocks = group_blocks_needed(g);
        for (i64 i = 0; i < chunks->rows.count; i++) {
            const row *w = &chunks->rows.at[i];
            pool *p = g->pool;
            p->ops->grow(p, &w->sequence->table, w->computed + w->tokens, NULL);
            p->ops->cache(p, &w->sequence->table, MIN(w->computed + w->tokens, w->sequence->known));
        }
        g->pool->free_blocks -= blocks;
        return;
    }
    i64 next = 0;
    for (i64 i = 0; i <= chunks->rows.count; i++) {
        const row *w = i < chunks->rows.count ? &chunks->rows.at[i] : NULL;
        while (next < g->due.count && (!w || g->due.at[next]->ticket < w->sequence->ticket)) {
            sequence *r = g->due.at[next++];
            i64 computed = r->offset + g->clock;
            visit(g, r, computed, 1, computed + 1 - g->asynchronous, computed - tokens_pending(g, pending, r, 1));
        }
        if (w)
            visit(g, w->sequence, w->computed, w->tokens, w->sequence->known,
                  w->computed - tokens_pending(g, pending, w->sequence, 0));
    }
}
