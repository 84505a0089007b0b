"""The handbook: its charts are what the library draws, and each page has a formula, a chart, a command, sources.

`UPDATE_README=1 python -m pytest tests/report/figures/test_handbook.py` draws the charts anew.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from functools import lru_cache
from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.report.figures.handbook import CHARTS, write_charts

FOLDER = Path(__file__).parents[3] / "docs" / "charts"
CLOSED_FORM = ("kv-cache", "flash-attention", "prefix-caching", "batching")


@lru_cache(maxsize=1)
def pool() -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool(gpu="h100"))


def lines_of(svg: str) -> list[list[tuple[float, float]]]:
    """The pixels of each line."""
    root = ET.fromstring(svg)
    paths = [element.attrib["points"] for element in root if element.tag.endswith("polyline")]
    return [[tuple(map(float, pair.split(","))) for pair in path.split()] for path in paths]  # type: ignore[misc]


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
