"""The table of engines."""

from __future__ import annotations

import capacity
from capacity.report.techniques import render_answer


def test_engines_that_are_not_simulated_are_marked() -> None:
    answer = capacity.engine_table(claims=True)
    shown = render_answer(answer, "table")
    assert {row.simulated for row in answer.rows} == {True, False}
    for row in answer.rows:
        assert (f"{row.policy} *" in shown) or row.simulated
        assert row.engine in shown
    assert "Published single-stream claims" in shown
    assert "Published" not in render_answer(capacity.engine_table(), "table")
