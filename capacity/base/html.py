"""Pages, tables and lists in HTML, of text that is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def page_html(title: str, body: str, *, style: str, head: str = "") -> str:
    """A page that needs nothing else; `head` is what else stands there."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{head}<title>{escape(title)}</title>'
        f"<style>{style}</style></head><body>{body}</body></html>\n"
    )


def table_html(
    heads: Sequence[str] | None, rows: Iterable[Sequence[object]], *, scope: str = ' scope="col"'
) -> str:
    """A table; None: without headings."""
    head = "" if heads is None else f"<tr>{''.join(f'<th{scope}>{escape(each)}</th>' for each in heads)}</tr>"
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>{head}{body}</table>"


def list_html(items: Iterable[str]) -> str:
    """A list without numbers."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
