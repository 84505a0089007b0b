"""The handbook: its charts are what the library draws, and each page has a formula, a chart, a command, sources.

`UPDATE_README=1 python -m pytest tests/report/figures/test_handbook.py` draws the charts anew.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.report.figures.handbook import CHARTS, line_chart, write_charts

FOLDER = Path(__file__).parents[3] / "docs" / "charts"
CLOSED_FORM = ("kv-cache", "flash-attention", "prefix-caching", "batching")


@lru_cache(maxsize=1)
def pool() -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool(gpu="h100"))


def lines_of(svg: str) -> list[list[tuple[float, float]]]:
    """The pixels of each line."""
    paths = re.findall(
        r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; stroke: #\w+; stroke-width: 2;', svg
    )
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)] for path in paths]


def test_every_chart_of_the_handbook_is_drawn(tmp_path: Path) -> None:
    written = write_charts(pool(), tmp_path / "new")
    assert {path.stem for path in written} == set(CHARTS)
    if os.environ.get("UPDATE_README"):
        write_charts(pool(), FOLDER)
    for path in written:
        lines = lines_of(path.read_text(encoding="utf-8"))
        committed = lines_of((FOLDER / path.name).read_text(encoding="utf-8"))
        assert lines
        assert len(committed) == len(lines)
        if path.stem in CLOSED_FORM:
            for line, known in zip(lines, committed, strict=True):
                assert np.array(line) == pytest.approx(np.array(known), abs=2)  # other fonts, other margins
    with pytest.raises(InvalidInput, match="cannot write"):
        write_charts(pool(), written[0])


def test_positions_by_hand() -> None:
    """Logarithmic x from 1 to 16: 4 stands in the middle; y begins at 0: 10 stands twice as high as 5."""
    svg = line_chart("t", {"l": [(1, 0), (4, 10), (16, 5)]}, x_label="x", y_label="y")
    ((x0, y0), (x1, y1), (x2, y2)) = lines_of(svg)[0]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.1)
    assert y0 - y1 == pytest.approx(2 * (y0 - y2), abs=0.1)
    assert ">4<" in svg


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no points"):
        line_chart("t", {}, x_label="x", y_label="y")
    for point in ((0.0, 1.0), (1.0, float("nan")), (float("inf"), 1.0)):
        with pytest.raises(InvalidInput, match="cannot draw"):
            line_chart("t", {"l": [point]}, x_label="x", y_label="y")


def test_the_handbook_shows_its_charts() -> None:
    for name in CHARTS:
        page = (FOLDER.parent / f"{name}.md").read_text(encoding="utf-8")
        assert re.search(rf"!\[[^\]]+\]\(charts/{name}\.svg\)", page)


DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", CHARTS)
def test_a_page_has_all_five(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", page, re.M)
    assert "The formula" in headings
    assert "When it pays" in headings
    assert f"](charts/{name}.svg)" in page
    assert re.search(r"<!-- (run|output) -->\n```sh\n(?:.*\n)*?capacity ", page)
    assert re.search(r"^Sources: ", page, re.M)
    assert f"]({name}.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
