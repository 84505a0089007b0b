"""What every chart shares: marks beside colours, words beside the picture, one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import capacity
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.estimates import roofline_chart, step_chart

ASKED: dict[str, Any] = {"gpu": "h100", "input_len": 1000, "output_len": 200, "batch_size": 16}


def test_no_chart_tells_series_apart_by_colour_alone(estimate: capacity.Estimate) -> None:
    why = capacity.explain("llama-3.1-8b", **ASKED)
    charts = [
        *answer_charts(capacity.fit("llama-3.1-8b", gpu="h100")),
        step_chart(estimate, "prefill"),
        *answer_charts(why),
    ]
    for chart in charts:
        shapes = [trace.marker.pattern.shape for trace in chart.figure.data if trace.type == "bar"]
        assert len(set(shapes)) == len(shapes)
    points = [
        trace for trace in roofline_chart(estimate).figure.data if trace.name and trace.name.endswith(" step")
    ]
    assert len({trace.marker.symbol for trace in points}) == len(points)
    for chart in (*charts, roofline_chart(estimate)):
        assert chart.alt.endswith(".")
        assert chart.rows


def test_a_charts_html_needs_nothing_else(estimate: capacity.Estimate, tmp_path: Path) -> None:
    page = roofline_chart(estimate).html()
    (tmp_path / "chart.html").write_text(page, encoding="utf-8")
    assert "<script src=" not in page
