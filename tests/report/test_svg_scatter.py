"""Scatter charts as SVG: marks stand where their values are, and nothing in a label is markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.report.svg_scatter import HEIGHT, MARGIN, WIDTH, scatter

AXES = ("x", "y")
VALUE = st.floats(1e-3, 1e9)


def circles(svg: str) -> list[tuple[float, float]]:
    """Centres of the first group's marks, the legend's aside."""
    found = re.findall(r'</title><circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    return [(float(x), float(y)) for x, y in found]


@given(st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=10))
def test_marks_stay_between_the_margins(values: list[tuple[float, float]]) -> None:
    svg = scatter([("g", "l", x, y) for x, y in values], title="t", axes=AXES)
    marks = circles(svg)
    assert len(marks) == len(values)
    for x, y in marks:
        assert MARGIN <= x <= WIDTH - MARGIN
        assert MARGIN <= y <= HEIGHT - MARGIN


def test_positions_by_hand() -> None:
    """The longest x stands 1/1.08 of the way, the highest y 1/1.1 of it; half of each in the middle of that."""
    half, whole = circles(scatter([("g", "", 5, 50), ("g", "", 10, 100)], title="t", axes=AXES))
    assert whole[0] == pytest.approx(MARGIN + (WIDTH - 2 * MARGIN) / 1.08, abs=0.1)
    assert whole[1] == pytest.approx(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) / 1.1, abs=0.1)
    assert half[0] - MARGIN == pytest.approx((whole[0] - MARGIN) / 2, abs=0.1)


def test_groups_differ_in_shape_and_labels_are_text() -> None:
    svg = scatter([("<a>", "x & y", 1, 1), ("b", "", 2, 2)], title="t < u", axes=AXES, line_y=1.0)
    figure = ET.fromstring(svg)
    assert [text for text in figure.itertext() if text.startswith("x & y")] == ["x & y: 1, 1"]
    assert "<a>" in list(figure.itertext())
    assert svg.count("<circle") == svg.count("<rect") == 2  # the mark and its place in the legend
    assert svg.count("stroke-dasharray") == 1
    assert scatter([], title="t", axes=AXES) == ""
