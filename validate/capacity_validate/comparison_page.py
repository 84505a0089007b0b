"""The answer of `capacity compare` in every format: a table, JSON, CSV, or a page to print with its charts."""

from __future__ import annotations

from capacity.report.sheet import answer_html
from capacity.report.tables import render
from capacity_validate.comparison import Comparison
from capacity_validate.comparison_tables import comparison_tables
from capacity_validate.figures import comparison_charts


def rendered(
    answer: Comparison, format: str, *, command: str | None = None, python: str | None = None
) -> str:
    """As `capacity.report.tables.render` does it of the library's own answers."""
    if format != "html":
        return render(answer, format, tables=comparison_tables)
    parts, charts = comparison_tables(answer), comparison_charts(answer)
    return answer_html(answer, parts, charts=charts, command=command, python=python)
