"""Pages, tables and lists in HTML, of text that is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import repeat

from capacity.base.foreign import printable


def page_html(title: str, body: str, *, style: str, head: str = "") -> str:
    """A page that needs nothing else; `head` is what else stands there."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{head}<title>{escape(printable(title))}</title>'
        f"<style>{style}</style></head><body>{body}</body></html>\n"
    )


def table_html(
    heads: Sequence[str] | None,
    rows: Iterable[Sequence[object]],
    *,
    scope: str = ' scope="col"',
    columns: Iterable[str] = (),
) -> str:
    """A table; None: without headings. `columns`: attributes of the cells of each column."""
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
    """A list without numbers."""
    return "<ul>" + "".join(f"<li>{escape(printable(item))}</li>" for item in items) + "</ul>"
