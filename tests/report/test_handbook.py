"""The handbook's technique pages: each has a formula, when it pays, a chart by the library, a command, and sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capacity.report.figures.handbook import CHARTS

DOCS = Path(__file__).parents[2] / "docs"


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
