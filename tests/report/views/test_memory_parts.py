"""The picture of a GPU's memory: parts that add up to what may be used."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.display import Units
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.drawing import draw_chart
from capacity.report.views.memory_parts import memory_chart


def test_the_parts_fill_what_the_engine_may_use() -> None:
    answer = capacity.fit("llama-3.1-8b", gpu="h100")
    chart = draw_chart(memory_chart(answer), answer, Units(memory="GB"))
    usable, whole = (shape.x0 * 1e9 for shape in chart.figure.layout.shapes)
    assert usable == pytest.approx(answer.memory.usable_bytes)
    assert usable < whole == pytest.approx(answer.memory.total_bytes)
    *bars, first, second = chart.figure.data
    assert sum(bar.x[0] for bar in bars) * 1e9 == pytest.approx(usable, abs=4)
    assert first.name == f"usable {usable / 1e9:.4g}"
    assert second.name == f"visible to engine {whole / 1e9:.4g}"
    assert chart.alt.startswith("The model fits: ")


def test_what_does_not_fit_says_so() -> None:
    (chart,) = answer_charts(capacity.fit("llama-3.1-70b", gpu="l4"))
    assert chart.alt.startswith("The model does not fit: ")
