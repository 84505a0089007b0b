"""SVG charts: valid, inside their axes, points where they belong."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.report.figures.svg_chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, line_chart

VALUE = st.floats(1e-6, 1e9)


def lines_of(svg: str) -> list[list[tuple[float, float]]]:
    """The pixels of each line."""
    root = ET.fromstring(svg)
    paths = [element.attrib["points"] for element in root if element.tag.endswith("polyline")]
    return [[tuple(map(float, pair.split(","))) for pair in path.split()] for path in paths]  # type: ignore[misc]


@given(st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_lines_stay_inside_the_axes(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:
    svg = line_chart(
        "a < b",
        [Line(name="x & y", points=tuple(sorted(points)))],
        x_label="x",
        y_label="y",
        log_x=log_x,
        log_y=log_y,
    )
    for x, y in lines_of(svg)[0]:
        assert LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1
        assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1


def test_positions_by_hand() -> None:
    """Logarithmic x from 1 to 16: 4 stands in the middle. y from 0 to 10 x 1.05: 10 stands 1/1.05 of the way up."""
    svg = line_chart("t", [Line(name="l", points=((1, 0), (4, 10), (16, 5)))], x_label="x", y_label="y")
    first, middle, last = lines_of(svg)[0]
    assert middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.1)
    up = (HEIGHT - BOTTOM - middle[1]) / (HEIGHT - BOTTOM - TOP)
    assert up == pytest.approx(1 / 1.05, abs=0.001)
    assert ">4<" in svg
    assert ">10<" in svg


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no points"):
        line_chart("t", [], x_label="x", y_label="y")
    for point in ((0.0, 1.0), (1.0, float("nan")), (float("inf"), 1.0)):
        with pytest.raises(InvalidInput, match="cannot draw"):
            line_chart("t", [Line(name="l", points=(point,))], x_label="x", y_label="y")
