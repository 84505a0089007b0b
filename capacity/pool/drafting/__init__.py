"""Speculative decoding: the cost of drafting and verification, and the batch size from which it gives no speed-up.

Input: a target pool and a drafting method. Output: the cost of a drafting round (`rounds`), the memory of the draft,
and steps that include drafting. `textbook` has the published formulas and their limits; `speculators` the drafting
methods, as data; `tree` the acceptance of draft trees; `drafters` the cost of drafting. Start with `rounds`.
"""

from capacity.pool.drafting.drafters import layer_model
from capacity.pool.drafting.rounds import DraftedSteps, DraftMemory, Round, Speculation, memory_with_draft
from capacity.pool.drafting.speculators import (
    Speculator,
    check_draft_settings,
    configure_speculator,
    find_speculator,
    pool_speculator,
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
