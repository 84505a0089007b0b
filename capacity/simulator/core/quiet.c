/* Successive steps of a regular vLLM V1 engine that only generate, while no request arrives, ends or waits.
 *
 * They are the same as in engine.c (decide, launch, settle), in the same order and with the same sums. The checks for
 * impossible cases at every step are omitted: rows, arrivals, mail, ends and preemptions. An asynchronous engine
 * decides a step while the previous one is in flight, a synchronous one when that has ended.
 */
#include "engine.h"
#include "gaps.h"
#include "vllm_v1.h"

/* State that a series of steps changes, and its limits. */
typedef struct {
    i64 now_ps, last_end_ps; /* instant of the next decision, and end of the last accounted step */
    i64 end_ps;              /* of the step in flight, if the engine is asynchronous */
    i64 limit_ps;            /* the engine loop handles steps that end at this instant or later */
    i64 left;                /* steps until the first request or the call ends */
} quiet;

/* Whether this engine, which is about to decide, has only a decode group. */
static int is_quiet(const engine *e, const vllm_v1 *v)
{
    const decode_group *g = &v->group;
    if (!g->active || !g->size || g->prefilling.count || v1_waiting_count(v) || e->loads.count)
        return 0;
    const step *s = v->pending;
    if (!v->base.asynchronous)
        return !g->visits;
    REQUIRE(e->memory, e->num_in_flight == 1 && e->in_flight[0] == s && s->grouped);
    return !s->rows.count && !s->ending.count && !s->preempted.count && !s->held_ps;
}

/* Allocate the blocks of the group's next step; 0: too few are free. */
static int take_blocks(decode_group *g, const step *in_flight)
{
    static const step no_chunks;
    group_find_due(g);
    i64 needed = group_blocks_needed(g);
    if (needed > g->pool->free_blocks)
        return 0;
    if (g->visits)
        group_allocate(g, &no_chunks, in_flight);
    else
        g->pool->free_blocks -= needed;
    return 1;
}

/* Launch the group's next step in place of the one in flight, which has been recorded. */
static void launch_group(engine *e, decode_group *g, step *s, i64 now_ps)
{
    sequences nobody = {0}; /* ends with it */
    s->group = g->size;
    s->sums = NO_ROWS;
    s->sums.decode_sequences = g->size;
    s->sums.decode_context_tokens = g->contexts;
    s->sums.decode_window_context_tokens = group_window_contexts(g);
    group_step(g, &nobody);
    e->sums.steps++;
    e->sums.rows += s->group;
    time_step(e, s, now_ps);
}

/* The step in flight has ended, and the next one is in flight until `end_ps`. */
static inline void pass_to(engine *e, quiet *q, i64 size, i64 end_ps)
{
    ledger_use_kv(e, q->end_ps - q->now_ps);
    gaps_add(e->fleet->gaps, q->end_ps - q->last_end_ps, size);
    q->last_end_ps = q->now_ps = q->end_ps;
    q->end_ps = end_ps;
    q->left--;
}

/* Steps on one line of step times: only sums change. */
static void follow_line(engine *e, decode_group *g, step *s, quiet *q)
{
    decode_line line;
    shape at = NO_ROWS;
    at.decode_sequences = g->size;
    at.decode_context_tokens = at.decode_window_context_tokens = g->contexts;
    if (g->window >= 0 || g->visits || e->setup.step_factors || !step_line(e->setup.times, &at, &line))
        return;
    gaps *gaps = e->fleet->gaps;
    const int ahead = s != NULL; /* another step is in flight when it launches this one */
    const i64 *phases = g->phases;
    const i64 size = g->size, block_size = g->block_size, first_ps = q->now_ps, first = q->left;
    const i64 limit_ps = q->limit_ps, most = MIN(line.max_context_tokens, line.max_window_context_tokens);
    const i64 slope_ps = line.context_ps + line.window_context_ps;
    i64 contexts = g->contexts, place = g->place, free_blocks = g->pool->free_blocks, duration_ps = 0;
    i64 now_ps = q->now_ps, last_end_ps = q->last_end_ps, end_ps = q->end_ps, left = q->left;
    i64 busy_ps = 0;
    u128 kv_block_ps = 0;
    while (left > 0 && end_ps < limit_ps && contexts <= most && phases[place] <= free_blocks) {
        duration_ps = line.base_ps + slope_ps * contexts;
        if (duration_ps < 0 || (!ahead && now_ps + duration_ps >= limit_ps))
            break;
        if (e->work) {
            at.decode_context_tokens = at.decode_window_context_tokens = contexts;
            work_step(e->work, &at, duration_ps, 0);
        }
        free_blocks -= phases[place];
        place = place + 1 == block_size ? 0 : place + 1;
        contexts += size;
        busy_ps += duration_ps;
        if (!ahead)
            end_ps = now_ps + duration_ps;
        kv_block_ps += (u128)(uint64_t)(e->num_blocks - free_blocks) * (uint64_t)(end_ps - now_ps);
        gaps_add(gaps, end_ps - last_end_ps, size);
        last_end_ps = now_ps = end_ps;
        if (ahead)
            end_ps += duration_ps;
        left--;
    }
    i64 taken = first - left;
    if (!taken)
        return;
    *q = (quiet){.now_ps = now_ps, .last_end_ps = last_end_ps, .end_ps = end_ps, .limit_ps = limit_ps,
                 .left = left};
    g->clock += taken;
    g->place = place;
    g->contexts = contexts;
    g->pool->free_blocks = free_blocks;
    core_state *sums = &e->sums;
    sums->steps += taken;
    sums->rows += taken * size;
    sums->busy_ps += busy_ps;
    sums->kv_block_ps += kv_block_ps;
    sums->kv_busy_ps += (u128)(uint64_t)(now_ps - first_ps);
    sums->kv_peak_blocks = MAX(sums->kv_peak_blocks, e->num_blocks - free_blocks); /* blocks are only taken */
    e->stage_free_ps[0] = end_ps;
    if (!ahead)
        return;
    at.decode_context_tokens = at.decode_window_context_tokens = contexts - size;
    s->sums = at;
    s->group = size;
    s->start = now_ps;
    s->end = end_ps;
    engine_check_end(e, s);
}

void take_quiet_steps(engine *e)
{
    vllm_v1 *v = (vllm_v1 *)e->regular_v1;
    if (!v || !is_quiet(e, v))
        return;
    fleet *f = e->fleet;
    decode_group *g = &v->group;
    step *s = v->pending;
    REQUIRE(e->memory, !s || s->group == g->size);
    quiet q = {.now_ps = e->now_ps, .last_end_ps = v->last_end_ps, .end_ps = s ? s->end : e->now_ps};
    q.limit_ps = MIN(front_end_due_ps(&e->front_end), e->fed_next < e->fed_count ? e->fed_instants[e->fed_next] : NEVER);
    q.limit_ps = MIN(MIN(q.limit_ps, (f->bound - DECIDE + 3) >> 2), NEVER / 4);
    i64 most = q.left = MIN(group_steps_to_end(g), f->last_step - f->steps);
    while (q.left > 0 && q.end_ps < q.limit_ps) {
        i64 left = q.left;
        follow_line(e, g, s, &q);
        if (q.left < left)
            continue;
        if (!s || !take_blocks(g, s))
            break;
        launch_group(e, g, s, q.now_ps);
        pass_to(e, &q, s->group, s->end);
    }
    f->steps += most - q.left;
    v->last_end_ps = e->now_ps = q.now_ps;
}
