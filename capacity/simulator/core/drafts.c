/* Rows of an asynchronous vLLM V1 engine that verify drafts.
 *
 * A request is a member of the group if it has a verification in flight and will have another one in the next step.
 * All members take part in every step with the same number of tokens, so the only state of a row is the number of
 * accepted drafts. Other requests (prompts, first and last verifications) stay rows. Irregular events are expanded to
 * rows for the policy to decide; the group forms again afterwards.
 *
 * For a member with `known` tokens and k drafts, known + k tokens are computed when its next step is decided, counting
 * the whole verification in flight, and known + 2k + 1 afterwards.
 */
#include "drafts.h"

#include <math.h>

#include "gaps.h"

#define ALL_DRAWS ((uint64_t)1 << 53)

typedef struct {
    uint64_t draw;  /* from which the next verification is drawn */
    i64 known;      /* tokens, also beyond its last one */
    i64 due;        /* number of tokens at which it needs a block, or leaves */
    const uint64_t *accepts; /* by depth: draws below it */
    sequence *sequence;
    i64 room;       /* tokens with a slot in its blocks */
    i64 joined;     /* the group's clock then */
} member;

struct draft_group {
    memory *memory;
    int active;
    i64 drafts, depth, lookahead, clock, sum_known;
    VEC(member) members;
    int some_due;
    VEC(i64) due;        /* positions of the members; stale: membership has changed since */
    int stale;
    int ahead;           /* `known` already includes the drafts that the next step to end accepts */
    sequences others;    /* running requests that are not members */
    VEC(i64) tokens;     /* tokens of the others in the current step; 0: none */
    VEC(uint64_t) drawn; /* members whose drafts so far are all accepted */
    VEC(i64) accepted;   /* their places */
    uint64_t *accepts;   /* by class and depth */
};

static uint64_t accepts_below(double rate)
{
    if (rate <= 0.0)
        return 0;
    return rate < 1.0 ? (uint64_t)ceil(rate * (double)ALL_DRAWS) : ALL_DRAWS;
}

draft_group *drafts_new(vllm_v1 *v, const core_engine *setup)
{
    const speculation *d = &v->drafts;
    i64 threshold = setup->long_prefill_token_threshold;
    if (!v->base.asynchronous || d->num_accept || d->num_rates < 1 || v->base.limits.pipeline_stages > 1)
        return NULL;
    if (v->group.visits || setup->window_tokens >= 0 || (threshold && threshold < 1 + d->k))
        return NULL;
    draft_group *g = take_memory(v->base.memory, sizeof *g);
    g->memory = v->base.memory;
    g->drafts = d->k;
    g->depth = MIN(d->k, d->num_rates);
    g->lookahead = d->lookahead_slots;
    g->accepts = take_memory(g->memory, (size_t)(d->num_rates * d->num_classes) * sizeof *g->accepts);
    for (i64 i = 0; i < d->num_rates * d->num_classes; i++)
        g->accepts[i] = accepts_below(d->rates[i]);
    return g;
}

/* members */

/* Tokens that need a slot for its next verification, and the count at which this exceeds its blocks. */
static i64 slots_of(const vllm_v1 *v, const member *m)
{
    const draft_group *g = v->drafted;
    return MIN(m->known + 2 * g->drafts + 1 + g->lookahead, v->base.limits.max_model_len);
}

static i64 most_known(const vllm_v1 *v) { return v->base.limits.max_model_len - 2 * v->drafted->drafts - 2; }

static void set_due(const vllm_v1 *v, member *m)
{
    const draft_group *g = v->drafted;
    m->due = MIN(m->sequence->max_known - 1, most_known(v) + 1);
    if (m->room < v->base.limits.max_model_len)
        m->due = MIN(m->due, m->room - 2 * g->drafts - g->lookahead);
}

/* Whether a request's row in flight is a verification like those of the members. */
static int can_join(const vllm_v1 *v, const row *w)
{
    const sequence *r = w->sequence;
    i64 k = v->drafted->drafts;
    if (!(w->epoch == r->epoch && r->status == RUNNING && w->yields && w->drafts == k && r->known + 1 < r->max_known
          && r->known <= most_known(v) && r->last_token != MISSING && r->last_token == v->last_end_ps))
        return 0;
    REQUIRE(v->base.memory, w->tokens == 1 + k && r->placeholders == 1 + k && r->drafts == k && r->computed == r->known + k);
    return 1;
}

static void join(vllm_v1 *v, sequence *r)
{
    draft_group *g = v->drafted;
    const speculation *d = &v->drafts;
    i64 class = d->num_classes < 2 ? 0 : draft_class(d, r->request);
    member new = {.draw = mixing(d->seed, (uint64_t)r->request, (uint64_t)r->accepted),
                  .known = r->known,
                  .accepts = g->accepts + class * d->num_rates,
                  .sequence = r,
                  .room = r->table.held * v->base.pool->block_size,
                  .joined = g->clock};
    set_due(v, &new);
    g->some_due = g->some_due || new.known >= new.due;
    g->sum_known += new.known;
    r->drafted = 1;
    r->rows_in_flight--;
    PUSH(g->memory, &g->members, new);
    g->stale = 1;
}

static void drop(draft_group *g, i64 place)
{
    g->stale = 1;
    g->sum_known -= g->members.at[place].known;
    g->members.at[place].sequence->drafted = 0;
    g->members.at[place] = g->members.at[--g->members.count];
}

/* Blocks and content of a member, as stored in its table. */
static void spell_blocks(vllm_v1 *v, const member *m, i64 cached)
{
    pool *q = v->base.pool;
    m->sequence->table.held = m->room / q->block_size;
    q->ops->cache(q, &m->sequence->table, cached);
}

/* Restore the state of a member, and its row in the step in flight. */
static void demote(vllm_v1 *v, i64 place)
{
    draft_group *g = v->drafted;
    member m = g->members.at[place];
    sequence *r = m.sequence;
    step *s = v->pending;
    spell_blocks(v, &m, m.known - 1);
    r->known = m.known;
    r->computed = m.known + g->drafts;
    r->placeholders = r->in_flight_tokens = 1 + g->drafts;
    r->in_flight_yields = 1;
    r->drafts = g->drafts;
    r->accepted += g->clock - m.joined;
    r->room = m.room;
    r->last_token = v->last_end_ps;
    r->rows_in_flight++;
    PUSH(g->memory, &s->rows, ((row){.sequence = r, .tokens = 1 + g->drafts, .computed = r->known - 1,
                                     .drafts = g->drafts, .yields = 1, .epoch = r->epoch}));
    s->group--;
    PUSH(g->memory, &g->others, r);
    drop(g, place);
}

/* Restore the state of every request, and the rows of the step in flight, in the order of the running list. */
void drafts_spell_out(vllm_v1 *v)
{
    draft_group *g = v->drafted;
    step *s = v->pending;
    if (!g->active)
        return;
    while (g->members.count)
        demote(v, g->members.count - 1);
    g->active = 0;
    if (!s)
        return;
    for (i64 i = 1; i < s->rows.count; i++) {
        row one = s->rows.at[i];
        i64 k = i;
        for (; k && s->rows.at[k - 1].sequence->ticket > one.sequence->ticket; k--)
            s->rows.at[k] = s->rows.at[k - 1];
        s->rows.at[k] = one;
    }
    s->grouped = 0;
}

/* decide */

static void form(vllm_v1 *v)
{
    draft_group *g = v->drafted;
    sequences *running = &v->base.running;
    g->others.count = g->members.count = 0;
    g->sum_known = g->some_due = g->due.count = g->ahead = 0;
    for (i64 i = 0; i < running->count; i++) {
        running->at[i]->ticket = v->next_ticket++;
        running->at[i]->drafted = 0;
        PUSH(g->memory, &g->others, running->at[i]);
    }
    g->active = 1;
}

static void take_members(vllm_v1 *v)
{
    draft_group *g = v->drafted;
    step *s = v->pending;
    i64 kept = 0, before = g->members.count;
    if (!s || !s->rows.count)
        return;
    for (i64 i = 0; i < s->rows.count; i++) {
        if (can_join(v, &s->rows.at[i]))
            join(v, s->rows.at[i].sequence);
        else
            s->rows.at[kept++] = s->rows.at[i];
    }
    s->rows.count = kept;
    if (g->members.count == before)
        return;
    s->grouped = 1;
    s->group += g->members.count - before;
    kept = 0;
    for (i64 i = 0; i < g->others.count; i++)
        if (!g->others.at[i]->drafted)
            g->others.at[kept++] = g->others.at[i];
    g->others.count = kept;
}

/* Remove members that verify no more drafts or approach the end of the context; return the blocks for the others. */
static i64 look_at_due(vllm_v1 *v)
{
    draft_group *g = v->drafted;
    i64 size = v->base.pool->block_size, needed = 0;
    for (i64 i = 0; g->some_due && i < g->members.count; i++) {
        const member *m = &g->members.at[i];
        if (m->known < m->due)
            continue;
        if (m->known + 1 >= m->sequence->max_known || m->known > most_known(v))
            demote(v, i--);
        else
            needed += ceil_div(slots_of(v, m), size) - m->room / size;
    }
    return needed;
}

static void give_blocks(const vllm_v1 *v, member *m)
{
    i64 size = v->base.pool->block_size;
    m->room = ceil_div(slots_of(v, m), size) * size;
    set_due(v, m);
}

static void give_due_blocks(vllm_v1 *v)
{
    draft_group *g = v->drafted;
    for (i64 i = 0; g->some_due && i < g->members.count; i++)
        if (g->members.at[i].known >= g->members.at[i].due)
            give_blocks(v, &g->members.at[i]);
    g->due.count = g->some_due = 0;
}

/* Set the tokens of each of the others and return their blocks; -1: the budget would decide by list order. */
static i64 look_at_others(vllm_v1 *v, i64 *budget)
{
    policy *p = &v->base;
    draft_group *g = v->drafted;
    i64 threshold = v1_threshold(v), needed = 0;
    g->tokens.count = 0;
    for (i64 i = 0; i < g->others.count; i++) {
        const sequence *r = g->others.at[i];
        i64 tokens = 0;
        if (r->known + r->in_flight_yields < r->max_known) {
            tokens = r->known + r->drafts + r->placeholders - r->computed;
            if (threshold > 0 && threshold < tokens)
                tokens = threshold;
            if (*budget <= 0 || (tokens > *budget && r != p->running.at[p->running.count - 1]))
                return -1;
            tokens = MAX(MIN(MIN(tokens, *budget), p->limits.max_model_len - r->computed - 1), 0);
        }
        PUSH(g->memory, &g->tokens, tokens);
        *budget -= tokens;
        i64 slots = MIN(r->computed + tokens + g->lookahead, p->limits.max_model_len);
        if (tokens && slots > r->room)
            needed += p->pool->ops->blocks_needed(p->pool, &r->table, slots, NULL, 0);
    }
    return needed;
}

static void add_others(vllm_v1 *v, step *s)
{
    policy *p = &v->base;
    draft_group *g = v->drafted;
    for (i64 i = 0; i < g->others.count; i++) {
        sequence *r = g->others.at[i];
        i64 tokens = g->tokens.at[i];
        if (!tokens)
            continue;
        int fits = v1_allocate_running(v, r, tokens);
        REQUIRE(p->memory, fits);
        i64 drafts = tokens + r->computed - r->known - r->placeholders;
        add_row(p->memory, s, (row){.sequence = r, .tokens = tokens, .computed = r->computed, .drafts = MAX(drafts, 0),
                                    .yields = r->computed + tokens >= r->known, .epoch = r->epoch});
    }
}

static void add_members(draft_group *g, step *s)
{
    i64 size = g->members.count;
    s->group = size;
    s->grouped = size > 0;
    s->sums.decode_sequences += size;
    s->sums.draft_tokens += size * g->drafts;
    s->sums.decode_context_tokens += g->sum_known + size * (2 * g->drafts + 1);
    s->sums.decode_window_context_tokens += g->sum_known + size * (2 * g->drafts + 1);
}

int drafts_schedule(vllm_v1 *v, step *s)
{
    policy *p = &v->base;
    draft_group *g = v->drafted;
    if (!g->active)
        form(v);
    take_members(v);
    i64 for_members = look_at_due(v), budget = p->limits.max_num_batched_tokens - g->members.count * (1 + g->drafts);
    group_sort(&g->others);
    i64 for_others = look_at_others(v, &budget);
    if (for_others < 0 || for_members + for_others > p->pool->free_blocks) {
        drafts_spell_out(v);
        return 0;
    }
    give_due_blocks(v);
    p->pool->free_blocks -= for_members;
    add_others(v, s);
    v->prefill_scheduled = 0;
    for (i64 i = 0; i < s->rows.count; i++)
        v->prefill_scheduled |= s->rows.at[i].sequence->mid_prefill;
    v->some_scheduled = g->members.count || s->rows.count;
    i64 started = p->running.count;
    if (budget > 0)
        v->admit_waiting(p, s, budget);
    for (i64 i = started; i < p->running.count; i++)
        PUSH(p->memory, &g->others, p->running.at[i]);
    v1_commit(v, s);
    add_members(g, s);
    return 1;
}

/* account */

/* Draw what the members' verifications accept: all of them at each depth before any at the next. */
static void draw(draft_group *g)
{
    i64 count = g->members.count, going = 0;
    RESERVE(g->memory, &g->drawn, count);
    RESERVE(g->memory, &g->accepted, count);
    RESERVE(g->memory, &g->due, count);
    member *at = g->members.at;
    uint64_t *drawn = g->drawn.at;
    i64 *places = g->accepted.at;
    for (i64 i = 0; i < count; i++) {
        uint64_t state = mixed_further(mixed_of(at[i].draw), 0);
        i64 accepted = state >> 11 < at[i].accepts[0];
        at[i].draw += VERIFICATION_DRAW;
        at[i].known += 1 + accepted;
        drawn[going] = state;
        places[going] = i;
        going += accepted;
    }
    g->sum_known += count + going;
    for (i64 depth = 1; depth < g->depth && going; depth++) {
        i64 next = 0;
        for (i64 j = 0; j < going; j++) {
            member *m = &at[places[j]];
            uint64_t state = mixed_further(drawn[j], (uint64_t)depth);
            i64 accepted = state >> 11 < m->accepts[depth];
            m->known += accepted;
            drawn[next] = state;
            places[next] = places[j];
            next += accepted;
        }
        going = next;
        g->sum_known += going;
    }
    i64 *due = g->due.at, num_due = 0;
    for (i64 i = 0; i < count; i++) {
        due[num_due] = i;
        num_due += at[i].known >= at[i].due;
    }
    g->due.count = num_due;
    g->some_due = num_due > 0;
    g->stale = 0;
    g->clock++;
}

/* A member has its last token; its verification in flight is discarded. */
static void end_member(vllm_v1 *v, i64 place, step *s)
{
    draft_group *g = v->drafted;
    member m = g->members.at[place];
    sequence *r = m.sequence;
    spell_blocks(v, &m, MIN(m.known, r->max_known) - 1);
    r->known = r->max_known;
    PUSH(g->memory, &s->finished, r);
    drop(g, place);
    if (!v->pending)
        return;
    v->pending->group--;
    r->rows_in_flight++;
    PUSH(g->memory, &v->pending->gone, r);
}

int drafts_update(vllm_v1 *v, step *s)
{
    draft_group *g = v->drafted;
    if (!g->active)
        return 0;
    if (s->group) {
        REQUIRE(g->memory, s->group == g->members.count);
        s->group_gap_ps = s->end - v->last_end_ps;
        if (!g->ahead)
            draw(g);
        g->ahead = 0;
        for (i64 i = 0; g->some_due && i < g->members.count; i++)
            if (g->members.at[i].known >= g->members.at[i].sequence->max_known)
                end_member(v, i--, s);
    }
    v->last_end_ps = s->end;
    v1_update_rows(v, s);
    group_sort(&s->finished);
    i64 kept = 0;
    for (i64 i = 0; i < s->finished.count; i++)
        v->finish(v, s->finished.at[i]);
    for (i64 i = 0; s->finished.count && i < g->others.count; i++)
        if (g->others.at[i]->status != FINISHED)
            g->others.at[kept++] = g->others.at[i];
    if (s->finished.count)
        g->others.count = kept;
    return 1;
}

/* successive steps of members only */

/* Whether this engine, which is about to decide, has members only. */
static int is_quiet(const engine *e, vllm_v1 *v)
{
    const draft_group *g = v->drafted;
    const step *s = v->pending;
    if (!g->active || !g->members.count || g->others.count || v1_waiting_count(v) || e->loads.count)
        return 0;
    REQUIRE(e->memory, e->num_in_flight == 1 && e->in_flight[0] == s && s->grouped);
    return !(g->stale && g->some_due) && !s->rows.count && !s->gone.count && !s->preempted.count && !s->held_ps;
}

/* Allocate blocks for the next step of the members; 0: a member leaves, or too few blocks are free. */
static int take_blocks(vllm_v1 *v)
{
    draft_group *g = v->drafted;
    i64 size = v->base.pool->block_size, needed = 0;
    for (i64 i = 0; i < g->due.count; i++) {
        const member *m = &g->members.at[g->due.at[i]];
        if (m->known + 1 >= m->sequence->max_known || m->known > most_known(v))
            return 0;
        needed += ceil_div(slots_of(v, m), size) - m->room / size;
    }
    if (needed > v->base.pool->free_blocks)
        return 0;
    for (i64 i = 0; i < g->due.count; i++)
        give_blocks(v, &g->members.at[g->due.at[i]]);
    v->base.pool->free_blocks -= needed;
    g->due.count = g->some_due = 0;
    return 1;
}

static int some_end(const draft_group *g)
{
    for (i64 i = 0; i < g->due.count; i++) {
        const member *m = &g->members.at[g->due.at[i]];
        if (m->known >= m->sequence->max_known)
            return 1;
    }
    return 0;
}

/* The same steps as in engine.c (decide, launch, settle), without the impossible cases; see quiet.c. The accepted
 * drafts of the step in flight are drawn when the next one is launched. If that ends a request, the engine handles
 * both steps. */
void take_quiet_drafts(engine *e)
{
    vllm_v1 *v = (vllm_v1 *)e->drafted_v1;
    if (!v || !is_quiet(e, v))
        return;
    fleet *f = e->fleet;
    draft_group *g = v->drafted;
    step *s = v->pending, *next = engine_new_step(e);
    i64 arrival_ps = MIN(front_end_due_ps(&e->front_end),
                         e->fed_next < e->fed_count ? e->fed_instants[e->fed_next] : NEVER);
    i64 size = g->members.count, now_ps = e->now_ps;
    while (f->steps < f->last_step && s->end < arrival_ps && 4 * s->end + DECIDE < f->bound && take_blocks(v)) {
        next->sums = (shape){0};
        add_members(g, next);
        e->sums.steps++;
        e->sums.rows += size;
        time_step(e, next, now_ps);
        draw(g);
        if (some_end(g)) {
            g->ahead = 1;
            break;
        }
        ledger_use_kv(e, s->end - now_ps);
        gaps_add(f->gaps, s->end - v->last_end_ps, size);
        v->last_end_ps = now_ps = s->end;
        f->steps++;
        step *ended = s;
        s = next;
        next = ended;
    }
    e->now_ps = now_ps;
    e->in_flight[0] = v->pending = s;
    if (g->ahead) {
        v1_launched(v, next);
        e->in_flight[e->num_in_flight++] = next;
    } else {
        engine_spare_step(e, next);
    }
}
