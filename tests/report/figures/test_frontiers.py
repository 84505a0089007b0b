"""The frontier's picture: coordinates, bands, colours and the limit are the answer's."""

from __future__ import annotations

import math
from typing import Any

import pytest

import capacity
from capacity.report.figures.frontiers import frontier_chart


@pytest.fixture(scope="module")
def frontier() -> Any:
    return capacity.frontier(
        "llama-3.1-8b",
        gpus=("h100-sxm-80gb", "gb200-nvl72"),
        loads=(1, 8, 64),
        input_len=1024,
        output_len=256,
        price_tier="on-demand",
    )


def test_lines_bands_and_prices(frontier: Any) -> None:
    chart = frontier_chart(frontier)
    first, second, best, line, unpriced, scale = chart.figure.data
    points = frontier.lines[0].points
    front = sorted(
        (1 / point.tpot_s.value, point.output_tokens_per_s_per_gpu.value)
        for point in (frontier.lines[n].points[place] for n, place in frontier.pareto_points())
    )
    assert list(best.x) == pytest.approx([x for x, _ in front])
    assert list(best.y) == pytest.approx([y for _, y in front])
    assert line.name == frontier.lines[0].label == "1 x h100-sxm-80gb, as published, vllm"
    assert list(line.x) == pytest.approx([1 / p.tpot_s.value for p in points])
    assert list(line.y) == [p.output_tokens_per_s_per_gpu.value for p in points]
    assert list(line.marker.color) == [math.log10(p.usd_per_million_output_tokens.value) for p in points]
    assert isinstance(unpriced.marker.color, str)  # the table has no on-demand price of it
    slow_x = [1 / p.tpot_s.high for p in points]
    assert list(first.x[:3]) == pytest.approx(slow_x)
    assert list(first.y[:3]) == [p.output_tokens_per_s_per_gpu.low for p in points]
    assert list(first.y[3:]) == [p.output_tokens_per_s_per_gpu.high for p in reversed(points)]
    assert first.fillcolor != second.fillcolor
    assert scale.marker.cmin == min(line.marker.color)
    cheapest = min(p.usd_per_million_output_tokens.value for p in points)
    assert scale.marker.colorbar.ticktext[0] == f"${cheapest:,.3g}"
    assert len(chart.rows) == 6
    numbered = frontier.lines[1].points[unpriced.customdata[2][1]]
    assert (unpriced.customdata[2][0], numbered.load) == (1, 64)


def test_the_limit_is_a_line_and_names_the_best_within(frontier: Any) -> None:
    limit_s = frontier.lines[0].points[1].tpot_s.value * 1.01
    chart = frontier_chart(frontier, tpot_limit_s=limit_s)
    assert [shape.x0 for shape in chart.figure.layout.shapes] == [pytest.approx(1 / limit_s)]
    assert "most tokens/s per GPU within" in chart.alt
    best = max(
        (line.best(limit_s) for line in frontier.lines), key=lambda p: p.output_tokens_per_s_per_gpu.value
    )
    assert f"{best.gpu}" in chart.alt
    assert "none is within" in frontier_chart(frontier, tpot_limit_s=1e-6).alt
