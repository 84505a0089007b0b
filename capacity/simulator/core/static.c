/* Static batching: a padded batch runs until its longest member ends, and then the next one starts. See static.py.
 * `running` has its requests, including those that have ended. */
#include "internal.h"

typedef struct {
    policy policy;
    i64 wake, window_ps;
    i64 padded_prompt_tokens, steps_left, decoded;
} static_batching;

static i64 wake_ps(const policy *p)
{
    return ((const static_batching *)p)->wake;
}

static int add(policy *p, sequence *r)
{
    queue_append(p->memory, &p->waiting, r);
    return 1;
}

static void add_loaded(policy *p, sequence *r)
{
    add(p, r);
}

/* Take members from the queue while the padded batch fits; return the outputs of the batch. */
static i64 gather(static_batching *p)
{
    policy *base = &p->policy;
    pool *blocks = base->pool;
    i64 prompt_tokens = 0, outputs = 0;
    while (base->waiting.count && base->running.count < base->limits.max_num_seqs) {
        sequence *r = queue_at(&base->waiting, 0);
        i64 longer = MAX(prompt_tokens, r->prompt_tokens);
        i64 more = MAX(outputs, r->max_known - r->prompt_tokens);
        i64 needed = blocks->ops->blocks_needed(blocks, &r->table, longer + more - 1, NULL, 0);
        if (needed * (base->running.count + 1) > blocks->free_blocks)
            break;
        prompt_tokens = longer;
        outputs = more;
        PUSH(base->memory, &base->running, queue_pop(&base->waiting));
    }
    p->padded_prompt_tokens = prompt_tokens;
    return outputs;
}

static void start(static_batching *p, step *s, i64 now_ps)
{
    policy *base = &p->policy;
    if (!base->waiting.count)
        return;
    i64 ready_ps = queue_at(&base->waiting, 0)->arrival + p->window_ps;
    if (base->waiting.count < base->limits.max_num_seqs && now_ps < ready_ps) {
        p->wake = ready_ps;
        return;
    }
    i64 outputs = gather(p);
    p->steps_left = outputs;
    p->decoded = 0;
    for (i64 i = 0; i < base->running.count; i++) {
        sequence *r = base->running.at[i];
        base->pool->ops->grow(base->pool, &r->table, p->padded_prompt_tokens + outputs - 1, NULL);
        r->status = RUNNING;
        add_row(base->memory, s, (row){
            .sequence = r, .tokens = p->padded_prompt_tokens, .yields = 1
        });
    }
    count_rows(base, s);
}

static void schedule(policy *base, step *s, i64 now_ps)
{
    static_batching *p = (static_batching *)base;
    p->wake = NEVER;
    if (!base->running.count) {
        start(p, s, now_ps);
        return;
    }
    i64 computed = p->padded_prompt_tokens + p->decoded;
    p->decoded++;
    for (i64 i = 0; i < base->running.count; i++) {
        sequence *r = base->running.at[i];
        add_row(base->memory, s, (row){
            .sequence = r, .tokens = 1, .computed = computed, .yields = r->known < r->max_known
        });
    }
    count_rows(base, s);
}

static void update(policy *base, step *s)
{
    static_batching *p = (static_batching *)base;
    for (i64 i = 0; i < s->rows.count; i++) {
        const row *w = &s->rows.at[i];
        sequence *r = w->sequence;
        row_ends(base, s, r);
        if (!w->yields)
            continue;
        r->computed = r->known;
        r->known++;
        emit(base, s, r);
        if (r->known >= r->max_known) {
            r->status = FINISHED;
            r->kept = 1; /* its blocks are freed when the batch ends */
            PUSH(base->memory, &s->finished, r);
        }
    }
    p->steps_left--;
    if (p->steps_left == 0) {
        for (i64 i = 0; i < base->running.count; i++) {
            sequence *r = base->running.at[i];
            base->pool->ops->release(base->pool, &r->table);
            r->kept = 0;
        }
        base->running.count = 0;
    }
}

policy *static_new(memory *m, const core_engine *setup, pool *pool)
{
    static const policy_ops ops = {
        .add = add, .add_loaded = add_loaded, .schedule = schedule, .update = update, .wake_ps = wake_ps
    };
    static_batching *p = take_memory(m, sizeof *p);
    policy_init(&p->policy, &ops, m, setup, pool);
    p->wake = NEVER;
    p->window_ps = setup->static_window_ps;
    return &p->policy;
}
