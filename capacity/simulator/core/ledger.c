/* What happened: the columns of requests and an engine's running sums. See ledger.py and frontend.py. */
#include <stdlib.h>

#include "engine.h"

void ledger_scheduled(engine *e, step *s, i64 now_ps)
{
    core_columns *c = &e->fleet->columns;
    core_state *sums = &e->sums;
    sums->preemptions += s->preempted.count;
    for (i64 i = 0; i < s->preempted.count; i++) {
        sequence *r = s->preempted.at[i];
        r->rows_in_flight++; /* the step tells of it until it is settled */
        c->preemptions[r->request]++;
        if (r->first_token != MISSING)
            r->preempted = now_ps;
    }
    i64 rows = s->rows.count + s->group;
    if (!rows)
        return;
    sums->steps++;
    sums->rows += rows;
    for (i64 i = 0; i < s->rows.count; i++) {
        sequence *r = s->rows.at[i].sequence;
        r->rows_in_flight++;
        if (!r->scheduled) {
            r->scheduled = 1;
            c->first_scheduled_ps[r->request] = now_ps;
            c->cached_tokens[r->request] = s->rows.at[i].cached;
            sums->hit_tokens += s->rows.at[i].cached - r->loaded;
            sums->queried_tokens += r->prompt_tokens;
        } else if (r->preempted != MISSING) {
            c->preempted_ps[r->request] += now_ps - r->preempted;
            r->preempted = MISSING;
        }
    }
}

/* One delivery of a request's output tokens. With a queue that streams them, it leaves when that has sent it. */
static void deliver_tokens(engine *e, sequence *r, i64 now_ps)
{
    fleet *f = e->fleet;
    const core_engine *setup = &e->setup;
    if (setup->message_ps || setup->stream_interval > 1) {
        i64 produced = r->known - r->prompt_tokens;
        if (produced > 1 && produced % setup->stream_interval && r->known < r->max_known)
            return;
        e->stream_free_ps = MAX(e->stream_free_ps, now_ps) + setup->message_ps;
        now_ps = e->stream_free_ps;
    }
    if (r->last_token == MISSING)
        r->first_token = f->columns.first_token_ps[r->request] = now_ps;
    else
        PUSH(&f->memory, &f->step_gaps, now_ps - r->last_token);
    r->last_token = now_ps;
}

static int by_value(const void *a, const void *b)
{
    i64 x = *(const i64 *)a, y = *(const i64 *)b;
    return (x > y) - (x < y);
}

/* Gaps of the step: equal ones together, in ascending order. */
static void count_gaps(fleet *f, i64 group, i64 group_gap_ps)
{
    i64 *gap = f->step_gaps.at, count = f->step_gaps.count;
    int sorted = 1;
    for (i64 i = 1; i < count && sorted; i++)
        sorted = gap[i - 1] <= gap[i];
    if (!sorted)
        qsort(gap, (size_t)count, sizeof *gap, by_value);
    for (i64 i = 0; i < count;) {
        i64 same = i + 1;
        while (same < count && gap[same] == gap[i])
            same++;
        i64 weight = same - i;
        if (group && group_gap_ps <= gap[i]) {
            if (group_gap_ps == gap[i])
                weight += group;
            else
                gaps_add(f->gaps, group_gap_ps, group);
            group = 0;
        }
        gaps_add(f->gaps, gap[i], weight);
        i = same;
    }
    if (group)
        gaps_add(f->gaps, group_gap_ps, group);
    f->step_gaps.count = 0;
}

void ledger_settled(engine *e, step *s, i64 now_ps)
{
    for (i64 i = 0; i < s->emitted.count; i++)
        deliver_tokens(e, s->emitted.at[i].sequence, now_ps);
    count_gaps(e->fleet, s->group, s->group_gap_ps);
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
    PUSH(m, &e->log, s->rows.count);
    for (i64 i = 0; i < s->rows.count; i++) {
        PUSH(m, &e->log, s->rows.at[i].sequence->request);
        PUSH(m, &e->log, s->rows.at[i].tokens);
        PUSH(m, &e->log, s->rows.at[i].computed);
        PUSH(m, &e->log, s->rows.at[i].drafts);
    }
    const sequences *lists[] = {&s->preempted, &s->finished};
    for (int k = 0; k < 2; k++) {
        PUSH(m, &e->log, lists[k]->count);
        for (i64 i = 0; i < lists[k]->count; i++)
            PUSH(m, &e->log, lists[k]->at[i]->request);
    }
}
