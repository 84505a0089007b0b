/* Common parts of policies: running and waiting requests, and limits. See schedulers/policy.py. */
#include "internal.h"

const shape NO_ROWS = {0};

void policy_init(policy *p, const policy_ops *ops, memory *m, const core_engine *setup, pool *pool)
{
    p->ops = ops;
    p->memory = m;
    p->pool = pool;
    p->asynchronous = setup->asynchronous != 0;
    p->limits = (limits){
        .max_num_seqs = setup->max_num_seqs,
        .max_num_batched_tokens = setup->max_num_batched_tokens,
        .max_model_len = setup->max_model_len,
        .long_prefill_token_threshold = setup->long_prefill_token_threshold,
        .max_active = setup->max_num_active_seqs ? setup->max_num_active_seqs : setup->max_num_seqs,
        .watermark_blocks = setup->watermark_blocks,
        .prefill_schedule_interval = setup->prefill_schedule_interval,
        .pipeline_stages = setup->pipeline_stages,
        .priority = setup->priority != 0,
        .enable_chunked_prefill = setup->enable_chunked_prefill != 0,
        .reserve_full_isl = setup->reserve_full_isl != 0,
        .rules = setup->rules,
    };
    p->steps_in_flight = 1;
    p->window_tokens = setup->window_tokens < 0 ? NEVER : setup->window_tokens;
    p->streams = setup->message_ps || setup->stream_interval > 1;
    p->windows = setup->windows;
    p->num_windows = setup->num_windows;
}

i64 policy_num_running(const policy *p)
{
    return p->ops->num_running ? p->ops->num_running(p) : p->running.count;
}

i64 policy_num_waiting(const policy *p)
{
    return p->ops->num_waiting ? p->ops->num_waiting(p) : p->waiting.count;
}

i64 policy_unfinished(const policy *p)
{
    return p->ops->unfinished ? p->ops->unfinished(p) : policy_num_running(p) + policy_num_waiting(p);
}

i64 policy_last_slot(const policy *p, const sequence *r)
{
    return p->ops->last_slot ? p->ops->last_slot(p, r) : r->max_known - 1;
}

i64 running_index(const policy *p, const sequence *r)
{
    for (i64 i = 0; i < p->running.count; i++)
        if (p->running.at[i] == r)
            return i;
    return -1;
}

void remove_running(policy *p, const sequence *r)
{
    i64 place = running_index(p, r);
    REQUIRE(p->memory, place >= 0);
    REMOVE_AT(&p->running, place);
}

void insert_loaded(policy *p, sequence *r)
{
    i64 holding = 0;
    while (holding < p->waiting.count
           && p->pool->ops->held_blocks(p->pool, &queue_at(&p->waiting, holding)->table) > 0)
        holding++;
    queue_insert(p->memory, &p->waiting, holding, r);
}

void leave_windows_now(policy *p, sequence *r, i64 processed_tokens)
{
    i64 size = p->pool->block_size, next = NEVER;
    for (i64 i = 0; i < p->num_windows; i++) {
        i64 window = p->windows[i];
        if (window < 0)
            continue;
        i64 behind = MAX(0, processed_tokens - window + 1) / size;
        next = MIN(next, (behind + 1) * size + window - 1);
    }
    if (next < NEVER)
        p->pool->ops->leave_window(p->pool, &r->table, processed_tokens);
    r->next_leave = next;
}
