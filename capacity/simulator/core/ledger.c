/* Records: the columns of requests and an engine's running sums. See ledger.py and frontend.py. */
#include <stdlib.h>

#include "engine.h"
#include "gaps.h"

/* The first tokens of requests, and the end of their preemption. */
static void note_rows(engine *e, const step *s, i64 now_ps)
{
    core_columns *c = &e->fleet->columns;
    core_state *sums = &e->sums;
    for (i64 i = 0; i < s->noted.count; i++) {
        const row *w = &s->rows.at[s->noted.at[i]];
        sequence *r = w->sequence;
        if (!r->scheduled) {
            r->scheduled = 1;
            c->first_scheduled_ps[r->request] = now_ps;
            c->cached_tokens[r->request] = w->cached;
            sums->hit_tokens += w->cached - r->loaded;
            sums->queried_tokens += r->prompt_tokens;
        } else if (r->preempted != MISSING) {
            c->preempted_ps[r->request] += now_ps - r->preempted;
            r->preempted = MISSING;
        }
    }
}

void ledger_scheduled(engine *e, step *s, i64 now_ps)
{
    core_columns *c = &e->fleet->columns;
    core_state *sums = &e->sums;
    sums->preemptions += s->preempted.count;
    for (i64 i = 0; i < s->preempted.count; i++) {
        sequence *r = s->preempted.at[i];
        r->rows_in_flight++; /* the step is its record until it is settled */
        c->preemptions[r->request]++;
        sums->lost_tokens += r->lost;
        if (r->first_token != MISSING)
            r->preempted = now_ps;
    }
    i64 rows = s->rows.count + s->group;
    if (!rows)
        return;
    sums->steps++;
    sums->rows += rows;
    note_rows(e, s, now_ps);
    for (i64 i = 0; i < s->num_parts; i++)
        note_rows(e, s->parts[i], now_ps);
}

void ledger_expect(const engine *e, const step *s)
{
    if (s->group)
        gaps_expect(e->fleet->gaps, s->end - s->start);
}

/* Deliver output tokens of a request. With a queue that streams them, they leave when it has sent them. */
static void deliver_tokens(engine *e, sequence *r, i64 now_ps)
{
    fleet *f = e->fleet;
    const core_engine *setup = &e->setup;
    if (setup->message_ps || setup->stream_interval > 1) {
        i64 produced = r->known - r->prompt_tokens;
        if (produced > 1 && produced % setup->stream_interval && r->known < r->max_known)
            return;
        now_ps = front_end_send(&e->front_end, r->request, now_ps);
    }
    if (r->last_token == MISSING)
        r->first_token = f->columns.first_token_ps[r->request] = now_ps;
    else
        PUSH(&f->memory, &f->step_gaps, ((gap_entry){now_ps - r->last_token, 1}));
    r->last_token = now_ps;
}

static int by_gap(const void *a, const void *b)
{
    i64 x = ((const gap_entry *)a)->gap_ps, y = ((const gap_entry *)b)->gap_ps;
    return (x > y) - (x < y);
}

static void sort_gaps(gap_entry *at, i64 count)
{
    if (count > 32) {
        qsort(at, (size_t)count, sizeof *at, by_gap);
        return;
    }
    for (i64 i = 1; i < count; i++) {
        gap_entry one = at[i];
        i64 k = i;
        for (; k && at[k - 1].gap_ps > one.gap_ps; k--)
            at[k] = at[k - 1];
        at[k] = one;
    }
}

/* Gaps of the step: equal ones together, in ascending order. */
static void count_gaps(fleet *f)
{
    gap_entry *at = f->step_gaps.at;
    i64 count = f->step_gaps.count;
    sort_gaps(at, count);
    for (i64 i = 0; i < count;) {
        i64 gap_ps = at[i].gap_ps, same = 0;
        for (; i < count && at[i].gap_ps == gap_ps; i++)
            same += at[i].count;
        gaps_add(f->gaps, gap_ps, same);
    }
    f->step_gaps.count = 0;
}

static void deliver(engine *e, const step *s, i64 now_ps)
{
    fleet *f = e->fleet;
    if (s->emitted.count || s->common || s->group)
        e->in_vain = 0;
    for (i64 i = 0; i < s->emitted.count; i++)
        deliver_tokens(e, s->emitted.at[i], now_ps);
    if (s->common)
        PUSH(&f->memory, &f->step_gaps, ((gap_entry){now_ps - s->common_last, s->common}));
    if (s->group && !s->num_parts)
        PUSH(&f->memory, &f->step_gaps, ((gap_entry){s->group_gap_ps, s->group}));
}

void ledger_settled(engine *e, step *s, i64 now_ps)
{
    if (s->group && !s->num_parts && !s->emitted.count && !s->common) { /* one gap */
        e->in_vain = 0;
        gaps_add(e->fleet->gaps, s->group_gap_ps, s->group);
        return;
    }
    deliver(e, s, now_ps);
    for (i64 i = 0; i < s->num_parts; i++)
        deliver(e, s->parts[i], now_ps);
    count_gaps(e->fleet);
}

void ledger_use_kv(engine *e, i64 duration_ps)
{
    i64 used = engine_kv_used(e);
    e->sums.kv_block_ps += (u128)(uint64_t)used * (u128)(uint64_t)duration_ps;
    e->sums.kv_busy_ps += (u128)(uint64_t)duration_ps;
    if (used > e->sums.kv_peak_blocks)
        e->sums.kv_peak_blocks = used;
}

void ledger_finished(engine *e, sequence *r, i64 now_ps)
{
    if (r->known == r->prompt_tokens) { /* dropped by the scheduler, without a token */
        e->sums.rejected++;
        return;
    }
    e->sums.completed++;
    if (e->setup.message_ps || e->setup.stream_interval > 1)
        now_ps = MAX(now_ps, r->last_token);
    e->fleet->columns.finish_ps[r->request] = now_ps;
    e->fleet->columns.output_tokens[r->request] = r->known - r->prompt_tokens;
}

static void log_rows(engine *e, const step *s)
{
    memory *m = e->memory;
    for (i64 i = 0; i < s->rows.count; i++) {
        PUSH(m, &e->log, s->rows.at[i].sequence->request);
        PUSH(m, &e->log, s->rows.at[i].tokens);
        PUSH(m, &e->log, s->rows.at[i].computed);
        PUSH(m, &e->log, s->rows.at[i].drafts);
    }
}

/* The schedule, for tests: start, end, free blocks, then rows of 4, preempted and finished, each after its count. */
void log_step(engine *e, const step *s)
{
    memory *m = e->memory;
    i64 free_blocks = 0;
    for (i64 i = 0; i < e->num_pools; i++)
        free_blocks += e->pools[i]->free_blocks;
    PUSH(m, &e->log, s->start);
    PUSH(m, &e->log, s->end);
    PUSH(m, &e->log, free_blocks);
    PUSH(m, &e->log, s->rows.count + s->group);
    log_rows(e, s);
    for (i64 i = 0; i < s->num_parts; i++)
        log_rows(e, s->parts[i]);
    const sequences *lists[] = {&s->preempted, &s->finished};
    for (int k = 0; k < 2; k++) {
        PUSH(m, &e->log, lists[k]->count);
        for (i64 i = 0; i < lists[k]->count; i++)
            PUSH(m, &e->log, lists[k]->at[i]->request);
    }
}
