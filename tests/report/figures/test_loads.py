"""A load's pictures: bands are the answer's intervals, lines stand where the engine is full, bars are in order."""

from __future__ import annotations

import math
from typing import Any

import pytest

import capacity
from capacity.report.display import Units
from capacity.report.figures.chart import log_ticks
from capacity.report.figures.loads import (
    BARS,
    FIGURES,
    comparison_chart,
    comparison_rows,
    full_sentence,
    sweep_chart,
)

PLACE = {"gpu": "h100-sxm-80gb", "input_len": 1024, "output_len": 256, "price_tier": "on-demand"}


@pytest.fixture(scope="module")
def batches() -> Any:
    return capacity.load_sweep("llama-3.1-8b", over="batch_size", loads=(1, 16, 256, 1024), **PLACE)


def lines(chart: Any) -> list[float]:
    """Where vertical lines stand."""
    return [shape.x0 for shape in chart.figure.layout.shapes]


@pytest.mark.parametrize("name", FIGURES)
def test_lines_and_bands_are_the_answers(batches: Any, name: str) -> None:
    chart = sweep_chart(batches, name, Units(time="s"))
    band, line = chart.figure.data
    served = [point for point in batches.points if point.fits]
    known = [FIGURES[name].of(point) for point in served]
    assert list(line.x) == [point.load for point in served] == [1, 16, 256]
    assert list(line.y) == [quantity.value for quantity in known]
    lows, highs = [q.low for q in known], [q.high for q in known]
    assert list(band.y) == [*lows, *reversed(highs)]
    assert len(chart.rows) == 4
    assert "exceed the KV cache" in str(chart.rows[-1]["state"])


def test_the_kv_cache_and_the_chosen_load_are_marked(batches: Any) -> None:
    chart = sweep_chart(batches, "ttft", chosen=16)
    assert lines(chart) == [batches.kv_requests, 16]
    texts = {note.text: note.x for note in chart.figure.layout.annotations}
    assert texts == {
        f"KV cache full: {batches.kv_requests:,}": math.log10(batches.kv_requests),
        "chosen": math.log10(16),
    }
    few = capacity.load_sweep("llama-3.1-8b", loads=(1, 2), **PLACE)
    assert lines(sweep_chart(few, "ttft")) == []
    assert f"holds {few.kv_requests:,} requests" in full_sentence(few)


def test_of_a_rate_the_line_stands_where_queues_begin_to_grow() -> None:
    sweep = capacity.load_sweep("llama-3.1-8b", over="request_rate", **PLACE)
    chart = sweep_chart(sweep, "tpot", chosen=sweep.points[0].load)
    assert lines(chart) == [sweep.full_from, sweep.points[0].load]
    assert max(chart.figure.data[-1].x) < sweep.points[-1].load


@pytest.mark.parametrize("order", BARS)
def test_bars_stand_in_order_with_the_interval_as_whiskers(order: str) -> None:
    compared = capacity.compare_gpus(
        "llama-3.1-70b",
        gpus=("l4", "h100-sxm-80gb", "b200-sxm-180gb"),
        order=order,
        input_len=1024,
        output_len=256,
        concurrency=8,
        price_tier="on-demand",
    )
    chart = comparison_chart(compared)
    (bars,) = chart.figure.data
    assert sorted(bars.y) == ["2 x b200-sxm-180gb", "4 x h100-sxm-80gb"]
    shown = list(bars.x)
    assert shown == sorted(shown, reverse=order.startswith("throughput"))
    if order == "ttft":
        best = compared.rows[0].ttft_s
        assert best is not None
        assert shown[0] == pytest.approx(best.value * 1e3)
        assert shown[0] + bars.error_x.array[0] == pytest.approx(best.high * 1e3)
        assert shown[0] - bars.error_x.arrayminus[0] == pytest.approx(best.low * 1e3)
    rows = comparison_rows(compared)
    assert [row["serves it"] for row in rows] == ["yes", "yes", "does not fit"]
    assert "l4-24gb" in str(rows[-1]["why not"])


def test_a_logarithmic_axis_has_ticks_around_its_values() -> None:
    assert log_ticks(15.0, 400.0) == [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    assert log_ticks(0.03, 40_000.0) == [0.01, 0.1, 1, 10, 100, 1000, 10_000, 100_000]
