"""Charts: valid SVG whose lines stay inside the axes; those in the handbook are what the library draws.

`UPDATE_README=1 python -m pytest tests/report/test_handbook_charts.py` draws the handbook's charts anew.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.report.figures.handbook import CHARTS, write_charts
from capacity.report.figures.svg_chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, line_chart

FOLDER = Path(__file__).parents[2] / "docs" / "charts"
CLOSED_FORM = ("kv-cache", "flash-attention", "prefix-caching", "batching")
VALUE = st.floats(1e-6, 1e9)


@lru_cache(maxsize=1)
def pool() -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool(gpu="h100"))


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


def test_every_chart_of_the_handbook_is_drawn(tmp_path: Path) -> None:
    written = write_charts(pool(), tmp_path / "new")
    assert {path.stem for path in written} == set(CHARTS)
    if os.environ.get("UPDATE_README"):
        write_charts(pool(), FOLDER)
    for path in written:
        assert lines_of(path.read_text(encoding="utf-8"))
        committed = FOLDER / path.name
        assert committed.is_file()
        if path.stem in CLOSED_FORM:
            assert committed.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match="cannot write"):
        write_charts(pool(), written[0])


def test_the_handbook_shows_its_charts() -> None:
    for name in CHARTS:
        page = (FOLDER.parent / f"{name}.md").read_text(encoding="utf-8")
        assert re.search(rf"!\[[^\]]+\]\(charts/{name}\.svg\)", page)
