/* Decode rows of a vLLM V1 engine with pipeline stages, stored as sums: see decode_group.h.
 *
 * A request has at most one token in flight, so the generating requests are split among the steps in flight. Each of
 * these has a group, whose next step starts when its last one has ended. Chunks of one prompt may be in several steps;
 * the last chunk determines the group of the request.
 */
#include "stages.h"

typedef struct {
    decode_group group;
    step *pending; /* its step in flight, or NULL */
    i64 last_end_ps; /* end of its last step that has ended */
} stage_group;

struct stage_groups {
    i64 count;
    int active;
    VEC(step *) in_flight; /* oldest first */
    stage_group *at;
    VEC(row) *rows; /* when expanded to rows */
    sequences members;
    i64 *kept, *next;
};

stage_groups *stages_new(memory *m, const core_engine *setup, pool *p)
{
    stage_groups *g = take_memory(m, sizeof *g);
    g->count = setup->pipeline_stages;
    g->at = take_memory(m, (size_t)g->count * sizeof *g->at);
    g->rows = take_memory(m, (size_t)g->count * sizeof *g->rows);
    g->kept = take_memory(m, (size_t)g->count * sizeof *g->kept);
    g->next = take_memory(m, (size_t)g->count * sizeof *g->next);
    for (i64 i = 0; i < g->count; i++)
        group_init(&g->at[i].group, m, setup, p);
    return g;
}

static void clear(vllm_v1 *v)
{
    stage_groups *g = v->stages;
    for (i64 i = 0; i < g->count; i++) {
        group_clear(&g->at[i].group);
        g->at[i].pending = NULL;
        g->at[i].last_end_ps = MISSING;
    }
    v->group.prefilling.count = 0;
    g->active = 0;
}

void stages_launched(vllm_v1 *v, step *s)
{
    PUSH(v->base.memory, &v->stages->in_flight, s);
}

/* Set the policy's `last_end_ps` to that of the group for its step. */
void stages_ended(vllm_v1 *v, const step *s)
{
    stage_groups *g = v->stages;
    REQUIRE(v->base.memory, g->in_flight.count && g->in_flight.at[0] == s);
    REMOVE_AT(&g->in_flight, 0);
    for (i64 i = 0; i < g->count; i++)
        if (g->at[i].pending == s) {
            v->last_end_ps = g->at[i].last_end_ps;
            g->at[i].last_end_ps = s->end;
            g->at[i].pending = NULL;
        }
}

/* Whether the rows of all steps in flight are unchanged. */
static int are_regular(const stage_groups *g)
{
    if (g->in_flight.count >= g->count)
        return 0;
    for (i64 i = 0; i < g->in_flight.count; i++) {
        const step *s = g->in_flight.at[i];
        if (!s->rows.count || s->preempted.count)
            return 0;
        for (i64 k = 0; k < s->rows.count; k++) {
            const row *w = &s->rows.at[k];
            if (w->epoch != w->sequence->epoch || w->sequence->status == FINISHED)
                return 0;
            /* started again while an earlier token was in flight: that one is known now, but not computed */
            if (w->yields && w->computed + w->tokens != w->sequence->known)
                return 0;
        }
    }
    return 1;
}

/* Add a row in flight to its step's sum, which is delivered as a whole; 0: it stays a row. */
static int absorb(stage_group *g, const row *w)
{
    sequence *r = w->sequence;
    if (!w->yields || w->tokens != 1 || r->last_token == MISSING)
        return 0;
    if (g->last_end_ps != MISSING && g->last_end_ps != r->last_token)
        return 0;
    g->last_end_ps = r->last_token;
    g->pending->group++;
    r->rows_in_flight--;
    return 1;
}

/* Find the rows of a request in the steps in flight; return the group of the one that yields, or `count`. */
static i64 take_rows(stage_groups *g, const sequence *r, int *in_flight)
{
    i64 yields = g->count;
    *in_flight = 0;
    for (i64 i = 0; i < g->in_flight.count; i++) {
        step *s = g->in_flight.at[i];
        if (g->next[i] == s->rows.count || s->rows.at[g->next[i]].sequence != r)
            continue; /* rows are in the order of the running list */
        row w = s->rows.at[g->next[i]++];
        *in_flight = 1;
        if (w.yields)
            yields = i;
        if (!absorb(&g->at[i], &w))
            s->rows.at[g->kept[i]++] = w;
    }
    return yields;
}

/* Form the groups from the policy's state, if that is regular. */
static int take_over(vllm_v1 *v)
{
    policy *p = &v->base;
    stage_groups *g = v->stages;
    if (!are_regular(g))
        return 0;
    clear(v);
    i64 idle = g->in_flight.count;
    for (i64 i = 0; i < idle; i++) {
        g->at[i].pending = g->in_flight.at[i];
        g->kept[i] = g->next[i] = 0;
    }
    g->at[idle].last_end_ps = v->last_end_ps;
    for (i64 i = 0; i < p->running.count; i++) {
        sequence *r = p->running.at[i];
        r->in_flight_tokens = r->in_flight_yields = 0;
        r->ticket = v->next_ticket++;
        r->place = i;
        int in_flight;
        i64 number = take_rows(g, r, &in_flight);
        if (!in_flight && r->known - r->computed == 1 && r->last_token == v->last_end_ps)
            group_join(&g->at[idle].group, r, r->computed, 0);
        else if (number == g->count)
            PUSH(p->memory, &v->group.prefilling, r);
        else if (r->known + 1 >= r->max_known)
            PUSH(p->memory, &g->at[number].pending->ending, r);
        else
            group_join(&g->at[number].group, r, r->computed, 0);
    }
    for (i64 i = 0; i < idle; i++) {
        REQUIRE(p->memory, g->next[i] == g->in_flight.at[i]->rows.count);
        g->in_flight.at[i]->rows.count = g->kept[i];
        g->in_flight.at[i]->grouped = 1;
    }
    g->active = 1;
    return 1;
}

/* The only group that waits for its next step; NULL: there are two, which the policy would combine. */
static stage_group *waiting_group(stage_groups *g)
{
    stage_group *found = NULL;
    for (i64 i = 0; i < g->count; i++) {
        if (g->at[i].pending)
            continue;
        if (found && found->group.size && g->at[i].group.size)
            return NULL;
        if (!found || g->at[i].group.size)
            found = &g->at[i];
    }
    return found;
}

int stages_schedule(vllm_v1 *v, step *s)
{
    stage_groups *g = v->stages;
    if (!g->active && !take_over(v))
        return 0;
    stage_group *next = waiting_group(g);
    if (!next || !v1_schedule_group(v, &next->group, s)) {
        stages_spell_out(v);
        return 0;
    }
    if (s->grouped)
        next->pending = s;
    return 1;
}

/* expand to rows */

enum { NOT_IN_A_GROUP = -1 };

/* Record the group of a request and the step in which it ends. */
static void note_groups(vllm_v1 *v)
{
    stage_groups *g = v->stages;
    for (i64 i = 0; i < v->base.running.count; i++)
        v->base.running.at[i]->bucket = v->base.running.at[i]->place_in_bucket = NOT_IN_A_GROUP;
    for (i64 i = 0; i < g->count; i++) {
        g->members.count = 0;
        group_members(&g->at[i].group, &g->members);
        for (i64 k = 0; k < g->members.count; k++)
            g->members.at[k]->bucket = i;
        const step *s = g->at[i].pending;
        for (i64 k = 0; s && k < s->ending.count; k++)
            s->ending.at[k]->bucket = s->ending.at[k]->place_in_bucket = i;
        g->next[i] = g->rows[i].count = 0;
    }
}

/* Known tokens and blocks of a member, with or without a step in flight. */
static void spell_member(vllm_v1 *v, sequence *r)
{
    pool *q = v->base.pool;
    const stage_group *g = &v->stages->at[r->bucket];
    int ends = r->place_in_bucket != NOT_IN_A_GROUP;
    r->computed = ends ? r->max_known - 1 : r->offset + g->group.clock;
    r->known = g->pending ? r->computed : r->computed + 1;
    r->table.held = ceil_div(r->computed, q->block_size);
    q->ops->cache(q, &r->table, r->computed);
}

/* Its rows in the steps in flight, including that of its group's step. */
static void spell_rows(vllm_v1 *v, sequence *r)
{
    stage_groups *g = v->stages;
    for (i64 i = 0; i < g->count; i++) {
        const step *s = g->at[i].pending;
        if (!s)
            continue;
        row w = {.sequence = r, .tokens = 1, .computed = r->computed - 1, .yields = 1, .epoch = r->epoch};
        if (g->next[i] < s->rows.count && s->rows.at[g->next[i]].sequence == r) {
            w = s->rows.at[g->next[i]++];
        } else if (r->bucket == i) {
            r->last_token = g->at[i].last_end_ps;
            r->rows_in_flight++;
        } else {
            continue;
        }
        PUSH(v->base.memory, &g->rows[i], w);
        r->in_flight_tokens += w.tokens;
        r->in_flight_yields += w.yields;
    }
}

/* Restore the state of every request, and the rows of the steps in flight. */
void stages_spell_out(vllm_v1 *v)
{
    policy *p = &v->base;
    stage_groups *g = v->stages;
    if (!g->active)
        return;
    group_sort(&p->running);
    note_groups(v);
    for (i64 i = 0; i < p->running.count; i++) {
        sequence *r = p->running.at[i];
        r->room = r->next_full = r->next_leave = 0;
        r->in_flight_tokens = r->in_flight_yields = 0;
        if (r->bucket != NOT_IN_A_GROUP) {
            spell_member(v, r);
            if (!g->at[r->bucket].pending)
                r->last_token = g->at[r->bucket].last_end_ps;
        }
        spell_rows(v, r);
    }
    for (i64 i = 0; i < g->count; i++) {
        step *s = g->at[i].pending;
        if (!s)
            continue;
        REQUIRE(p->memory, g->next[i] == s->rows.count);
        s->rows.count = 0;
        for (i64 k = 0; k < g->rows[i].count; k++)
            PUSH(p->memory, &s->rows, g->rows[i].at[k]);
        s->grouped = 0;
        s->group = 0;
        s->ending.count = 0;
    }
    clear(v);
}
