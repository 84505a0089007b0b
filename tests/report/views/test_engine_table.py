"""The table of engines."""

from __future__ import annotations

import capacity
from capacity.report.tables import render as render_answer


def test_every_engine_is_simulated_and_shown() -> None:
    answer = capacity.engine_table(claims=True)
    shown = render_answer(answer, "table")
    assert all(row.simulated for row in answer.rows)
    for row in answer.rows:
        assert row.engine in shown
    assert "Published single-stream claims" in shown
    assert "Published" not in render_answer(capacity.engine_table(), "table")
