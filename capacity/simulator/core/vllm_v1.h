/* vLLM V1's scheduler, for offload.c and other policies based on it. */
#ifndef CAPACITY_VLLM_V1_H
#define CAPACITY_VLLM_V1_H

#include "decode_group.h"
#include "encoder.h"

#ifndef _WIN32
#pragma GCC visibility push(hidden)
#endif

typedef struct stage_groups stage_groups; /* stages.c */
typedef struct draft_group draft_group;   /* drafts.c */

typedef struct vllm_v1 {
    policy base;
    speculation drafts;
    int speculates;
    VEC(sequence *) by_priority; /* the waiting queue as a heap, with `priority` */
    i64 calls;                   /* of `schedule` */
    i64 since_prefill;           /* executed steps since the last prefill row; -1: none yet */
    int admission_bound;
    sequences aside;             /* waiting requests that this step skips */
    int holds;                   /* prefills wait in this step */
    int some_scheduled;          /* of the running requests, in this step */
    int prefill_scheduled;       /* one of these was in its prefill */
    int prefill_started;         /* a request has started in this step with more than one token to compute */
    sequences order_before;      /* the running list before a step's first preemption */
    void (*admit_waiting)(policy *p, step *s, i64 budget); /* offload.c has its own */
    void (*finish)(struct vllm_v1 *v, sequence *r);        /* and this as well */
    i64 next_ticket, last_end_ps;
    step *pending;               /* the last step that is scheduled and not accounted */
    i64 num_pending;
    int regular;                 /* decode steps of this engine can be computed as sums */
    decode_group group;
    stage_groups *stages;        /* the same of one with pipeline stages; else NULL */
    draft_group *drafted;        /* verifications of drafts, or NULL */
    image_encoder *encoder;      /* or NULL */
} vllm_v1;

/* Whether a preempted request is skipped because a step in flight still computes a token of it. */
static inline int waits_for_output(const vllm_v1 *v, const sequence *r)
{
    return v->base.limits.rules.waits_for_stale_output && r->in_flight_tokens > 0;
}

void vllm_v1_init(vllm_v1 *v, const policy_ops *ops, memory *m, const core_engine *setup, pool *pool);
void v1_schedule(policy *p, step *s, i64 now_ps);
void v1_launched(vllm_v1 *v, step *s); /* one that v1_schedule has left empty */
void v1_update(policy *p, step *s);
int v1_add(policy *p, sequence *r);
void v1_add_loaded(policy *p, sequence *r);
void v1_abort(policy *p, sequence *r);
void v1_finish(vllm_v1 *v, sequence *r);
i64 v1_num_waiting(const policy *p);
i64 v1_threshold(vllm_v1 *v);
int v1_allocate_running(vllm_v1 *v, sequence *r, i64 tokens);
void v1_run(vllm_v1 *v, sequence *r);
i64 v1_start(vllm_v1 *v, sequence *r, step *s, i64 budget, i64 threshold);
void v1_commit(vllm_v1 *v, step *s);
void v1_update_rows(vllm_v1 *v, step *s); /* add the requests that they end to the finished ones */
int v1_schedule_group(vllm_v1 *v, decode_group *g, step *s);
void v1_admit_waiting(policy *p, step *s, i64 budget);
/* waiting requests in the order of admission */
i64 v1_waiting_count(const vllm_v1 *v);
sequence *v1_waiting_head(vllm_v1 *v);
sequence *v1_waiting_pop(vllm_v1 *v);
sequence *v1_waiting_defer(vllm_v1 *v); /* pop the head, because this step skips it */
void v1_waiting_put_back(vllm_v1 *v, sequence *r);

#ifndef _WIN32
#pragma GCC visibility pop
#endif

#endif
