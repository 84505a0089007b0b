/* vLLM V1 with LoRA adapters: a step computes with at most `max_loras` adapters and waits for their loads. See
 * schedulers/adapters.py. */
#include "vllm_v1.h"

typedef VEC(i64) adapter_list;

typedef struct {
    vllm_v1 v1;
    i64 max_loras, max_cpu_loras, load_ps, read_ps;
    i64 held;            /* number of adapters in the list */
    adapter_list recent; /* most recently used first: the first `max_loras` are on the GPU */
    adapter_list scheduled;
} adapter_v1;

/* Return the position in the list, or the length of the list if it is not there. */
static i64 place_of(const adapter_list *list, i64 adapter)
{
    i64 place = 0;
    while (place < list->count && list->at[place] != adapter)
        place++;
    return place;
}

/* Load the adapter to the GPU if needed; return the time that this takes. */
static i64 use_adapter(adapter_v1 *a, i64 adapter)
{
    adapter_list *recent = &a->recent;
    i64 place = place_of(recent, adapter);
    int known = place < recent->count;
    if (!known) {
        place = a->held;
        if (recent->count < a->held)
            PUSH(a->v1.base.memory, recent, adapter);
    }
    i64 last = known ? place : recent->count - 1;
    memmove(recent->at + 1, recent->at, (size_t)last * sizeof *recent->at);
    recent->at[0] = adapter;
    if (place < a->max_loras)
        return 0;
    return known || !a->max_cpu_loras ? a->load_ps : a->load_ps + a->read_ps;
}

/* Distinct adapters of a step's rows, in order. */
static void list_adapters(adapter_v1 *a, const step *s)
{
    a->scheduled.count = 0;
    for (i64 i = 0; i < s->rows.count; i++) {
        i64 adapter = s->rows.at[i].sequence->adapter;
        if (adapter && place_of(&a->scheduled, adapter) == a->scheduled.count)
            PUSH(a->v1.base.memory, &a->scheduled, adapter);
    }
}

static void schedule(policy *p, step *s, i64 now_ps)
{
    adapter_v1 *a = (adapter_v1 *)p;
    v1_schedule(p, s, now_ps);
    list_adapters(a, s);
    for (i64 i = 0; i < a->scheduled.count; i++)
        s->held_ps += use_adapter(a, a->scheduled.at[i]);
}

/* Start requests from the head of the queue; skip those whose adapter exceeds the limit of this step. */
static void admit_waiting(policy *p, step *s, i64 budget)
{
    adapter_v1 *a = (adapter_v1 *)p;
    vllm_v1 *v = &a->v1;
    i64 threshold = v1_threshold(v);
    list_adapters(a, s);
    v->aside.count = 0;
    while (v1_waiting_count(v) && budget > 0 && p->running.count < p->limits.max_active) {
        sequence *r = v1_waiting_head(v);
        int is_new = r->adapter && place_of(&a->scheduled, r->adapter) == a->scheduled.count;
        if ((is_new && a->scheduled.count >= a->max_loras) || waits_for_output(v, r)) {
            PUSH(p->memory, &v->aside, v1_waiting_defer(v));
            continue;
        }
        i64 tokens = v1_start(v, r, s, budget, threshold);
        if (!tokens)
            break;
        budget -= tokens;
        if (is_new)
            PUSH(p->memory, &a->scheduled, r->adapter);
    }
    for (i64 i = v->aside.count - 1; i >= 0; i--)
        v1_waiting_put_back(v, v->aside.at[i]);
}

static const policy_ops ADAPTER_V1 = {
    .add = v1_add, .add_loaded = v1_add_loaded, .schedule = schedule, .update = v1_update,
    .abort = v1_abort, .num_waiting = v1_num_waiting,
};

policy *adapter_v1_new(memory *m, const core_engine *setup, pool *p)
{
    adapter_v1 *a = take_memory(m, sizeof *a);
    vllm_v1_init(&a->v1, &ADAPTER_V1, m, setup, p);
    a->v1.admit_waiting = admit_waiting;
    a->max_loras = setup->max_loras;
    a->max_cpu_loras = setup->max_cpu_loras;
    a->held = setup->max_cpu_loras ? setup->max_cpu_loras : setup->max_loras;
    a->load_ps = setup->adapter_load_ps;
    a->read_ps = setup->adapter_read_ps;
    return &a->v1.base;
}
