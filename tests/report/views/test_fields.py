"""A table for a record that has no view."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import capacity
from capacity.base.record import AnswerRecord
from capacity.report.tables import render as render_answer


@pytest.mark.parametrize("question", [capacity.attention_traffic, capacity.quantize, capacity.scale])
def test_an_answer_without_a_table_of_its_own_is_drawn_by_the_names_of_its_fields(
    question: Callable[..., AnswerRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = question("llama-3.1-8b", gpu="h100")
    monkeypatch.setattr("capacity.report.tables.ANSWERS", {})
    text = render_answer(answer, "table")
    assert "llama-3.1-8b on 1 x h100-sxm-80gb" in text
    for row in answer.rows:  # type: ignore[attr-defined]
        for name, scale in (("kernel_seconds", 1e3), ("ttft_s", 1e3)):
            if (value := getattr(row, name, None)) is not None:
                assert f"{value * scale:,.2f}" in text.replace("\n", "")
