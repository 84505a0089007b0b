"""A load's pictures and table: whiskers are the answer's intervals, lines stand where the engine is full."""

from __future__ import annotations

import math
from typing import Any

import pytest

import capacity
from capacity.report.display import Units, time_and_interval
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.chart import Chart, log_ticks
from capacity.report.figures.drawing import draw_block
from capacity.report.figures.loads import FIGURES
from capacity.report.subject import describe_answer
from capacity.report.tables import render
from capacity.report.views.rising_load import load_sweep_view, saturation_sentence
from capacity.report.views.view import Drawing

PLACE = {"gpu": "h100-sxm-80gb", "input_len": 1024, "output_len": 256, "price_tier": "on-demand"}


@pytest.fixture(scope="module")
def batches() -> Any:
    return capacity.load_sweep("llama-3.1-8b", over="batch_size", loads=(1, 16, 256, 1024), **PLACE)


def drawn(sweep: Any, chosen: float | None = None, **units: Any) -> dict[str, Chart]:
    """The charts by the first word of their names."""
    blocks = [block for block in load_sweep_view(sweep, chosen).blocks if isinstance(block, Drawing)]
    return {block.name.partition("_")[0]: draw_block(block, sweep, Units(**units)) for block in blocks}


def lines(chart: Any) -> list[float]:
    """Where vertical lines stand."""
    return [shape.x0 for shape in chart.figure.layout.shapes]


@pytest.mark.parametrize("name", FIGURES)
def test_lines_and_whiskers_are_the_answers(batches: Any, name: str) -> None:
    chart = drawn(batches, time="s")[name]
    (line,) = chart.figure.data
    served = [point for point in batches.points if point.fits]
    known = [FIGURES[name].value_of(point) for point in served]
    assert list(line.x) == [point.load for point in served] == [1, 16, 256]
    assert list(line.y) == [quantity.value for quantity in known]
    highs = [value + more for value, more in zip(line.y, line.error_y.array, strict=True)]
    assert highs == pytest.approx([quantity.high for quantity in known])


def test_the_kv_cache_and_the_chosen_load_are_marked(batches: Any) -> None:
    assert describe_answer(batches).startswith("llama-3.1-8b, 1 x h100-sxm-80gb")
    chart = drawn(batches, chosen=16)["ttft"]
    assert lines(chart) == [batches.kv_requests, 16]
    texts = {note.text: note.x for note in chart.figure.layout.annotations}
    assert texts == {
        f"KV cache full: {batches.kv_requests:,}": math.log10(batches.kv_requests),
        "chosen": math.log10(16),
    }
    few = capacity.load_sweep("llama-3.1-8b", loads=(1, 2), **PLACE)
    assert lines(answer_charts(few)[0]) == []
    assert f"holds {few.kv_requests:,} requests" in saturation_sentence(few)


def test_of_a_rate_the_line_stands_where_queues_begin_to_grow() -> None:
    sweep = capacity.load_sweep("llama-3.1-8b", over="request_rate", **PLACE)
    chart = drawn(sweep, chosen=sweep.points[0].load)["tpot"]
    assert lines(chart) == [sweep.full_from, sweep.points[0].load]
    assert max(chart.figure.data[-1].x) < sweep.points[-1].load


def test_each_load_is_a_line_and_what_is_full_is_said(batches: Any) -> None:
    text = render(batches, "table")
    first = batches.points[0]
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in (["1"], ["16"], ["1,024"])]
    assert [row[0] for row in rows] == ["1", "16", "1,024"]
    assert " ".join(rows[0][1:3]) == time_and_interval(first.ttft_s)[0]
    assert rows[2][1:5] == ["-", "-", "-", "-"]
    assert "exceed the KV cache" in " ".join(rows[2])
    assert f"holds {batches.kv_requests:,} requests" in " ".join(text.split())


def test_a_logarithmic_axis_has_ticks_around_its_values() -> None:
    assert log_ticks(15.0, 400.0) == [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    assert log_ticks(0.03, 40_000.0) == [0.01, 0.1, 1, 10, 100, 1000, 10_000, 100_000]
