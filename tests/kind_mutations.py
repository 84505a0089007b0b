"""Wrong rules where rows are known by their sums: stages, drafts and offload; see core_mutations.py."""

from __future__ import annotations

from core_mutations import CoreMutation

STAGES, DRAFTS, OFFLOAD, TIERS, GROUP = "stages.c", "drafts.c", "offload.c", "tiers.c", "decode_group.c"
SHORT = {
    "a member's blocks are taken one token late",
    "an ended member's row is delivered",
    "full chunks are seen a step late",
}
OPEN = {  # by none of the first 60 deployments of each kind
    "a step's group takes the rows of another",
    "the context's end is one token later for members",
    "members end in the order of drawing",
    "quiet verifications take blocks that are not there",
}


def wrong(name: str, file: str, old: str, new: str) -> CoreMutation:
    return CoreMutation(name=name, file=file, old=old, new=new, short=name in SHORT, open=name in OPEN)


KIND_MUTATIONS = (
    wrong(
        "a group is delivered after any other's last step",
        STAGES,
        "            v->last_end_ps = g->at[i].last_end_ps;\n",
        "",
    ),
    wrong(
        "members in flight know their next token",
        STAGES,
        "r->known = g->pending ? r->computed : r->computed + 1;",
        "r->known = r->computed + 1;",
    ),
    wrong(
        "a step's group takes the rows of another",
        STAGES,
        "if (g->last_end_ps != MISSING && g->last_end_ps != r->last_token)",
        "if (0)",
    ),
    wrong("stages are spelt out in no order", STAGES, "    group_sort(&p->running);\n", ""),
    wrong(
        "a member verifies once too often",
        DRAFTS,
        "m->due = MIN(m->sequence->max_known - 1, most_known(v) + 1);",
        "m->due = MIN(m->sequence->max_known, most_known(v) + 1);",
    ),
    wrong(
        "the context's end is one token later for members",
        DRAFTS,
        "v->base.limits.max_model_len - 2 * v->drafted->drafts - 2;",
        "v->base.limits.max_model_len - 2 * v->drafted->drafts - 1;",
    ),
    wrong(
        "a member's blocks are taken one token late",
        DRAFTS,
        "m->due = MIN(m->due, m->room - 2 * g->drafts - g->lookahead);",
        "m->due = MIN(m->due, m->room - 2 * g->drafts - g->lookahead + 1);",
    ),
    wrong(
        "contexts of one token less",
        DRAFTS,
        "s->sums.decode_context_tokens += g->sum_known + size * (2 * g->drafts + 1);",
        "s->sums.decode_context_tokens += g->sum_known + size * (2 * g->drafts);",
    ),
    wrong("every verification draws as the first", DRAFTS, "        at[i].draw += VERIFICATION_DRAW;\n", ""),
    wrong("who leaves has verified nothing", DRAFTS, "    r->accepted += g->clock - m.joined;\n", ""),
    wrong(
        "an ended member's row is delivered",
        DRAFTS,
        "    v->pending->group--;\n    r->rows_in",
        "    r->rows_in",
    ),
    wrong("members end in the order of drawing", DRAFTS, "    group_sort(&s->finished);\n", ""),
    wrong(
        "rates are a hundredth lower",
        DRAFTS,
        "(uint64_t)ceil(rate * (double)ALL_DRAWS)",
        "(uint64_t)ceil(rate * (double)ALL_DRAWS * 0.99)",
    ),
    wrong(
        "quiet verifications pass over an arrival",
        DRAFTS,
        "s->end < arrival_ps &&",
        "s->end < arrival_ps + 20000000000 &&",
    ),
    wrong(
        "quiet verifications take blocks that are not there",
        DRAFTS,
        "    if (needed > v->base.pool->free_blocks)\n        return 0;\n    for",
        "    if (needed > v->base.pool->free_blocks + 2)\n        return 0;\n    for",
    ),
    wrong(
        "full chunks are seen a step late",
        GROUP,
        "return r->offset + g->clock + !g->asynchronous;",
        "return r->offset + g->clock - 1 + !g->asynchronous;",
    ),
    wrong("who lags is forgotten", OFFLOAD, "        if (!lagged)\n", "        if (0)\n"),
    wrong("full chunks come behind the rows", OFFLOAD, "g->full.at[next].ticket < w->sequence->ticket", "0"),
    wrong("chunks stand together without one", TIERS, "    *together = MIN(*together, c->place - 1);\n", ""),
    wrong(
        "what is not here stands together",
        TIERS,
        "    *together = (uint32_t)(next - first);",
        "    *together = (uint32_t)(stop - first);",
    ),
    wrong(
        "chunks in transfer are counted as room",
        TIERS,
        "found += store->chunks.at[last].busy_ps <= now_ps;",
        "found += 1;",
    ),
    wrong(
        "a slab forgets its request",
        TIERS,
        "*remembered <= store->slabs.count && store->slabs.at[*remembered - 1].name == name)",
        "*remembered <= store->slabs.count)",
    ),
)
