"""Beam search as a picture: every width in every way, the engine's own marked."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.beams import WAYS, beam_chart, beam_rows
from capacity.report.figures.of_answer import charts_of


def test_lines_are_the_answers_times() -> None:
    answer = capacity.beam_search("llama-3.1-8b", gpu="h100", beam_widths=(1, 4), engine="tensorrt-llm")
    chart = beam_chart(answer)
    lines = {line.name.removesuffix(" *"): line for line in chart.figure.data}
    for way, title in WAYS.items():
        rows = [row for row in answer.rows if row.way == way]
        assert list(lines[title].x) == [1, 4]
        assert list(lines[title].y) == pytest.approx([1e3 * row.tpot_s.value for row in rows])
        high = rows[-1].tpot_s.high
        assert high is not None
        assert lines[title].y[-1] + lines[title].error_y.array[-1] == pytest.approx(1e3 * high)
    assert [line.name for line in chart.figure.data if line.name.endswith(" *")] == [f"{WAYS['engine']} *"]
    assert len(beam_rows(answer)) == len(answer.rows)
    assert [each.name for each in charts_of(answer)] == ["beam_search"]
    assert "<svg" in chart.svg()
