"""Wrong rules in the compiled engines: one change of their sources each, as data for `core_mutant`."""
# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CoreMutation:
    """`short`: it is tried in every run of the tests, the others in the long form; `open`: nothing has shown it yet."""

    name: str
    file: str
    old: str
    new: str
    short: bool = False
    open: bool = False

    def applied(self, source: str) -> str:
        """The source with it: its text stands there once."""
        assert source.count(self.old) == 1, f"{self.name}: {source.count(self.old)} times in {self.file}"
        return source.replace(self.old, self.new)


SHORT = {
    "a group's last step is one later",
    "who joins a group is not visited",
    "a hit of all but two tokens",
    "a cancelled request ends like others",
    "what leaves a window is freed head first",
}
OPEN = {  # by none of the first 250 deployments, nor by the schedules
    "what may round to another picosecond is sure",  # test_step_data.py shows it
    "who comes as a step ends stands before whom its end brings",
    "the shallower half is evicted first",  # test_pools.py shows it
    "TensorRT-LLM starts prompts in a step that paused",
    "slots of one more",
    "queues are published late",
    "a waiting request counts as one",
    "ranks hold prompts a step longer",
    "loads of equal ends in reverse",
    "prompts that load are promised nothing",
}


def wrong(name: str, file: str, old: str, new: str) -> CoreMutation:
    return CoreMutation(name=name, file=file, old=old, new=new, short=name in SHORT, open=name in OPEN)


ENGINE, V1, GROUP, LEDGER = "engine.c", "vllm_v1.c", "decode_group.c", "ledger.c"

CORE_MUTATIONS = (
    # the engine loop
    wrong(
        "a quiet step ends a request",
        "quiet.c",
        "MIN(group_steps_to_end(g), ",
        "MIN(group_steps_to_end(g) + 1, ",
    ),
    wrong(
        "quiet steps pass over an arrival",
        "quiet.c",
        "q.limit_ps = MIN(MIN(q.limit_ps,",
        "q.limit_ps = MIN(MIN(q.limit_ps + 20000000000,",
    ),
    wrong(
        "quiet steps take blocks that are not there",
        "quiet.c",
        "contexts <= most && phases[place] <= free_blocks",
        "contexts <= most && phases[place] <= free_blocks + 2",
    ),
    wrong(
        "quiet steps follow a line beyond its end",
        "quiet.c",
        "contexts <= most && phases[place]",
        "contexts <= most + 3 * size && phases[place]",
    ),
    wrong(
        "synchronous quiet steps pass over an arrival",
        "quiet.c",
        "(!ahead && now_ps + duration_ps >= limit_ps)",
        "0",
    ),
    wrong(
        "quiet steps of windows take no blocks",
        "quiet.c",
        "        group_allocate(g, &no_chunks, in_flight);",
        "        ;",
    ),
    wrong(
        "a prompt of max_model_len is let in",
        ENGINE,
        "prompt >= e->setup.max_model_len &&",
        "prompt > e->setup.max_model_len &&",
    ),
    wrong(
        "who comes as a step ends stands before whom its end brings",
        ENGINE,
        "engine_receive_fed(e, now_ps - 1);",
        "engine_receive_fed(e, now_ps);",
    ),
    wrong(
        "a pipeline drops what does not divide",
        ENGINE,
        "begin_ps + share + (stage == 0 ? rest : 0)",
        "begin_ps + share",
    ),
    wrong(
        "steps without rows take no place in the queue",
        ENGINE,
        "->slots += p->staggers ? 1 : MIN(p->empty_steps, free);",
        "->slots += p->staggers;",
    ),
    wrong(
        "a step does not wait for sampled tokens",
        ENGINE,
        "at_ps = sampled_ps(e, s, now_ps);",
        "at_ps = now_ps;",
    ),
    wrong(
        "a decode waits for one call less than there are stages",
        "vllm_v1.c",
        "if (p->staggers && v->calls < r->next_call)",
        "if (p->staggers && v->calls + 1 < r->next_call)",
    ),
    wrong(
        "a step without rows at the head of the queue allows no other",
        ENGINE,
        "passed = waits_early ? e->passed : 0, free, idle_calls = 0;",
        "passed = 0, free, idle_calls = 0;",
    ),
    wrong(
        "every stage begins at once",
        ENGINE,
        "i64 begin_ps = MAX(at_ps, e->stage_free_ps[stage]);",
        "i64 begin_ps = at_ps;",
    ),
    wrong(
        "results wait for the launch of a step that only decodes",
        ENGINE,
        "if (prefill_tokens)",
        "if (prefill_tokens || 1)",
    ),
    wrong(
        "noise is drawn by the next step",
        ENGINE,
        "(uint64_t)(e->sums.steps - 1))",
        "(uint64_t)e->sums.steps)",
    ),
    wrong(
        "the emptiest rank is the step's kind",
        ENGINE,
        "if (tokens > most) {",
        "if (tokens < most || most < 0) {",
    ),
    wrong(
        "time without rows is not waited for",
        ENGINE,
        "duration += step_duration(e, s);",
        "duration = step_duration(e, s);",
    ),
    wrong(
        "a cancelled request ends like others",
        ENGINE,
        "    leave(e, r);\n    if (r->cancelled)\n        return;\n",
        "    leave(e, r);\n",
    ),
    wrong(
        "KV is kept without its last token",
        ENGINE,
        "int held = p->ops->hold_computed(p, &kept.table, r->prompt_tokens,",
        "int held = p->ops->hold_computed(p, &kept.table, MAX(r->prompt_tokens - p->block_size, 1),",
    ),
    wrong(
        "the last load stands before the first",
        ENGINE,
        "    i64 place = 0;\n    while (place < e->loads.count && e->loads.at[place].begun == 1)\n        place++;\n    if (place == e->loads.count || e->loads.at[place].begun < 0)",
        "    i64 place = e->loads.count - 1;\n    while (place >= 0 && e->loads.at[place].begun == 1)\n        place--;\n    if (place < 0 || e->loads.at[place].begun < 0)",
    ),
    wrong("loads are promised nothing", ENGINE, "return promised + q->ops", "return 0 * promised + q->ops"),
    # the ledger, gaps, kinds of steps
    wrong(
        "a preemption before the first token stalls",
        LEDGER,
        "        if (r->first_token != MISSING)\n            r->preempted = now_ps;",
        "        r->preempted = now_ps;",
    ),
    wrong(
        "what a tier brought hits on the GPU",
        LEDGER,
        "w->cached - r->loaded",
        "w->cached",
    ),
    wrong(
        "KV use without its peak",
        LEDGER,
        "if (used > e->sums.kv_peak_blocks)",
        "if (used >= e->sums.kv_peak_blocks + 2)",
    ),
    wrong("the last token waits for its interval", LEDGER, "&& r->known < r->max_known)", ")"),
    wrong(
        "an entry lies in its last gap's batch",
        "gaps.h",
        "i64 batch = (g->count - count) >> g->size_bits;",
        "i64 batch = (g->count - 1) >> g->size_bits;",
    ),
    wrong(
        "batches hold one more",
        "gaps.c",
        "while (g->count > (i64)MOST_BATCHES << g->size_bits)",
        "while (g->count > ((i64)MOST_BATCHES << g->size_bits) + 1)",
    ),
    wrong(
        "merged batches keep their gaps",
        "gaps.c",
        "memset(octave + half, 0, (size_t)half * sizeof *octave);",
        "memset(octave + half, 0, (size_t)(half - OCTAVE_BINS) * sizeof *octave);",
    ),
    wrong(
        "gaps that differ in their leading digit are equal",
        "gaps.c",
        "shift < 63 && used >> shift",
        "shift < 24 && used >> shift",
    ),
    wrong(
        "what may round to another picosecond is sure",
        "norms.h",
        "< 0.5 - fabs(number) * QUICK_ERROR",
        "< 0.5 + 0x1p-3 + fabs(number) * 0x1p-30",
    ),
    wrong(
        "kinds of steps without drafts",
        "work.c",
        "rounded(s->decode_sequences + s->draft_tokens, SIZE_BITS)",
        "rounded(s->decode_sequences, SIZE_BITS)",
    ),
    wrong(
        "contexts of a kind rounded finer",
        "work.c",
        "rounded(s->decode_context_tokens, CONTEXT_BITS)",
        "rounded(s->decode_context_tokens, CONTEXT_BITS + 1)",
    ),
    # vLLM V1
    wrong(
        "equal priorities: who comes later is served first",
        V1,
        "return a->arrival < b->arrival;",
        "return a->arrival > b->arrival;",
    ),
    wrong(
        "equal priorities: the earliest is preempted",
        V1,
        "r->priority == last->priority && r->arrival > last->arrival",
        "r->priority == last->priority && r->arrival < last->arrival",
    ),
    wrong(
        "the first that runs is preempted",
        V1,
        "return running->at[running->count - 1];",
        "return running->at[0];",
    ),
    wrong("a preempted row's tokens are lost", V1, "            refund = s->rows.at[i].tokens;\n", ""),
    wrong(
        "a step that preempts admits",
        V1,
        "    if (!s->preempted.count) {\n        v->admit_waiting",
        "    if (1) {\n        v->admit_waiting",
    ),
    wrong("preempted in order of preemption", V1, "if (s->preempted.count > 1)", "if (0)"),
    wrong(
        "the watermark for a request alone",
        V1,
        "if (l->watermark_blocks && p->running.count)",
        "if (l->watermark_blocks)",
    ),
    wrong("no whole prompt is reserved", V1, "if (l->reserve_full_isl && end != r->known) {", "if (0) {"),
    wrong(
        "a hit of all but two tokens",
        V1,
        "const hit *h = p->pool->ops->lookup(p->pool, &r->table, r->known - 1);",
        "const hit *h = p->pool->ops->lookup(p->pool, &r->table, r->known - 2);",
    ),
    wrong(
        "the threshold holds for a request alone",
        V1,
        "limit && l->rules.lone_prefill_exempt && policy_unfinished(&v->base) <= 1",
        "0",
    ),
    wrong(
        "the cadence holds whoever is kept waiting",
        V1,
        "    if (v->admission_bound)\n        return 0;\n",
        "",
    ),
    wrong(
        "a step too many before the end",
        V1,
        "if (p->asynchronous && r->known + r->in_flight_yields >= r->max_known)",
        "if (0)",
    ),
    wrong(
        "max_model_len is reached by one more",
        V1,
        "l->max_model_len - r->computed - 1);",
        "l->max_model_len - r->computed);",
    ),
    wrong("rejected drafts stay computed", V1, "r->computed -= w->drafts - accepted;", "r->computed -= 0;"),
    wrong(
        "verification rows beside prefills",
        V1,
        "return rules->pads_drafts && !v->prefill_scheduled && (",
        "return rules->pads_drafts && (",
    ),
    # vLLM V1 by sums
    wrong(
        "a group takes the budget twice",
        V1,
        "i64 budget = p->limits.max_num_batched_tokens - g->size;",
        "i64 budget = p->limits.max_num_batched_tokens;",
    ),
    wrong(
        "a group takes blocks that are not free",
        V1,
        "if (new_blocks > p->pool->free_blocks)",
        "if (new_blocks > p->pool->free_blocks + 1)",
    ),
    wrong(
        "a group's last step is one later",
        GROUP,
        "end_at(g, r, r->max_known - 2 - offset);",
        "end_at(g, r, r->max_known - 1 - offset);",
    ),
    wrong("a group's contexts do not grow", GROUP, "    g->contexts += g->size;\n", ""),
    wrong(
        "a group's window is saturated one later",
        GROUP,
        "i64 full_at = g->window - 1 - offset;",
        "i64 full_at = g->window - offset;",
    ),
    wrong(
        "a group's blocks are taken one step late",
        GROUP,
        "add_place(g, 0);",
        "add_place(g, 1);",
    ),
    wrong(
        "who joins a group is not visited",
        GROUP,
        "if (g->clock - entry.at > 1)",
        "if (g->clock - entry.at > 0)",
    ),
    wrong(
        "a group is spelt out without its last token",
        V1,
        "r->known = pending ? r->computed : r->computed + 1;",
        "r->known = r->computed;",
    ),
    wrong(
        "members of a group end by number",
        GROUP,
        "for (; k && list->at[k - 1]->ticket > r->ticket; k--)",
        "for (; k && list->at[k - 1]->request > r->request; k--)",
    ),
    # KV
    wrong(
        "kept images have no space",
        "encoder.c",
        "i64 room = e->free + e->kept_tokens;",
        "i64 room = e->free;",
    ),
    wrong("the last kept image is evicted", "encoder.c", "evict(e, 0);", "evict(e, e->kept.count - 1);"),
    wrong(
        "images of a preempted request stay",
        "encoder.c",
        "for (i64 i = e->now.count - 1; i >= 0; i--) {",
        "for (i64 i = -1; i >= 0; i--) {",
    ),
    wrong("a clip counts as an image", "encoder.c", "return r->audio_tokens && image", "return 0 && image"),
    wrong(
        "computed images stay in use",
        "encoder.c",
        "end_of(r, image) <= r->computed; image++)",
        "end_of(r, image) < 0; image++)",
    ),
    wrong("evictable hits are free", "run_pool.c", "if (found.run->references == 0)", "if (0)"),
    wrong(
        "blocks without content are lost",
        "run_pool.c",
        "free_uncached(s, t->held - t->cached, s->rules",
        "free_uncached(s, MAX(t->held - t->cached - 1, 0), s->rules",
    ),
    wrong(
        "the shallower half is evicted first",  # test_pools.py shows it
        "runs.c",
        "        right->before = r->before;\n        right->before->after = right;\n        right->after = r;\n        r->before = right;",
        "        right->after = r->after;\n        right->after->before = right;\n        right->before = r;\n        r->after = right;",
    ),
    wrong(
        "who ends a round later ends now",
        GROUP,
        "if (r->last_clock > clock) {",
        "if (r->last_clock > clock + END_CLOCKS) {",
    ),
    wrong(
        "a group that is spelt out runs in no order",
        V1,
        "    group_sort(running);\n",
        "",
    ),
    wrong(
        "evicted blocks of a stretch come back",
        "runs.c",
        "of.stop - of.gone % size",
        "of.stop - 0 * of.gone",
    ),
    wrong(
        "a stretch of several groups is one group's",
        "runs.c",
        "&s->owners.at[number]->spans[of.group + i]",
        "&s->owners.at[number]->spans[of.group]",
    ),
    wrong(
        "stretches are nobody's",
        "runs.h",
        "if (s->owner_of && s->owner_of[request] & HAS_STRETCHES)",
        "if (0)",
    ),
    wrong(
        "parts are released head first",
        "runs.c",
        "drop_run(s, s->split.at[--s->split.count]);",
        "drop_run(s, s->split.at[0]), REMOVE_AT(&s->split, 0);",
    ),
    wrong(
        "a window one token narrower",
        "block_pool.c",
        "i64 passed = processed_tokens - p->windows[g] + 1;",
        "i64 passed = processed_tokens - p->windows[g] + 2;",
    ),
    wrong(
        "what leaves a window is freed head first",
        "runs.c",
        "for (i64 i = gone - 1; i >= 0; i--)",
        "for (i64 i = 0; i < gone; i++)",
    ),
    wrong(
        "a window's prefill needs all its blocks",
        "block_pool.c",
        "i64 most = capped && cap >= 0 ? MIN(required, cap) : required;",
        "i64 most = required;",
    ),
    # the other policies
    wrong(
        "who gives up goes to the back",
        "batching.c",
        "queue_prepend(base->memory, &base->waiting, r);",
        "queue_append(base->memory, &base->waiting, r);",
    ),
    wrong(
        "SGLang retracts the longest outputs",
        "sglang.c",
        "return a->outputs > b->outputs ? -1 : 1;",
        "return a->outputs < b->outputs ? -1 : 1;",
    ),
    wrong(
        "SGLang looks no steps ahead after a retraction",
        "sglang.c",
        "#define RETRACT_DECODE_STEPS 20 ",
        "#define RETRACT_DECODE_STEPS 0 ",
    ),
    wrong(
        "SGLang chunks part of a page",
        "sglang.c",
        "tokens = limit / page * page;",
        "tokens = limit + 0 * page;",
    ),
    wrong(
        "TensorRT-LLM starts prompts in a step that paused",
        "tensorrt_llm.c",
        "    if (!s->preempted.count)\n        contexts",
        "    contexts",
    ),
    wrong(
        "TensorRT-LLM pauses the first",
        "tensorrt_llm.c",
        "base->running.at[base->running.count - 1];",
        "base->running.at[0];",
    ),
    wrong(
        "TGI prefills beside as many as wait",
        "tgi.c",
        "return base->waiting.count >= MAX(least, 1)",
        "return base->waiting.count >= MAX(least, 2)",
    ),
    wrong(
        "TGI counts tokens without padding",
        "tgi.c",
        "budget -= chunking ? tokens : padded;",
        "budget -= tokens;",
    ),
    wrong(
        "slots of one more",
        "slots.c",
        "unfinished >= base->limits.max_num_seqs + max_waiting",
        "unfinished > base->limits.max_num_seqs + max_waiting",
    ),
    wrong(
        "a batch is padded to its own prompts",
        "static.c",
        "i64 longer = MAX(prompt_tokens, r->prompt_tokens);",
        "i64 longer = r->prompt_tokens;",
    ),
    wrong(
        "V0 swaps in while it swaps out",
        "vllm_v0.c",
        "if (s->preempted.count == 0 && v->swapped.count == swapped_before)",
        "if (s->preempted.count == 0)",
    ),
    wrong(
        "V0 swaps for nothing",
        "vllm_v0.c",
        "            s->held_ps += held * v->swap_block_ps;\n            queue_append",
        "            queue_append",
    ),
    wrong("V0 drops no prompt", "vllm_v0.c", "if (too_long || p->pool", "if (p->pool"),
    wrong(
        "queues are published late",
        "lockstep.c",
        "r->arrival - l->published_ps >= PUBLISHED_EVERY_PS",
        "r->arrival - l->published_ps > 2 * PUBLISHED_EVERY_PS",
    ),
    wrong(
        "a waiting request counts as one",
        "lockstep.c",
        "#define WAITING_WEIGHT 4 ",
        "#define WAITING_WEIGHT 1 ",
    ),
    wrong(
        "ranks hold prompts a step longer",
        "lockstep.c",
        "l->prompts_waited >= l->prompt_wait_steps",
        "l->prompts_waited > l->prompt_wait_steps",
    ),
    wrong(
        "loads of equal ends in reverse",
        "offload.c",
        "o->loading.at[i].end_ps < o->loading.at[first].end_ps",
        "o->loading.at[i].end_ps <= o->loading.at[first].end_ps",
    ),
    wrong(
        "prompts that load are promised nothing",
        "offload.c",
        "i64 free_blocks = q->free_blocks - promised_blocks(o);",
        "i64 free_blocks = q->free_blocks;",
    ),
    wrong("a chunk on its way is loaded twice", "offload.c", "return ELSEWHERE;", "continue;"),
    # the fleet
    wrong(
        "engines of one instant: the last comes first",
        "fleet.c",
        "return x < y || (x == y && a < b);",
        "return x < y || (x == y && a > b);",
    ),
    wrong(
        "a load's decision goes on last",
        "fleet.c",
        "int goes_on = e->paused && e->key < NEVER;",
        "int goes_on = 0;",
    ),
)
