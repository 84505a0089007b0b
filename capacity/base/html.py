"""HTML pages, tables and lists. All functions escape texts."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import repeat
from pathlib import Path

from capacity.base.untrusted_text import printable

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def page_html(title: str, body: str, *, style: str = "") -> str:
    """Return a self-contained HTML page for screen and paper; `style` is CSS that is added to the common style."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{VIEWPORT}'
        f"<title>{escape(printable(title))}</title><style>{STYLE}{style}</style></head><body>{body}</body></html>\n"
    )


def records_html(records: Sequence[Mapping[str, object]]) -> str:
    """Return records as an HTML table with a column for each key; an empty string without records."""
    if not records:
        return ""
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = [_number_class(record.get(name) for record in records) for name in names]
    rows = ([_format_value(record.get(name)) for name in names] for record in records)
    return f'<div class="wide">{table_html(names, rows, columns=columns)}</div>'


def _number_class(values: Iterable[object]) -> str:
    known = [value for value in values if value is not None]
    return ' class="n"' if known and all(isinstance(value, (int, float)) for value in known) else ""


def _format_value(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table_html(
    heads: Sequence[str] | None,
    rows: Iterable[Sequence[object]],
    *,
    scope: str = ' scope="col"',
    columns: Iterable[str] = (),
) -> str:
    """Return an HTML table, without headings if `heads` is None. `columns`: HTML attributes of each column's cells."""
    own = tuple(columns)
    head = "" if heads is None else _row("th", scope, heads, own)
    return f"<table>{head}{''.join(_row('td', '', row, own) for row in rows)}</table>"


def _row(tag: str, scope: str, cells: Sequence[object], columns: Sequence[str]) -> str:
    attributes = (f"{scope}{own}" for own in columns or repeat(""))
    line = (
        f"<{tag}{own}>{escape(printable(str(cell)))}</{tag}>"
        for cell, own in zip(cells, attributes, strict=False)
    )
    return f"<tr>{''.join(line)}</tr>"


def list_html(items: Iterable[str]) -> str:
    """Return an HTML list with bullets; empty without items."""
    rows = "".join(f"<li>{escape(printable(item))}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""
