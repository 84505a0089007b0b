"""Cells and columns: numbers in their units, and a table for a record that has none of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

import capacity
from capacity.base.record import AnswerRecord
from capacity.report.tables import render as render_answer
from capacity.report.techniques.cells import number, percent, text, tokens, yes


def test_cells_say_what_the_record_says_in_the_units_asked_for() -> None:
    row = SimpleNamespace(ttft_s=1.23456, share=0.256, count=None, on=True, name="a")
    assert number("ttft_s", 1e3, 1)(row) == "1,234.6"
    assert percent("share")(row) == "25.6%"
    assert percent("share", 0)(row) == "26%"
    assert number("count")(row) == percent("count")(row) == "-"
    assert (yes("on")(row), text("name")(row)) == ("yes", "a")


def test_token_counts_are_read_as_flags_write_them() -> None:
    assert [tokens(n) for n in (None, 100, 4096, 4097, 1 << 20)] == ["no limit", "100", "4K", "4,097", "1M"]


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
