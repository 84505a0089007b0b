/* Slot batching with a bounded queue and rejection, without KV cache and token budget. See slots.py. */
#include "internal.h"

typedef struct {
    policy policy;
    i64 max_waiting; /* -1: unlimited */
} slot_batching;

static int add(policy *base, sequence *r)
{
    i64 max_waiting = ((slot_batching *)base)->max_waiting;
    i64 unfinished = base->running.count + base->waiting.count;
    if (max_waiting >= 0 && unfinished >= base->limits.max_num_seqs + max_waiting)
        return 0;
    queue_append(base->memory, &base->waiting, r);
    return 1;
}

static void add_loaded(policy *p, sequence *r)
{
    add(p, r);
}

static void schedule(policy *base, step *s, i64 now_ps)
{
    (void)now_ps;
    for (i64 i = 0; i < base->running.count; i++) {
        sequence *r = base->running.at[i];
        add_row(base->memory, s, (row){
            .sequence = r, .tokens = 1, .computed = r->known - 1, .yields = 1
        });
    }
    while (base->waiting.count && base->running.count < base->limits.max_num_seqs) {
        sequence *r = queue_pop(&base->waiting);
        r->status = RUNNING;
        PUSH(base->memory, &base->running, r);
        add_row(base->memory, s, (row){
            .sequence = r, .tokens = r->prompt_tokens, .yields = 1
        });
    }
    count_rows(base, s);
}

static void update(policy *base, step *s)
{
    for (i64 i = 0; i < s->rows.count; i++) {
        sequence *r = s->rows.at[i].sequence;
        row_ends(base, s, r);
        r->known++;
        emit(base, s, r);
        if (r->known >= r->max_known) {
            r->status = FINISHED;
            PUSH(base->memory, &s->finished, r);
        }
    }
    if (!s->finished.count)
        return;
    i64 kept = 0;
    for (i64 i = 0; i < base->running.count; i++)
        if (base->running.at[i]->status != FINISHED)
            base->running.at[kept++] = base->running.at[i];
    base->running.count = kept;
}

policy *slots_new(memory *m, const core_engine *setup, pool *pool)
{
    static const policy_ops ops = {.add = add, .add_loaded = add_loaded, .schedule = schedule, .update = update};
    slot_batching *p = take_memory(m, sizeof *p);
    policy_init(&p->policy, &ops, m, setup, pool);
    p->max_waiting = setup->slots_max_waiting;
    return &p->policy;
}
