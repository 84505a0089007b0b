"""A terminal's tables as HTML: the same rows and words, with our marks as classes and everything else as text."""

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
    """What an answer shows, and the remarks to it."""
    shown: list[Part] = []
    remarks = []
    for part in parts:
        if isinstance(part, str) and part.startswith(NOTE):
            remarks.append(part.removeprefix(NOTE))
        else:
            shown.append(part)
    return shown, remarks


def parts_html(parts: Iterable[Part]) -> str:
    """Lines as paragraphs, tables as tables."""
    from rich.table import Table

    return "".join(
        _table(part)
        if isinstance(part, Table)
        else "".join(f"<p>{words_html(line)}</p>" for line in str(part).splitlines())
        for part in parts
    )


def _table(table: Table) -> str:
    title = f"<caption>{words_html(str(table.title))}</caption>" if table.title else ""
    columns = table.columns
    rows = [
        _row("td", "", columns, cells) for cells in zip(*(column.cells for column in columns), strict=True)
    ]
    if table.show_header:
        rows.insert(0, _row("th", ' scope="col"', columns, [column.header for column in columns]))
    return f'<div class="wide"><table>{title}{"".join(rows)}</table></div>'


def _row(tag: str, scope: str, columns: Iterable[Column], cells: Iterable[object]) -> str:
    """A line of cells, numbers to the right."""
    sides = [' class="n"' if column.justify == "right" else "" for column in columns]
    texts = (
        f"<{tag}{scope}{side}>{words_html(str(cell))}</{tag}>"
        for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(texts)}</tr>"


def words_html(words: str) -> str:
    """A line with our own marks as HTML; whatever else stands there stands there as text."""
    text = parse_marks(words)
    ends = sorted({end for span in text.spans for end in (span.start, span.end)})
    return "".join(_style_text(piece) for piece in text.divide(ends))


def _style_text(piece: Text) -> str:
    """Text of one style throughout."""
    shown = escape(piece.plain)
    for style in " ".join(str(span.style) for span in piece.spans).split():
        if style == "bold":
            shown = f"<strong>{shown}</strong>"
        elif style in CLASSES:
            shown = f'<span class="{CLASSES[style]}">{shown}</span>'
    return shown
