"""The table of ways of batching."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.tables import render as render_answer


def test_every_way_is_a_line_with_its_gain() -> None:
    answer = capacity.compare_batching(
        "llama-3.1-8b", gpu="h100", max_model_len=4096, input_len=100, output_len=20, num_prompts=12, max_batch=4,
        spread=False,
    )  # fmt: skip
    shown = render_answer(answer, "table")
    assert answer.rows[0].gain == pytest.approx(1)
    for row in answer.rows:
        assert f" {row.gain:,.2f} " in shown
    assert f"{answer.slot_gain:.2f} times faster if every step takes the same time" in " ".join(shown.split())
    assert "Gain of continuous over static" not in shown  # without the spreads
