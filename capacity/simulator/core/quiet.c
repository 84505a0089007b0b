/* Steps of a regular vLLM V1 engine that only generate, one after the other, while nobody comes, ends or waits.
 *
 * Asynchronous engines alone: the end of the step before is known as the next one is decided.
 * Each is taken as engine.c takes it (decide, launch, settle), in the same order and with the same sums; what is left
 * out is asking, at every step, for what cannot be there: rows, arrivals, mail, who ends, who is preempted.
 */
#include "engine.h"
#include "vllm_v1.h"

/* Whether this engine, which is about to decide, has a decode group and nothing else. */
static int is_quiet(const engine *e, const vllm_v1 *v)
{
    const decode_group *g = &v->group;
    if (!g->active || !g->size || g->visits || g->prefilling.count || v1_waiting_count(v) || e->loads.count)
        return 0;
    if (g->size > v->base.limits.max_num_batched_tokens || e->num_pools != 1)
        return 0;
    const step *s = v->pending;
    return v->base.asynchronous && s && e->num_in_flight == 1 && e->in_flight[0] == s && s->grouped && s->group
           && !s->rows.count && !s->ending.count && !s->preempted.count && !s->held_ps;
}

/* The group's next step is launched at `now_ps`, in place of the one before, which has been noted. */
static void launch_group(engine *e, decode_group *g, step *s, i64 now_ps)
{
    sequences nobody = {0}; /* ends with it */
    s->group = g->size;
    s->sums = (shape){.decode_sequences = g->size, .decode_context_tokens = g->contexts,
                      .decode_window_context_tokens = group_window_contexts(g)};
    g->pool->free_blocks -= g->phases[g->place];
    group_step(g, &nobody);
    e->sums.steps++;
    e->sums.rows += s->group;
    time_step(e, s, now_ps);
}

int take_quiet_steps(engine *e)
{
    vllm_v1 *v = (vllm_v1 *)e->regular_v1;
    if (!v || !is_quiet(e, v))
        return 0;
    fleet *f = e->fleet;
    decode_group *g = &v->group;
    step *pending = v->pending;
    i64 arrival_ps = MIN(front_end_due_ps(&e->front_end),
                         e->fed_next < e->fed_count ? e->fed_instants[e->fed_next] : NEVER);
    i64 now_ps = e->now_ps, taken = 0;
    while (g->ends.at[0].at > g->clock && g->phases[g->place] <= g->pool->free_blocks && f->steps < f->last_step) {
        i64 end_ps = pending->end, size = pending->group; /* of the step before, which ends while the next one waits */
        if (end_ps >= arrival_ps || 4 * end_ps + DECIDE >= f->bound)
            break;
        launch_group(e, g, pending, now_ps);
        ledger_use_kv(e, end_ps - now_ps);
        gaps_add(f->gaps, end_ps - v->last_end_ps, size);
        v->last_end_ps = now_ps = end_ps;
        f->steps++;
        taken++;
    }
    if (taken) {
        e->now_ps = now_ps;
        e->in_vain = e->without_rows = 0;
    }
    return taken > 0;
}
