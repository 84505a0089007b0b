/* Data-parallel attention: one scheduler per rank, and all ranks decide every step at the same instant:
 * schedulers/lockstep.py. A step of the deployment has one part per rank. */
#include "internal.h"

#define PS_PER_S 1000000000000
#define PUBLISHED_EVERY_PS (PS_PER_S / 10) /* vLLM's coordinator publishes queue lengths every 100 ms */
#define WAITING_WEIGHT 4 /* running requests that a waiting one counts as: core_client.py */

typedef struct {
    policy base;
    i64 num_ranks, balance;
    policy **ranks;
    i64 *sent;              /* requests, to each rank */
    i64 *waiting, *running; /* queue lengths of each rank as last published, plus the requests sent since */
    i64 published_ps, turn;
    i64 prompt_wait_steps, prompts_waited;
    i64 set;       /* parts for the next step: one set for each step in flight, and one more */
    step ***parts; /* by set and rank */
} lockstep;

static i64 sum_over_ranks(const policy *p, i64 (*count)(const policy *rank))
{
    const lockstep *l = (const lockstep *)p;
    i64 sum = 0;
    for (i64 i = 0; i < l->num_ranks; i++)
        sum += count(l->ranks[i]);
    return sum;
}

static i64 unfinished(const policy *p) { return sum_over_ranks(p, policy_unfinished); }

static i64 num_running(const policy *p) { return sum_over_ranks(p, policy_num_running); }

static i64 num_waiting(const policy *p) { return sum_over_ranks(p, policy_num_waiting); }

static i64 wake_ps(const policy *p)
{
    const lockstep *l = (const lockstep *)p;
    i64 first_ps = NEVER;
    for (i64 i = 0; i < l->num_ranks; i++)
        if (l->ranks[i]->ops->wake_ps)
            first_ps = MIN(first_ps, l->ranks[i]->ops->wake_ps(l->ranks[i]));
    return first_ps;
}

/* balance */

static i64 score(const lockstep *l, i64 rank) { return WAITING_WEIGHT * l->waiting[rank] + l->running[rank]; }

/* vLLM: the minimum of 4 * waiting + running as last published, plus the requests sent since. */
static i64 published_queues(lockstep *l, const sequence *r)
{
    i64 chosen = 0;
    if (r->arrival - l->published_ps >= PUBLISHED_EVERY_PS) {
        l->published_ps = r->arrival;
        for (i64 i = 0; i < l->num_ranks; i++) {
            l->waiting[i] = policy_num_waiting(l->ranks[i]);
            l->running[i] = policy_num_running(l->ranks[i]);
        }
    }
    for (i64 i = 1; i < l->num_ranks; i++)
        if (score(l, i) < score(l, chosen))
            chosen = i;
    l->waiting[chosen]++;
    return chosen;
}

/* SGLang: the ranks in turn. */
static i64 round_robin(lockstep *l) { return l->turn++ % l->num_ranks; }

/* TensorRT-LLM: the rank with the fewest requests. */
static i64 fewest_requests(const lockstep *l)
{
    i64 chosen = 0;
    for (i64 i = 1; i < l->num_ranks; i++)
        if (policy_unfinished(l->ranks[i]) < policy_unfinished(l->ranks[chosen]))
            chosen = i;
    return chosen;
}

static i64 choose(lockstep *l, const sequence *r)
{
    if (l->balance == BALANCE_PUBLISHED_QUEUES)
        return published_queues(l, r);
    return l->balance == BALANCE_ROUND_ROBIN ? round_robin(l) : fewest_requests(l);
}

static int add(policy *p, sequence *r)
{
    lockstep *l = (lockstep *)p;
    r->rank = choose(l, r);
    l->sent[r->rank]++;
    return l->ranks[r->rank]->ops->add(l->ranks[r->rank], r);
}

i64 lockstep_rank_requests(const policy *p, i64 *counts)
{
    const lockstep *l = (const lockstep *)p;
    memcpy(counts, l->sent, (size_t)l->num_ranks * sizeof *counts);
    return l->num_ranks;
}

/* decide */

static int all_ranks(const lockstep *l, i64 (*count)(const policy *rank))
{
    for (i64 i = 0; i < l->num_ranks; i++)
        if (!count(l->ranks[i]))
            return 0;
    return 1;
}

static int holds_prompts(lockstep *l)
{
    if (all_ranks(l, policy_num_waiting)) {
        l->prompts_waited = 0;
        return 0;
    }
    l->prompts_waited++;
    if (l->prompts_waited >= l->prompt_wait_steps || !all_ranks(l, policy_num_running)) {
        l->prompts_waited = 0;
        return 0;
    }
    return 1;
}

#define JOIN(m, joint, part) \
    do { \
        i64 all_ = (joint)->count + (part)->count; \
        RESERVE((m), (joint), all_); \
        if ((part)->count) \
            memcpy((joint)->at + (joint)->count, (part)->at, (size_t)(part)->count * sizeof *(part)->at); \
        (joint)->count = all_; \
    } while (0)

static void schedule(policy *p, step *s, i64 now_ps)
{
    lockstep *l = (lockstep *)p;
    step **parts = l->parts[l->set];
    if (l->prompt_wait_steps) {
        int held = holds_prompts(l);
        for (i64 i = 0; i < l->num_ranks; i++)
            l->ranks[i]->holds_prompts = held;
    }
    for (i64 i = 0; i < l->num_ranks; i++) {
        step *part = parts[i];
        empty_step(part);
        l->ranks[i]->ops->schedule(l->ranks[i], part, now_ps);
        JOIN(p->memory, &s->preempted, &part->preempted);
        JOIN(p->memory, &s->finished, &part->finished);
        s->held_ps = MAX(s->held_ps, part->held_ps);
        s->group += part->rows.count + part->group;
    }
    s->parts = parts;
    s->num_parts = l->num_ranks;
    if (s->group || s->preempted.count || s->finished.count || s->held_ps)
        l->set = (l->set + 1) % (p->steps_in_flight + 1); /* it will run, so the next step uses other parts */
}

/* account */

static void update(policy *p, step *s)
{
    lockstep *l = (lockstep *)p;
    s->finished.count = 0;
    for (i64 i = 0; i < l->num_ranks; i++) {
        step *part = s->parts[i];
        part->start = s->start;
        part->end = s->end;
        l->ranks[i]->ops->update(l->ranks[i], part);
        JOIN(p->memory, &s->finished, &part->finished);
    }
}

static void abort_request(policy *p, sequence *r)
{
    policy *rank = ((lockstep *)p)->ranks[r->rank];
    rank->ops->abort(rank, r);
}

static const policy_ops LOCKSTEP = {
    .add = add,
    .schedule = schedule,
    .update = update,
    .abort = abort_request,
    .wake_ps = wake_ps,
    .unfinished = unfinished,
    .num_waiting = num_waiting,
    .num_running = num_running,
};

policy *lockstep_new(memory *m, const core_engine *setup, i64 num_ranks, policy **ranks)
{
    lockstep *l = take_memory(m, sizeof *l);
    policy *p = &l->base;
    size_t counts = (size_t)num_ranks * sizeof(i64);
    REQUIRE(m, num_ranks >= 1 && (!setup->prompt_wait_steps || ranks[0]->can_hold_prompts));
    policy_init(p, &LOCKSTEP, m, setup, ranks[0]->pool);
    p->pool = NULL; /* each rank has its own */
    p->steps_in_flight = ranks[0]->steps_in_flight;
    p->empty_steps = ranks[0]->empty_steps;
    p->staggers = ranks[0]->staggers;
    p->asynchronous = ranks[0]->asynchronous;
    p->aborts = ranks[0]->aborts;
    l->num_ranks = num_ranks;
    l->balance = setup->balance;
    l->prompt_wait_steps = setup->prompt_wait_steps;
    l->ranks = take_memory(m, (size_t)num_ranks * sizeof *l->ranks);
    memcpy(l->ranks, ranks, (size_t)num_ranks * sizeof *l->ranks);
    l->sent = take_memory(m, counts);
    l->waiting = take_memory(m, counts);
    l->running = take_memory(m, counts);
    l->published_ps = -PUBLISHED_EVERY_PS;
    l->parts = take_memory(m, (size_t)(p->steps_in_flight + 1) * sizeof *l->parts);
    for (i64 set = 0; set <= p->steps_in_flight; set++) {
        l->parts[set] = take_memory(m, (size_t)num_ranks * sizeof **l->parts);
        for (i64 i = 0; i < num_ranks; i++)
            l->parts[set][i] = take_memory(m, sizeof ***l->parts);
    }
    return p;
}
