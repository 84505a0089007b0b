"""Tables of rounds and of ways to draft."""

from __future__ import annotations

import capacity
from capacity.report.tables import render as render_answer


def test_a_tree_is_called_one_and_a_chain_by_its_length() -> None:
    asked = {"gpu": "h100", "batches": (1,)}
    tree = capacity.speculate("llama-3.1-8b", method="eagle2-tree", **asked)
    assert tree.verified_tokens > tree.draft_tokens
    shown = " ".join(render_answer(tree, "table").split())
    assert f"a tree of {tree.verified_tokens} drafts, depth {tree.draft_tokens}" in shown
    chain = capacity.speculate("llama-3.1-8b", method="eagle2", **asked)
    assert f"{chain.draft_tokens} draft tokens" in " ".join(render_answer(chain, "table").split())
    assert " simulated " not in shown  # which was not asked for
