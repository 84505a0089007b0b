"""Answers as a table for people, or as JSON or CSV for programs. All printed records pass through this module.

The registry names the view of each answer; a view is imported when its answer is printed.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Literal

from capacity.base.record import AnswerRecord
from capacity.base.registry import ANSWERS
from capacity.base.rows import flatten, to_csv
from capacity.report.layout import Part, render_text

Tables = Callable[[Any], list[Part]]


def render(
    answer: AnswerRecord,
    format: str,
    *,
    tables: Tables | None = None,
    detail: bool = True,
    command: str | None = None,
    python: str | None = None,
) -> str:
    """Return an answer in `format`: table, json, csv (its rows, or the record if it has none) or html.

    `tables` replaces the tables that the registry names. Without `detail`, a table fits on one screen. An html page
    shows the `command` or the `python` code that repeats the computation.
    """
    if format == "table":
        return render_text((tables or select_tables(answer, "tables" if detail else "summary"))(answer))
    if format == "html":
        from capacity.report.sheet import answer_html

        parts = (tables or select_tables(answer, "sheet"))(answer)
        return answer_html(answer, parts, command=command, python=python)
    if format == "json":
        return json.dumps(null_infinities(answer.to_dict()), indent=2, allow_nan=False)
    return to_csv(answer.to_rows())


def select_tables(answer: AnswerRecord, kind: Literal["tables", "summary", "text", "sheet"]) -> Tables:
    """Return the function that renders an answer as this `kind` of output; without a view, it lists all fields."""
    shown = ANSWERS.get(answer.schema_name())
    if shown is None or not shown.view:
        return lambda answer: [
            f"{name.replace('_', ' ')}: {'-' if value is None else value}"
            for name, value in answer.to_dict().items()
            if name != "schema"
        ]
    from capacity.report.views.layout import view_parts

    return lambda answer: view_parts(resolve_name(shown.view)(answer), answer, kind)


def null_infinities(value: object) -> object:
    """Replace infinite numbers with null, because JSON cannot contain them; `json.dumps` rejects NaN."""
    if isinstance(value, dict):
        return {name: null_infinities(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [null_infinities(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def render_listing(rows: Sequence[Mapping[str, object]], format: str, *, title: str) -> str:
    """Return records as JSON, as CSV, or as a table with the columns that `COLUMNS_BY_TITLE` has for the title."""
    if format == "json":
        return json.dumps(list(rows), indent=2)
    if format == "csv":
        return to_csv([flatten(row) for row in rows])
    from capacity.report.figures.listings import COLUMNS_BY_TITLE
    from capacity.report.views.layout import draw_table
    from capacity.report.views.view import Table

    return render_text([draw_table(Table(title, rows, COLUMNS_BY_TITLE[title]))])
