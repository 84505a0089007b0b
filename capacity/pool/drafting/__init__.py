"""Speculative decoding: what drafting and verifying cost through the step model, and at which batch it stops paying.

In: a target pool and a way to draft. Out: the cost of a round (`rounds`), its memory, and steps that pay for drafts.
`textbook` has the published formulas, each with where it is wrong; `speculators` the ways to draft, as data; `tree`
what a tree of drafts accepts; `drafters` what drafting itself costs. Start reading at `rounds`.
"""

from capacity.pool.drafting.drafters import layer_model
from capacity.pool.drafting.rounds import DraftedSteps, DraftMemory, Round, Speculation, memory_with_draft
from capacity.pool.drafting.speculators import (
    Speculator,
    check_drafts_said,
    drafting_in,
    find_speculator,
    speculator_of,
    speculators,
)
from capacity.pool.drafting.textbook import (
    TextbookEntry,
    acceptance_of_length,
    effective_exponent,
    expected_tokens,
    expected_tokens_by_position,
    textbook_speedup,
    textbook_table,
)
