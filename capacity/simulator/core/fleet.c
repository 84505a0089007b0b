/* All engines of one run, in the order of their next events. */
#include <stdlib.h>

#include "engine.h"

#define ENTER(f, otherwise) \
    do { \
        (f)->memory.error = OK; \
        if (setjmp((f)->memory.on_error)) \
            return otherwise; \
        drop_told_events(f); \
    } while (0)

/* heap of engines: least key first, among equals the lowest number */

static int before(const fleet *f, i64 a, i64 b)
{
    i64 x = f->engines.at[a]->key, y = f->engines.at[b]->key;
    return x < y || (x == y && a < b);
}

static void put(fleet *f, i64 at, i64 number)
{
    f->heap.at[at] = number;
    f->place.at[number] = at;
}

/* Restore the heap after an engine's key has changed. */
static void reorder(fleet *f, i64 number)
{
    i64 at = f->place.at[number], count = f->heap.count;
    while (at && before(f, number, f->heap.at[(at - 1) / 2])) {
        put(f, at, f->heap.at[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        i64 child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && before(f, f->heap.at[child + 1], f->heap.at[child]))
            child++;
        if (!before(f, f->heap.at[child], number))
            break;
        put(f, at, f->heap.at[child]);
        at = child;
    }
    put(f, at, number);
}

static i64 second_key(const fleet *f)
{
    i64 key = NEVER;
    for (i64 at = 1; at < MIN(3, f->heap.count); at++)
        key = MIN(key, f->engines.at[f->heap.at[at]]->key);
    return key;
}

/* events */

static void drop_told_events(fleet *f)
{
    if (f->events_told) {
        f->events.count -= f->events_told;
        memmove(f->events.at, f->events.at + f->events_told, (size_t)f->events.count * sizeof *f->events.at);
        f->events_told = f->kinds_waiting = 0;
    }
}

void fleet_tell(fleet *f, i64 kind, const engine *e, i64 request, i64 at_ps, i64 value)
{
    if (!f->routed)
        return;
    PUSH(&f->memory, &f->events, ((core_event){kind, e->number, request, at_ps, value}));
    f->kinds_waiting |= (i64)1 << kind;
}

i64 fleet_events(fleet *f, const core_event **events)
{
    *events = f->events.at;
    f->events_told = f->events.count;
    return f->events.count;
}

/* making one */

fleet *fleet_new(const core_requests *requests, const core_columns *columns, i64 routed)
{
    fleet *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    if (setjmp(f->memory.on_error))
        return f; /* fleet_error returns the reason */
    memory *m = &f->memory;
    if (!requests || !columns || requests->count < 0 || requests->count > ((i64)1 << 31))
        fail(m, BAD_INPUT, "the number of requests must be from 0 to 2**31");
    if (requests->count && (!requests->prompt_tokens || !requests->output_tokens || !columns->arrival_ps
                            || !columns->first_scheduled_ps || !columns->first_token_ps || !columns->finish_ps
                            || !columns->output_tokens || !columns->cached_tokens || !columns->preemptions
                            || !columns->preempted_ps))
        fail(m, BAD_INPUT, "requests: a column is missing");
    const i64 most = (i64)1 << 40;
    for (i64 i = 0; i < requests->count; i++)
        if (requests->prompt_tokens[i] < 0 || requests->prompt_tokens[i] > most || requests->output_tokens[i] < 1
            || requests->output_tokens[i] > most
            || (requests->max_tokens && (requests->max_tokens[i] < 1 || requests->max_tokens[i] > most)))
            fail(m, BAD_INPUT, "request %lld: its tokens are out of bounds", (long long)i);
    const i64 *images[] = {requests->images, requests->image_tokens, requests->audio_tokens};
    for (i64 k = 0; k < 3; k++)
        for (i64 i = 0; images[k] && i < requests->count; i++)
            if (images[k][i] < 0 || images[k][i] > (i64)1 << 20)
                fail(m, BAD_INPUT, "request %lld: its images are out of bounds", (long long)i);
    for (i64 i = 0; i < requests->count; i++)
        if (columns->preemptions[i] < MISSING || columns->preemptions[i] > most || columns->preempted_ps[i] < MISSING
            || columns->preempted_ps[i] > most)
            fail(m, BAD_INPUT, "request %lld: it was preempted before its arrival", (long long)i);
    f->requests = *requests;
    f->columns = *columns;
    f->routed = routed != 0;
    if (routed && requests->count)
        f->inside = take_memory(m, (size_t)requests->count * sizeof *f->inside);
    f->gaps = gaps_new(m);
    return f;
}

void fleet_free(fleet *f)
{
    if (!f)
        return;
    free_all_memory(&f->memory);
    free(f);
}

const char *fleet_error(const fleet *f)
{
    return !f ? "no memory for a fleet" : f->memory.error ? f->memory.message : "";
}

int fleet_failed(const fleet *f)
{
    return f ? f->memory.error : OUT_OF_MEMORY;
}

/* Check everything that an index or a loop depends on. */
static void check_setup(fleet *f, const core_engine *c)
{
    memory *m = &f->memory;
    const i64 most = (i64)1 << 40;
#define WITHIN(field, low, high) \
    if (c->field < (low) || c->field > (high)) \
    fail(m, BAD_INPUT, #field " is %lld: must be from %lld to %lld", (long long)c->field, (long long)(low), \
         (long long)(high))
    WITHIN(policy, 0, NUM_POLICIES - 1);
    WITHIN(role, ROLE_BOTH, ROLE_DECODE);
    WITHIN(max_num_seqs, 1, most);
    WITHIN(max_num_batched_tokens, 1, most);
    WITHIN(max_model_len, 1, most);
    WITHIN(long_prefill_token_threshold, 0, most);
    WITHIN(watermark_blocks, 0, most);
    WITHIN(max_num_active_seqs, 0, most);
    WITHIN(prefill_schedule_interval, 1, most);
    WITHIN(pipeline_stages, 1, 1 << 16);
    WITHIN(num_blocks, 1, (i64)1 << 30);
    WITHIN(block_size, 1, (i64)1 << 30);
    WITHIN(num_windows, 1, 1 << 10);
    WITHIN(contiguous_blocks, 0, (i64)1 << 30);
    WITHIN(window_tokens, -1, most);
    WITHIN(draft_tokens, 0, 1 << 16);
    WITHIN(lookahead_slots, 0, 1 << 16);
    WITHIN(num_accept, 0, 1 << 20);
    WITHIN(num_rates, 0, 1 << 16);
    WITHIN(data_parallel_size, 1, 1 << 16);
    WITHIN(balance, 0, BALANCE_FEWEST_REQUESTS);
    WITHIN(prompt_wait_steps, 0, most);
    WITHIN(sglang_recv_interval, 1, most);
    WITHIN(sglang_window, 0, most);
    WITHIN(num_tiers, 0, 2);
    WITHIN(chunk_blocks, 0, (i64)1 << 30);
    WITHIN(max_loras, 0, (i64)1 << 20);
    WITHIN(max_cpu_loras, 0, (i64)1 << 30);
    WITHIN(adapter_load_ps, 0, NEVER / 4);
    WITHIN(adapter_read_ps, 0, NEVER / 4);
    WITHIN(num_processes, 1, 1 << 16);
    WITHIN(request_ps, 0, NEVER / 4);
    WITHIN(message_ps, 0, NEVER / 4);
    WITHIN(stream_interval, 1, most);
#undef WITHIN
    if (c->num_rates && c->num_classes != 1 && c->num_classes != 16)
        fail(m, BAD_INPUT, "acceptance rates must have 1 or 16 classes, not %lld", (long long)c->num_classes);
#define FRACTION(field, most_) \
    if (!(c->field >= 0.0 && c->field <= (most_))) \
    fail(m, BAD_INPUT, #field " is %g: must be from 0 to %g", c->field, (double)(most_))
    FRACTION(sglang_window_share, 1.0);
    FRACTION(sglang_conservativeness, 1e6);
    FRACTION(trt_batch_wait_tokens, 1e12);
    FRACTION(tgi_waiting_served_ratio, 1e6);
    FRACTION(input_token_s, 1e6);
    FRACTION(launch_lag, 1.0);
    for (i64 i = 0; i < c->num_tiers; i++) {
        if (!(c->tiers[i].bytes_per_s > 0.0) || c->tiers[i].latency_ps < 0 || c->tiers[i].latency_ps >= NEVER / 4
            || c->tiers[i].capacity_chunks < -1 || c->tiers[i].capacity_chunks > most)
            fail(m, BAD_INPUT, "tier %lld is out of bounds", (long long)i);
    }
    if (c->max_loras && (c->policy != POLICY_VLLM_V1 || c->num_tiers || (c->max_cpu_loras && c->max_cpu_loras < c->max_loras)))
        fail(m, BAD_INPUT, "this engine does not support these LoRA adapters");
    if (c->num_tiers) {
        if (c->policy != POLICY_VLLM_V1 || !c->prefix_caching || c->contiguous_blocks)
            fail(m, BAD_INPUT, "KV tiers need the policy of vLLM V1 and prefix caching in blocks");
        FRACTION(chunk_bytes, 1e15);
        if (c->chunk_blocks < 1)
            fail(m, BAD_INPUT, "chunk_blocks must be at least 1");
    }
    for (i64 i = 0; c->rates && i < c->num_rates * c->num_classes; i++)
        FRACTION(rates[i], 1.0);
    for (i64 i = 0; c->step_factors && i < STEP_FACTORS; i++)
        FRACTION(step_factors[i], 1e6);
#undef FRACTION
    if (!c->times || !c->windows || (c->num_accept && !c->accept) || (c->num_rates && !c->rates))
        fail(m, BAD_INPUT, "the setup lacks its times, windows or drafts");
    for (i64 i = 0; i < c->num_windows; i++)
        if (c->windows[i] < -1 || c->windows[i] == 0 || c->windows[i] > most)
            fail(m, BAD_INPUT, "window %lld is out of bounds", (long long)i);
    const core_contents *k = c->contents;
    if (k && k->offsets) {
        for (i64 i = 0; i < f->requests.count; i++) {
            if (k->offsets[i] < 0 || k->offsets[i + 1] < k->offsets[i])
                fail(m, BAD_INPUT, "the contents of request %lld are out of order", (long long)i);
            for (i64 j = k->offsets[i]; j < k->offsets[i + 1]; j++)
                if (k->keys[j] < 0 || k->keys[j] >= k->num_keys || k->stops[j] <= 0
                    || (j > k->offsets[i] && k->stops[j] <= k->stops[j - 1]))
                    fail(m, BAD_INPUT, "the contents of request %lld are out of bounds", (long long)i);
        }
    }
}

static void check_instant(fleet *f, i64 at_ps)
{
    if (at_ps < 0 || at_ps >= NEVER / 4)
        fail(&f->memory, BAD_INPUT, "instant %lld ps is out of bounds", (long long)at_ps);
}

/* Requests may come with KV that another engine computed. */
static int loads_kv(const engine *e)
{
    return e->num_pools == 1 && e->policy->ops->add_loaded && e->pools[0]->ops->load;
}

/* Return the engine with this number, or NULL. */
static engine *known_engine(const fleet *f, i64 number)
{
    return number < 0 || number >= f->engines.count ? NULL : f->engines.at[number];
}

i64 fleet_add(fleet *f, const core_engine *setup, i64 now_ps)
{
    ENTER(f, -1);
    check_setup(f, setup);
    check_instant(f, now_ps);
    i64 number = f->engines.count;
    engine *e = engine_new(f, setup, number, now_ps);
    if (setup->role != ROLE_BOTH && !loads_kv(e))
        fail(&f->memory, BAD_INPUT, "an engine of this kind does not support disaggregation");
    PUSH(&f->memory, &f->engines, e);
    PUSH(&f->memory, &f->heap, number);
    PUSH(&f->memory, &f->place, number);
    reorder(f, number);
    return number;
}

static engine *engine_of(fleet *f, i64 number, i64 request)
{
    if (number < 0 || number >= f->engines.count)
        fail(&f->memory, BAD_INPUT, "there is no engine %lld", (long long)number);
    if (request < 0 || request >= f->requests.count)
        fail(&f->memory, BAD_INPUT, "there is no request %lld", (long long)request);
    return f->engines.at[number];
}

/* requests */

i64 fleet_feed(fleet *f, i64 number, i64 count, const i64 *requests, const i64 *instants)
{
    ENTER(f, f->memory.error);
    if (count <= 0)
        return OK;
    engine *e = engine_of(f, number, 0);
    if (!instants)
        fail(&f->memory, BAD_INPUT, "the instants of the arrivals are missing");
    if (!requests && count > f->requests.count)
        fail(&f->memory, BAD_INPUT, "there are only %lld requests", (long long)f->requests.count);
    for (i64 i = 0; i < count; i++)
        if (instants[i] < (i ? instants[i - 1] : 0) || instants[i] >= NEVER / 4
            || (requests && (requests[i] < 0 || requests[i] >= f->requests.count)))
            fail(&f->memory, BAD_INPUT, "arrival %lld is out of order or out of bounds", (long long)i);
    e->fed_requests = requests;
    e->fed_instants = (i64 *)instants; /* written only in a closed loop */
    e->fed_count = count;
    e->fed_next = e->loop_count = 0;
    engine_expect_arrivals(e);
    reorder(f, number);
    return OK;
}

i64 fleet_feed_loop(fleet *f, i64 number, i64 in_flight, i64 first_ps, i64 delay_ps, i64 *instants)
{
    ENTER(f, f->memory.error);
    check_instant(f, first_ps);
    check_instant(f, delay_ps);
    if (in_flight < 1 || !instants)
        fail(&f->memory, BAD_INPUT, "a closed loop needs instants, and at least one request in flight");
    i64 count = MIN(in_flight, f->requests.count);
    for (i64 i = 0; i < count; i++)
        instants[i] = first_ps;
    i64 error = fleet_feed(f, number, count, NULL, instants);
    if (!error && count) {
        f->engines.at[number]->loop_count = f->requests.count;
        f->engines.at[number]->loop_delay_ps = delay_ps;
    }
    return error;
}

i64 fleet_deliver(fleet *f, i64 number, i64 request, i64 at_ps)
{
    ENTER(f, -1);
    engine *e = engine_of(f, number, request);
    check_instant(f, at_ps);
    if (f->columns.arrival_ps[request] != MISSING)
        check_instant(f, f->columns.arrival_ps[request]);
    int taken = engine_receive(e, request, at_ps);
    reorder(f, number);
    return taken;
}

static i64 post(fleet *f, i64 number, mail m, i64 at_ps)
{
    engine *e = engine_of(f, number, m.request);
    check_instant(f, at_ps);
    if (!e->alive)
        return OK;
    PUSH(&f->memory, &e->mail, m);
    engine_wake(e, at_ps);
    reorder(f, number);
    return OK;
}

i64 fleet_cancel(fleet *f, i64 number, i64 request, i64 at_ps)
{
    ENTER(f, f->memory.error);
    if (!engine_of(f, number, request)->policies[0]->ops->abort)
        fail(&f->memory, BAD_INPUT, "an engine of this kind cannot abort requests");
    check_instant(f, at_ps);
    engine_receive_tokenized(f->engines.at[number], at_ps);
    if (front_end_drop(&f->engines.at[number]->front_end, request))
        return post(f, number, (mail){MAIL_CANCEL, request, NULL}, at_ps);
    sequence *r = f->inside ? f->inside[request] : NULL;
    if (!r || r->engine != number)
        return OK;
    r->cancelled = 1;
    return post(f, number, (mail){MAIL_CANCEL, request, r}, at_ps);
}

i64 fleet_release_kept(fleet *f, i64 number, i64 request, i64 at_ps)
{
    ENTER(f, f->memory.error);
    return post(f, number, (mail){MAIL_RELEASE_KEPT, request, NULL}, at_ps);
}

i64 fleet_want_load(fleet *f, i64 number, i64 request, i64 tokens, i64 at_ps)
{
    ENTER(f, -1);
    engine *e = engine_of(f, number, request);
    check_instant(f, at_ps);
    if (!loads_kv(e))
        fail(&f->memory, BAD_INPUT, "an engine of this kind cannot load KV");
    if (tokens < 0 || tokens > f->requests.prompt_tokens[request] + f->requests.output_tokens[request])
        fail(&f->memory, BAD_INPUT, "request %lld cannot load %lld tokens", (long long)request, (long long)tokens);
    sequence *r = engine_new_sequence(e, request);
    if (!r)
        return 0;
    PUSH(&f->memory, &e->loads, ((load){r, tokens, -1})); /* queued until the engine decides */
    post(f, number, (mail){MAIL_WANT_LOAD, request, NULL}, at_ps);
    return 1;
}

i64 fleet_load_begun(fleet *f, i64 number, i64 request, i64 end_ps)
{
    ENTER(f, f->memory.error);
    engine *e = engine_of(f, number, request);
    int goes_on = e->paused && e->key < NEVER;
    e->paused = 0;
    for (i64 i = 0; end_ps <= e->now_ps && i < e->loads.count; i++) {
        sequence *r = e->loads.at[i].sequence;
        if (r->request != request)
            continue;
        REMOVE_AT(&e->loads, i);
        e->policy->ops->add_loaded(e->policy, r);
        break;
    }
    if (goes_on) { /* part of its decision, before any other action */
        engine_proceed(e);
        reorder(f, number);
    }
    return OK;
}

i64 fleet_loaded(fleet *f, i64 number, i64 request, i64 at_ps)
{
    ENTER(f, f->memory.error);
    return post(f, number, (mail){MAIL_LOADED, request, NULL}, at_ps);
}

i64 fleet_unload(fleet *f, i64 number, i64 request, i64 at_ps)
{
    ENTER(f, f->memory.error);
    engine_of(f, number, request);
    if (f->inside && f->inside[request] && f->inside[request]->engine == number)
        f->inside[request]->cancelled = 1;
    return post(f, number, (mail){MAIL_UNLOAD, request, NULL}, at_ps);
}

void fleet_stop(fleet *f, i64 number)
{
    if (number < 0 || number >= f->engines.count)
        return;
    engine *e = f->engines.at[number];
    e->alive = 0;
    e->key = NEVER;
    reorder(f, number);
}

/* time */

i64 fleet_next_key(const fleet *f)
{
    return f->heap.count ? f->engines.at[f->heap.at[0]]->key : NEVER;
}

i64 fleet_advance(fleet *f, i64 limit_key, i64 stop_at, i64 max_steps)
{
    ENTER(f, f->memory.error);
    if (limit_key < 0 || limit_key > NEVER || max_steps < 1)
        fail(&f->memory, BAD_INPUT, "advance to key %lld by %lld steps", (long long)limit_key, (long long)max_steps);
    i64 last_step = f->last_step = f->steps + MIN(max_steps, (i64)1 << 60);
    while (f->heap.count) {
        i64 number = f->heap.at[0];
        engine *e = f->engines.at[number];
        i64 bound = f->bound = MIN(limit_key, second_key(f));
        if (e->key >= limit_key || e->paused)
            break;
        if ((f->kinds_waiting & stop_at) && e->key > 4 * f->events.at[f->events.count - 1].at_ps + SETTLE)
            break;
        do
            engine_proceed(e);
        while (e->key < bound && !(f->kinds_waiting & stop_at) && !e->paused && f->steps < last_step);
        f->bound = 0;
        reorder(f, number);
        if (f->steps >= last_step)
            return OK;
    }
    if (!(f->kinds_waiting & stop_at))
        for (i64 i = 0; i < f->engines.count; i++) {
            engine *e = f->engines.at[i];
            if (e->key >= limit_key && limit_key < NEVER)
                engine_receive_fed(e, (limit_key - ARRIVE - 1) >> 2);
        }
    return OK;
}

/* how they stand */

void fleet_state(const fleet *f, i64 number, core_state *state)
{
    const engine *e = known_engine(f, number);
    *state = (core_state){0};
    if (!e)
        return;
    *state = e->sums;
    state->num_running = policy_num_running(e->policy);
    state->num_waiting = policy_num_waiting(e->policy);
    state->kv_used_blocks = engine_kv_used(e);
    state->unfinished = e->unfinished + e->front_end.coming.count;
    state->now_ps = e->now_ps;
    state->alive = e->alive;
    state->endless = e->endless;
}

i64 fleet_rank_requests(const fleet *f, i64 number, i64 *counts)
{
    const engine *e = known_engine(f, number);
    return e && e->num_pools > 1 ? lockstep_rank_requests(e->policy, counts) : 0;
}

i64 fleet_log(const fleet *f, i64 number, const i64 **log)
{
    const engine *e = known_engine(f, number);
    *log = e ? e->log.at : NULL;
    return e ? e->log.count : 0;
}

const struct gaps *fleet_gaps(const fleet *f)
{
    return f->gaps;
}

const struct work *fleet_work(const fleet *f, i64 number)
{
    const engine *e = known_engine(f, number);
    return e ? e->work : NULL;
}

i64 fleet_tier_use(const fleet *f, i64 number, core_tier_use *uses)
{
    const engine *e = known_engine(f, number);
    if (!e)
        return 0;
    const core_engine *c = &e->setup;
    i64 count = c->num_tiers ? c->num_tiers : c->policy == POLICY_VLLM_V0 && c->v0_swap;
    for (i64 k = 0; k < count; k++)
        uses[k] = (core_tier_use){0};
    for (i64 i = 0; count && i < e->num_pools; i++) {
        core_tier_use part[2] = {{0}};
        const policy *p = e->policies[i];
        if (c->num_tiers)
            offloading_tier_use(p, part);
        else
            vllm_v0_swap_use(p, part);
        for (i64 k = 0; k < count; k++) {
            uses[k].stored += part[k].stored;
            uses[k].evicted += part[k].evicted;
            uses[k].loaded += part[k].loaded;
            uses[k].held += part[k].held;
            uses[k].refused += part[k].refused;
            uses[k].hit_tokens += part[k].hit_tokens;
        }
    }
    return count;
}

void fleet_keep_turn(fleet *f, core_turn *turn)
{
    f->turn = turn;
}

i64 fleet_take_turn(fleet *f)
{
    core_turn *t = f->turn;
    if (!t)
        return -BAD_INPUT;
    if (t->load_engine != MISSING) {
        i64 error = fleet_load_begun(f, t->load_engine, t->load_request, t->load_end_ps);
        t->load_engine = MISSING;
        if (error)
            return -error;
    }
    i64 error = fleet_advance(f, t->limit_key, t->stop_at, t->max_steps);
    t->next_key = fleet_next_key(f);
    if (error)
        return -error;
    f->events_told = f->events.count;
    if (f->events.count)
        memcpy(t->told, f->events.at, (size_t)MIN(f->events.count, TOLD_IN_TURN) * sizeof *t->told);
    return f->events.count;
}

i64 fleet_completed(const fleet *f)
{
    i64 completed = 0;
    for (i64 i = 0; i < f->engines.count; i++)
        completed += f->engines.at[i]->sums.completed;
    return completed;
}
