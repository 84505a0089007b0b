"""Engines side by side as a picture: a bar of each that serves, with its interval; reasons of the others."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.figures.engines import engine_rows, engines_chart
from capacity.report.figures.of_answer import charts_of

LOAD = {"gpu": "h100", "input_len": 300, "output_len": 60, "concurrency": 4}


def test_bars_are_the_figures_of_those_that_serve() -> None:
    answer = capacity.compare_engines(
        "llama-3.1-8b", engines=("vllm", "sglang", "llama.cpp"), quantization="fp8", **LOAD
    )
    known = {row.engine: row.point.tpot_s for row in answer.rows if row.point.tpot_s is not None}
    (bar,) = engines_chart(answer, "tpot").figure.data
    assert list(bar.y) == list(known)
    assert list(bar.x) == pytest.approx([1e3 * value.value for value in known.values()])
    last = list(known.values())[-1]
    assert last.high is not None
    assert bar.x[-1] + bar.error_x.array[-1] == pytest.approx(1e3 * last.high)
    rows = {str(row["engine"]): row for row in engine_rows(answer)}
    (refused,) = (row for row in answer.rows if row.engine not in known)
    assert rows[refused.engine]["why not"] == refused.point.reason
    assert rows[refused.engine]["serves it"] == "does not fit"
    drawn = charts_of(answer)
    assert [each.name for each in drawn] == ["engines_throughput", "engines_ttft", "engines_tpot"]
    assert all("<svg" in each.svg() for each in drawn)
