/* The engine loop: decide, compute, account. See engine.py.
 *
 * The policy sets the number of steps in flight: one (synchronous), two (asynchronous), or one per pipeline stage.
 */
#include <math.h>

#include "drafts.h"

#define ROWS_AS_A_STEP 8 /* this many take about as long as a step without rows */
#define ZERO_TIME_STEPS 10000 /* successive steps without rows after which the engine has stalled */
#define PREEMPTIONS_IN_VAIN 10000 /* steps since the last sampled token after which the engine has stalled */

/* requests */

enum { CACHE_LINE = 64, SEQUENCES_AT_ONCE = 64 };

/* Allocate memory for some sequences, each of which begins a cache line; return one of them. */
static sequence *new_sequences(engine *e)
{
    size_t size = (sizeof(sequence) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    char *at = take_memory(e->memory, size * SEQUENCES_AT_ONCE + CACHE_LINE);
    at += (CACHE_LINE - (uintptr_t)at % CACHE_LINE) % CACHE_LINE;
    for (i64 i = SEQUENCES_AT_ONCE - 1; i > 0; i--) {
        sequence *spare = (sequence *)(void *)(at + (size_t)i * size);
        spare->next_free = e->spare_sequences;
        e->spare_sequences = spare;
    }
    return (sequence *)(void *)at;
}

sequence *engine_new_sequence(engine *e, i64 request)
{
    fleet *f = e->fleet;
    const core_requests *q = &f->requests;
    i64 prompt = q->prompt_tokens[request];
    if (prompt >= e->setup.max_model_len && !e->setup.admits_long_prompts)
        return NULL;
    const sequence *known = f->inside ? f->inside[request] : NULL;
    if (known && !known->cancelled && f->engines.at[known->engine]->alive)
        fail(e->memory, BAD_INPUT, "request %lld is in engine %lld", (long long)request, (long long)known->engine);
    sequence *r = e->spare_sequences;
    if (r) {
        e->spare_sequences = r->next_free;
        if (r->next_free)
            __builtin_prefetch(&r->next_free->next_free, 1);
        memset(r, 0, e->blank_bytes);
    } else {
        r = new_sequences(e);
    }
    i64 outputs = e->setup.role == ROLE_PREFILL ? 1 : q->output_tokens[request];
    r->request = request;
    r->engine = e->number;
    r->arrival = f->columns.arrival_ps[request];
    r->priority = q->priority ? q->priority[request] : 0;
    r->adapter = q->adapter ? q->adapter[request] : 0;
    r->image_tokens = q->images && q->images[request] && q->image_tokens ? q->image_tokens[request] : 0;
    r->audio_tokens = q->audio_tokens ? q->audio_tokens[request] : 0;
    r->images = (q->images ? q->images[request] : 0) + (r->audio_tokens > 0);
    r->order = q->order ? q->order[request] : request;
    r->prompt_tokens = r->known = prompt;
    r->max_known = MAX(prompt + 1, MIN(prompt + outputs, e->setup.max_model_len));
    i64 allowed = e->setup.role != ROLE_PREFILL && q->max_tokens ? MAX(q->max_tokens[request], outputs) : outputs;
    r->asked_known = MIN(MAX(r->max_known, prompt + allowed), e->setup.max_model_len);
    r->first_token = r->last_token = r->preempted = MISSING;
    r->scheduled = f->columns.first_scheduled_ps[request] != MISSING;
    e->pools[0]->ops->open(e->pools[0], &r->table, request);
    r->inside = 1;
    e->unfinished++;
    if (f->inside)
        f->inside[request] = r;
    return r;
}

/* Free the memory of a request that has left, once it has no row in flight. */
void engine_recycle(engine *e, sequence *r)
{
    if (r->rows_in_flight || r->kept || r->inside)
        return;
    r->inside = -1; /* recycled once */
    r->next_free = e->spare_sequences;
    e->spare_sequences = r;
}

/* Remove the request from the engine. */
static void leave(engine *e, sequence *r)
{
    r->inside = 0;
    e->unfinished--;
    sequence **inside = e->fleet->inside;
    if (inside && inside[r->request] == r)
        inside[r->request] = NULL;
}

static int join(engine *e, i64 request, i64 at_ps)
{
    sequence *r = engine_new_sequence(e, request);
    if (!r)
        return 0;
    if (!e->policy->ops->add(e->policy, r)) {
        leave(e, r);
        engine_recycle(e, r);
        return 0;
    }
    engine_wake(e, at_ps);
    return 1;
}

/* Accept a request, through the front end if that tokenizes; 0: it is rejected. */
int engine_receive(engine *e, i64 request, i64 at_ps)
{
    if (!e->front_end.tokenizes)
        return join(e, request, at_ps);
    front_end_take_in(&e->front_end, request, e->fleet->requests.prompt_tokens[request], at_ps);
    engine_expect_arrivals(e);
    return 1;
}

/* In a closed loop, the end of a request sends the next one. Its engine rejects no requests. */
static void send_next(engine *e, i64 end_ps)
{
    if (e->fed_count >= e->loop_count)
        return;
    i64 at = e->fed_count++, due_ps = end_ps + e->loop_delay_ps;
    for (; at > e->fed_next && e->fed_instants[at - 1] > due_ps; at--)
        e->fed_instants[at] = e->fed_instants[at - 1];
    e->fed_instants[at] = due_ps;
}

static void refuse(engine *e, i64 request, i64 at_ps)
{
    if (e->fleet->routed)
        fleet_tell(e->fleet, EVENT_REFUSED, e, request, at_ps, 0);
    else
        e->sums.rejected++;
}

void engine_receive_fed(engine *e, i64 until_ps)
{
    while (e->fed_next < e->fed_count && e->fed_instants[e->fed_next] <= until_ps) {
        i64 request = e->fed_requests ? e->fed_requests[e->fed_next] : e->fed_next;
        i64 at_ps = e->fed_instants[e->fed_next++];
        e->fleet->columns.arrival_ps[request] = at_ps;
        if (!engine_receive(e, request, at_ps))
            refuse(e, request, at_ps);
    }
}

/* Take requests from the front end. */
void engine_receive_tokenized(engine *e, i64 until_ps)
{
    for (i64 at_ps; (at_ps = front_end_due_ps(&e->front_end)) <= until_ps;) {
        i64 request = front_end_pop(&e->front_end);
        if (request >= 0 && !join(e, request, at_ps))
            refuse(e, request, at_ps);
    }
}

void engine_wake(engine *e, i64 at_ps)
{
    if (e->ending || e->endless || !e->alive)
        return;
    i64 key = 4 * MAX(at_ps, e->now_ps) + DECIDE;
    if (key < e->key)
        e->key = key;
    else if ((e->key & 3) == ARRIVE)
        e->later_key = MIN(e->later_key, key);
}

/* The instant at which the next request matters: if no step has to end before, or if the front end receives it. */
void engine_expect_arrivals(engine *e)
{
    if (!e->alive || ((e->ending || e->endless) && !e->front_end.tokenizes))
        return;
    i64 at_ps = front_end_due_ps(&e->front_end);
    if (e->fed_next < e->fed_count)
        at_ps = MIN(at_ps, e->fed_instants[e->fed_next]);
    if (at_ps == NEVER)
        return;
    i64 key = 4 * MAX(at_ps, e->now_ps) + ARRIVE;
    if (key >= e->key)
        return;
    if ((e->key & 3) != ARRIVE)
        e->later_key = e->key;
    e->key = key;
}

/* steps */

step *engine_new_step(engine *e)
{
    step *s = e->spare_steps;
    if (s) {
        e->spare_steps = s->next_free;
    } else {
        s = take_memory(e->memory, sizeof *s);
    }
    empty_step(s);
    return s;
}

void engine_spare_step(engine *e, step *s)
{
    s->next_free = e->spare_steps;
    e->spare_steps = s;
}

static i64 checked_ps(engine *e, i64 ps)
{
    if (ps < 0)
        fail(e->memory, CALLBACK_FAILED, "the step times failed");
    return ps;
}

static i64 step_duration(engine *e, step *s)
{
    i64 count = 1, fullest = 0, duration;
    if (s->num_parts) {
        count = s->num_parts;
        for (i64 i = 0; i < count; i++)
            e->shapes[i] = s->parts[i]->sums;
        duration = joint_ps(e->setup.times, e->shapes, count);
    } else {
        duration = step_ps(e->setup.times, &s->sums);
    }
    checked_ps(e, duration);
    if (e->setup.step_factors) {
        uint64_t drawn = mixed(e->setup.step_seed, (uint64_t)e->number, (uint64_t)(e->sums.steps - 1));
        duration = MAX(1, (i64)rint((double)duration * e->setup.step_factors[drawn >> 52]));
    }
    if (e->work) {
        i64 most = -1;
        for (i64 i = 0; i < count; i++) {
            const shape *h = s->num_parts ? &e->shapes[i] : &s->sums;
            i64 tokens = h->prefill_tokens + h->decode_sequences + h->draft_tokens;
            if (tokens > most) {
                most = tokens;
                fullest = i;
            }
        }
        work_step(e->work, s->num_parts ? &e->shapes[fullest] : &s->sums, duration, s->held_ps);
    }
    return duration;
}

static int has_awaited_row(const step *s)
{
    for (i64 i = 0; i < s->rows.count; i++)
        if (s->rows.at[i].yields && s->rows.at[i].sequence->asked_known > s->rows.at[i].sequence->prompt_tokens + 1)
            return 1;
    for (i64 i = 0; i < s->num_parts; i++)
        if (has_awaited_row(s->parts[i]))
            return 1;
    return 0;
}

/* When the tokens are known that a staggered step waits for: see engine.py. */
static i64 sampled_ps(const engine *e, const step *s, i64 now_ps)
{
    i64 at_ps = now_ps;
    for (i64 i = 0; i < e->num_in_flight; i++) {
        const step *before = e->in_flight[i];
        if (before->awaited && before->call + e->policy->limits.pipeline_stages <= s->call)
            at_ps = MAX(at_ps, before->end);
    }
    return at_ps;
}

/* Run a step through the pipeline stages, each of which is busy for its share. */
static void launch_stages(engine *e, step *s, i64 duration, i64 now_ps)
{
    i64 stages = e->policy->limits.pipeline_stages;
    i64 share = duration / stages, rest = duration % stages, at_ps = now_ps;
    if (e->policy->staggers) {
        at_ps = sampled_ps(e, s, now_ps);
        s->awaited = has_awaited_row(s);
    }
    for (i64 stage = 0; stage < stages; stage++) {
        i64 begin_ps = MAX(at_ps, e->stage_free_ps[stage]);
        if (stage == 0)
            s->start = begin_ps;
        at_ps = e->stage_free_ps[stage] = begin_ps + share + (stage == 0 ? rest : 0);
    }
    s->end = at_ps;
}

void engine_check_end(engine *e, const step *s)
{
    if (s->end >= NEVER / 4)
        fail(e->memory, BAD_INPUT, "simulated time ends after %lld s, and the run goes on to %lld s: simulate fewer requests, or a faster deployment",
             (long long)(NEVER / 4 / 1000000000000), (long long)(s->end / 1000000000000));
}

/* Compute how long a step lasts, and its start and end. */
void time_step(engine *e, step *s, i64 now_ps)
{
    i64 duration = s->held_ps;
    if (s->rows.count || s->group)
        duration += step_duration(e, s);
    if (e->policy->limits.pipeline_stages == 1) {
        s->start = MAX(now_ps, e->stage_free_ps[0]);
        s->end = e->stage_free_ps[0] = s->start + duration;
    } else {
        launch_stages(e, s, duration, now_ps);
    }
    engine_check_end(e, s);
    e->sums.busy_ps += duration;
}

/* The output of the previous step is read when this one is launched. */
static void hold_results(engine *e, const step *s)
{
    if (e->setup.launch_lag <= 0.0 || !e->num_in_flight || e->policy->limits.pipeline_stages > 1)
        return;
    i64 prefill_tokens = s->sums.prefill_tokens;
    for (i64 i = 0; i < s->num_parts; i++)
        prefill_tokens += s->parts[i]->sums.prefill_tokens;
    step *before = e->in_flight[e->num_in_flight - 1];
    if (prefill_tokens)
        before->end = MAX(before->end, s->start + (i64)(e->setup.launch_lag * (double)(s->end - s->start)));
}

static void launch(engine *e, step *s, i64 now_ps)
{
    ledger_scheduled(e, s, now_ps);
    time_step(e, s, now_ps);
    ledger_expect(e, s);
    hold_results(e, s);
    if (s->rows.count || s->group)
        e->without_rows = 0;
    else if (!s->held_ps && ++e->without_rows > ZERO_TIME_STEPS)
        e->endless = 1;
    e->in_vain += s->preempted.count;
    if (e->in_vain > PREEMPTIONS_IN_VAIN)
        e->endless = 1;
    e->in_flight[e->num_in_flight++] = s;
}

static void finish(engine *e, sequence *r, i64 now_ps)
{
    if (!r->inside)
        return;
    leave(e, r);
    if (r->cancelled)
        return;
    if (e->setup.role == ROLE_PREFILL && r->known > r->prompt_tokens) {
        pool *p = e->pools[0];
        kept_kv kept = {.request = r->request};
        p->ops->open(p, &kept.table, r->request);
        /* its blocks are free since this instant: allocate them again */
        int held = p->ops->hold_computed(p, &kept.table, r->prompt_tokens,
                                         p->ops->lookup(p, &kept.table, r->prompt_tokens));
        if (held)
            PUSH(e->memory, &e->kept, kept);
        fleet_tell(e->fleet, held ? EVENT_PREFILLED : EVENT_PREFILL_LOST, e, r->request, now_ps, 0);
        return;
    }
    ledger_finished(e, r, now_ps);
    i64 end_ps = e->fleet->columns.finish_ps[r->request];
    send_next(e, end_ps == MISSING ? now_ps : end_ps);
    fleet_tell(e->fleet, EVENT_FINISHED, e, r->request, now_ps, r->known == r->prompt_tokens);
}

static void recycle_all(engine *e, const sequences *list)
{
    for (i64 i = 0; i < list->count; i++)
        engine_recycle(e, list->at[i]);
}

static void settle(engine *e)
{
    i64 now_ps = e->now_ps;
    step *s = e->ending;
    engine_receive_fed(e, now_ps - 1); /* requests that arrived before precede those that this end causes */
    e->ending = NULL;
    e->policy->ops->update(e->policy, s);
    e->passed = s->slots - 1;
    ledger_settled(e, s, now_ps);
    if (e->setup.keep_log)
        log_step(e, s);
    for (i64 i = 0; i < s->finished.count; i++)
        finish(e, s->finished.at[i], now_ps);
    for (i64 i = 0; i < s->preempted.count; i++) {
        s->preempted.at[i]->rows_in_flight--;
        if (s->preempted.at[i]->status == FINISHED)
            engine_recycle(e, s->preempted.at[i]);
    }
    recycle_all(e, &s->finished);
    recycle_all(e, &s->gone);
    for (i64 i = 0; i < s->num_parts; i++)
        recycle_all(e, &s->parts[i]->gone);
    e->fleet->steps += 1 + s->rows.count / ROWS_AS_A_STEP;
    engine_spare_step(e, s);
    e->key = 4 * now_ps + DECIDE;
    engine_expect_arrivals(e);
}

/* mail and loads */

static void release_kept(engine *e, i64 request)
{
    for (i64 i = 0; i < e->kept.count; i++) {
        if (e->kept.at[i].request != request)
            continue;
        pool *p = e->pools[0];
        p->ops->release(p, &e->kept.at[i].table);
        REMOVE_AT(&e->kept, i);
        return;
    }
}

static i64 load_place(const engine *e, i64 request)
{
    for (i64 i = 0; i < e->loads.count; i++)
        if (e->loads.at[i].sequence->request == request)
            return i;
    return -1;
}

static void read_mail(engine *e)
{
    for (i64 i = 0; i < e->mail.count; i++) {
        mail m = e->mail.at[i];
        sequence *r = m.cancelled;
        i64 place;
        switch (m.kind) {
        case MAIL_RELEASE_KEPT:
            release_kept(e, m.request);
            break;
        case MAIL_CANCEL:
            if (!r || r->inside != 1 || !r->cancelled || r->request != m.request)
                break; /* it has left meanwhile */
            leave(e, r);
            e->policy->ops->abort(e->policy, r);
            engine_recycle(e, r);
            break;
        case MAIL_LOADED:
            place = load_place(e, m.request);
            if (place < 0)
                break;
            r = e->loads.at[place].sequence;
            REMOVE_AT(&e->loads, place);
            e->policy->ops->add_loaded(e->policy, r);
            break;
        case MAIL_UNLOAD:
            place = load_place(e, m.request);
            if (place < 0)
                break;
            r = e->loads.at[place].sequence;
            if (e->loads.at[place].begun)
                e->pools[0]->ops->release(e->pools[0], &r->table);
            REMOVE_AT(&e->loads, place);
            leave(e, r);
            engine_recycle(e, r);
            break;
        case MAIL_WANT_LOAD:
            for (place = 0; place < e->loads.count; place++)
                if (e->loads.at[place].sequence->request == m.request)
                    e->loads.at[place].begun = 0;
            break;
        }
    }
    e->mail.count = 0;
}

/* Whether a policy that never preempts can guarantee this request its blocks to the end. */
static int ends_in_time(engine *e, const load *l)
{
    policy *p = e->policy;
    pool *q = e->pools[0];
    if (!p->reserves_to_end)
        return 1;
    i64 promised = 0;
    sequences *running = &p->running;
    for (i64 i = 0; i < running->count; i++)
        promised += q->ops->held_blocks(q, &running->at[i]->table)
                        ? q->ops->blocks_needed(q, &running->at[i]->table, policy_last_slot(p, running->at[i]), NULL, 0)
                        : 0;
    for (i64 i = 0; i < p->waiting.count; i++) {
        sequence *r = queue_at(&p->waiting, i);
        if (q->ops->held_blocks(q, &r->table))
            promised += q->ops->blocks_needed(q, &r->table, policy_last_slot(p, r), NULL, 0);
    }
    for (i64 i = 0; i < e->loads.count; i++) {
        sequence *r = e->loads.at[i].sequence;
        if (e->loads.at[i].begun == 1 && q->ops->held_blocks(q, &r->table))
            promised += q->ops->blocks_needed(q, &r->table, policy_last_slot(p, r), NULL, 0);
    }
    i64 until = MAX(policy_last_slot(p, l->sequence), l->tokens);
    return promised + q->ops->blocks_needed(q, &l->sequence->table, until, NULL, 0) <= q->free_blocks;
}

/* Begin the first transfer with enough free blocks; 1: its end is requested, and this decision continues then. */
static int begin_load(engine *e)
{
    i64 place = 0;
    while (place < e->loads.count && e->loads.at[place].begun == 1)
        place++;
    if (place == e->loads.count || e->loads.at[place].begun < 0)
        return 0;
    load *l = &e->loads.at[place];
    pool *p = e->pools[0];
    if (!ends_in_time(e, l) || !p->ops->load(p, &l->sequence->table, l->tokens))
        return 0;
    l->begun = 1;
    fleet_tell(e->fleet, EVENT_LOAD_BEGINS, e, l->sequence->request, e->now_ps, 0);
    return 1;
}

/* the loop */

/* How many steps can be added to those in flight. */
static i64 free_slots(const engine *e)
{
    i64 free = e->policy->steps_in_flight;
    for (i64 i = 0; i < e->num_in_flight; i++)
        free -= e->in_flight[i]->slots;
    return free;
}

/* Launch steps up to the limit of steps in flight. */
static void fill_slots(engine *e, i64 now_ps)
{
    const policy *p = e->policy;
    int waits_early = p->empty_steps == 1; /* for the oldest step, as soon as one has no rows */
    i64 passed = waits_early ? e->passed : 0, free, idle_calls = 0;
    e->passed = 0;
    while (policy_unfinished(p) && !e->endless && (free = free_slots(e) - passed)) {
        step *s = engine_new_step(e);
        p->ops->schedule(e->policy, s, now_ps);
        s->call = ++e->calls;
        int computes = s->rows.count || s->group || s->held_ps;
        int is_empty = !computes && !s->preempted.count && !s->finished.count;
        if (!is_empty)
            launch(e, s, now_ps);
        else
            engine_spare_step(e, s);
        if (is_empty && e->num_in_flight)
            e->in_flight[e->num_in_flight - 1]->slots += p->staggers ? 1 : MIN(p->empty_steps, free);
        if (passed && e->num_in_flight) {
            passed--;
        } else if (p->staggers) { /* another call may have rows */
            idle_calls += is_empty && !e->num_in_flight;
            if (idle_calls == p->steps_in_flight)
                break;
        } else if (is_empty || (waits_early && !(computes && e->in_flight[0]->end > now_ps))) {
            break;
        }
    }
}

static void decide(engine *e)
{
    i64 now_ps = e->now_ps;
    if (e->endless) {
        e->key = NEVER;
        engine_expect_arrivals(e);
        return;
    }
    engine_receive_fed(e, now_ps);
    read_mail(e);
    if (begin_load(e)) {
        e->paused = 1;
        return;
    }
    take_quiet_steps(e);
    take_quiet_drafts(e);
    now_ps = e->now_ps;
    fill_slots(e, now_ps);
    if (e->endless && !e->num_in_flight) {
        e->key = NEVER;
        engine_expect_arrivals(e);
        return;
    }
    if (!e->num_in_flight) {
        i64 wake_ps = e->policy->ops->wake_ps ? e->policy->ops->wake_ps(e->policy) : NEVER;
        e->key = wake_ps >= NEVER / 4 ? NEVER : 4 * wake_ps + DECIDE;
        engine_expect_arrivals(e);
        return;
    }
    e->ending = e->in_flight[0];
    e->num_in_flight--;
    for (i64 i = 0; i < e->num_in_flight; i++)
        e->in_flight[i] = e->in_flight[i + 1];
    ledger_use_kv(e, e->ending->end - now_ps);
    e->key = 4 * e->ending->end + SETTLE;
    engine_expect_arrivals(e);
}

void engine_proceed(engine *e)
{
    i64 kind = e->key & 3;
    e->now_ps = e->key >> 2;
    if (kind == SETTLE) {
        settle(e);
    } else if (kind == ARRIVE) {
        e->key = e->later_key;
        engine_receive_fed(e, e->now_ps);
        engine_receive_tokenized(e, e->now_ps);
        engine_expect_arrivals(e);
    } else {
        decide(e);
    }
}

i64 engine_kv_used(const engine *e)
{
    i64 free_blocks = 0;
    for (i64 i = 0; i < e->num_pools; i++)
        free_blocks += e->pools[i]->free_blocks;
    return e->num_blocks - free_blocks;
}

/* making one */

static pool *new_pool(engine *e)
{
    const core_engine *c = &e->setup;
    const core_requests *q = &e->fleet->requests;
    if (c->policy == POLICY_VLLM_V0)
        return content_pool_new(e->memory, c, q);
    if (c->contiguous_blocks)
        return contiguous_pool_new(e->memory, c);
    if (c->num_windows == 1 && c->windows[0] < 0)
        return run_pool_new(e->memory, c, q);
    return block_pool_new(e->memory, c, q);
}

static policy *new_policy(engine *e, pool *p)
{
    const core_engine *c = &e->setup;
    memory *m = e->memory;
    switch (c->policy) {
    case POLICY_VLLM_V1:
        if (c->max_loras)
            return adapter_v1_new(m, c, p);
        return c->num_tiers ? offloading_v1_new(m, c, p, &e->fleet->requests) : vllm_v1_new(m, c, p);
    case POLICY_VLLM_V0:
        return vllm_v0_new(m, c, p);
    case POLICY_SGLANG:
        return sglang_new(m, c, p);
    case POLICY_TENSORRT_LLM:
        return tensorrt_llm_new(m, c, p);
    case POLICY_TGI:
        return tgi_new(m, c, p);
    case POLICY_STATIC:
        return static_new(m, c, p);
    default:
        return slots_new(m, c, p);
    }
}

static const void *copied(memory *m, const void *what, i64 count, size_t size)
{
    if (!count)
        return NULL;
    void *copy = take_memory(m, (size_t)count * size);
    memcpy(copy, what, (size_t)count * size);
    return copy;
}

engine *engine_new(fleet *f, const core_engine *setup, i64 number, i64 now_ps)
{
    memory *m = &f->memory;
    engine *e = take_memory(m, sizeof *e);
    e->fleet = f;
    e->memory = m;
    e->number = number;
    e->setup = *setup;
    if (!f->requests.images && !f->requests.audio_tokens)
        e->setup.max_encoder_tokens = 0;
    e->setup.windows = copied(m, setup->windows, setup->num_windows, sizeof(i64));
    e->setup.accept = copied(m, setup->accept, setup->num_accept, sizeof(i64));
    e->setup.rates = copied(m, setup->rates, setup->num_rates * setup->num_classes, sizeof(double));
    e->setup.step_factors = setup->step_factors ? copied(m, setup->step_factors, STEP_FACTORS, sizeof(double)) : NULL;
    e->now_ps = now_ps;
    e->key = e->later_key = NEVER;
    e->alive = 1;
    e->blank_bytes = offsetof(sequence, table);
    front_end_init(&e->front_end, m, setup);
    e->gaps = f->gaps;
    e->work = setup->keep_work ? work_new(m) : NULL;
    i64 ranks = setup->data_parallel_size;
    e->num_pools = ranks;
    e->num_blocks = ranks * setup->num_blocks;
    e->pools = take_memory(m, (size_t)ranks * sizeof *e->pools);
    e->shapes = take_memory(m, (size_t)ranks * sizeof *e->shapes);
    policy **policies = e->policies = take_memory(m, (size_t)ranks * sizeof *policies);
    for (i64 i = 0; i < ranks; i++) {
        e->pools[i] = new_pool(e);
        policies[i] = new_policy(e, e->pools[i]);
    }
    e->policy = ranks > 1 ? lockstep_new(m, &e->setup, ranks, policies) : policies[0];
    if (setup->policy == POLICY_VLLM_V1 && ranks == 1 && ((vllm_v1 *)e->policy)->regular && !setup->num_tiers)
        e->regular_v1 = e->policy;
    if (setup->policy == POLICY_VLLM_V1 && ranks == 1 && ((vllm_v1 *)e->policy)->drafted)
        e->drafted_v1 = e->policy;
    e->in_flight = take_memory(m, (size_t)(e->policy->steps_in_flight + 1) * sizeof *e->in_flight);
    e->stage_free_ps = take_memory(m, (size_t)e->policy->limits.pipeline_stages * sizeof *e->stage_free_ps);
    return e;
}
