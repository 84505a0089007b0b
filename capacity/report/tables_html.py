"""The tables of a terminal as HTML, with the same rows and texts. Markup becomes CSS classes; other text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from capacity.report.layout import Part, parse_marks

if TYPE_CHECKING:
    from rich.table import Column, Table
    from rich.text import Text

NOTE = "[yellow]note:[/yellow] "
CLASSES = {"red": "bad", "green": "good", "yellow": "odd"}


def split_notes(parts: Iterable[Part]) -> tuple[list[Part], list[str]]:
    """Return two lists: an answer's tables and lines, and its notes."""
    everything = list(parts)
    notes = [part for part in everything if isinstance(part, str) and part.startswith(NOTE)]
    shown = [part for part in everything if part not in notes]
    return shown, [note.removeprefix(NOTE) for note in notes]


def parts_html(parts: Iterable[Part]) -> str:
    """Return lines as paragraphs and tables as HTML tables."""
    from rich.table import Table

    return "".join(
        _table_html(part)
        if isinstance(part, Table)
        else "".join(f"<p>{markup_html(line)}</p>" for line in str(part).splitlines())
        for part in parts
    )


def _table_html(table: Table) -> str:
    title = f"<caption>{markup_html(str(table.title))}</caption>" if table.title else ""
    columns = table.columns
    rows = [
        _row_html("td", "", columns, cells)
        for cells in zip(*(column.cells for column in columns), strict=True)
    ]
    if table.show_header:
        rows.insert(0, _row_html("th", ' scope="col"', columns, [column.header for column in columns]))
    return f'<div class="wide"><table>{title}{"".join(rows)}</table></div>'


def _row_html(tag: str, scope: str, columns: Iterable[Column], cells: Iterable[object]) -> str:
    """Return a table row as HTML; right-aligned columns get the CSS class of numbers."""
    sides = [' class="n"' if column.justify == "right" else "" for column in columns]
    texts = (
        f"<{tag}{scope}{side}>{markup_html(str(cell))}</{tag}>"
        for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(texts)}</tr>"


def markup_html(words: str) -> str:
    """Return a line as HTML: known markup becomes tags, everything else is escaped."""
    text = parse_marks(words)
    ends = sorted({end for span in text.spans for end in (span.start, span.end)})
    return "".join(_style_text(piece) for piece in text.divide(ends))


def _style_text(piece: Text) -> str:
    shown = escape(piece.plain)
    for style in " ".join(str(span.style) for span in piece.spans).split():
        if style == "bold":
            shown = f"<strong>{shown}</strong>"
        elif style in CLASSES:
            shown = f'<span class="{CLASSES[style]}">{shown}</span>'
    return shown
