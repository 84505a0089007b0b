"""The picture of a GPU's memory: parts that add up to what may be used."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.display import Units
from capacity.report.figures.memory import PARTS, memory_chart


def test_the_parts_fill_what_the_engine_may_use() -> None:
    chart = memory_chart(capacity.fit("llama-3.1-8b", gpu="h100"), Units(memory="GB"))
    sizes = {row["part"]: row["bytes"] for row in chart.rows}
    assert sum(sizes[name] for name, _ in PARTS) == pytest.approx(sizes["may use"], abs=4)
    assert sizes["may use"] < sizes["engine sees"]
    drawn = sum(bar.x[0] for bar in chart.figure.data)
    assert drawn * 1e9 == pytest.approx(sizes["may use"], abs=4)
    assert chart.alt.startswith("It fits: ")


def test_what_does_not_fit_says_so() -> None:
    assert memory_chart(capacity.fit("llama-3.1-70b", gpu="l4")).alt.startswith("It does not fit: ")
