"""Tables and text for a terminal: fit columns to the width without breaking words."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from capacity.base.money import convert_amounts
from capacity.base.untrusted_text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    Part = RenderableType
else:
    Part = object

GIB = 2**30
WIDTH = 110  # columns if the output is not a terminal
FOREIGN_BRACKET = re.compile(r"(?<!\\)\[(?!/?(bold|dim|red|green|yellow)( (red|green|yellow))?\])")
BETWEEN_COLUMNS, EDGES = 3, 2  # characters: two of padding and one of rule; one at each side

Side = Literal["left", "right"]


def empty_table(title: str, *columns: tuple[str, Side]) -> Table:
    """Return an empty table with these columns; each is a heading and its alignment."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, side in columns:
        table.add_column(name, justify=side, overflow="fold")
    return table


def facts_table(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    """Return a table without headings: name, value, note."""
    table = empty_table(title, ("", "left"), ("", "right"), ("", "left"))
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    return table


def token_count_text(count: float | None) -> str:
    """Return a number of tokens as text: 4096 as `4K`, 1048576 as `1M`, and None as `no limit`."""
    if count is None:
        return "no limit"
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size:.0f}{unit}"
    return f"{count:,}"


def note_lines(warnings: Iterable[str]) -> list[Part]:
    """Return one line of text for each note of an answer that is not empty."""
    return [f"[yellow]note:[/yellow] {warning}" for warning in warnings if warning]


def render_text(parts: Iterable[Part]) -> str:
    """Return lines and tables as one text, fitted to the terminal's width; in colour if stdout is a terminal."""
    from rich.table import Table

    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((WIDTH, 24)).columns if on_terminal else WIDTH
    output = io.StringIO()
    console = _console(output, width, on_terminal)
    for part in parts:
        if isinstance(part, Table):
            if part.title:  # inside the table it would wrap at the table's width
                console.print(parse_marks(str(part.title), style="table.title"))
                part.title = None
            _fit_columns(part, width)
        console.print(part)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def parse_marks(text: str, style: str = "") -> Text:
    """Parse this package's markup in a text, and convert its dollar amounts to the display currency.

    Brackets that are not markup stay unchanged, because external names may contain them.
    """
    from rich.errors import MarkupError
    from rich.text import Text

    text = convert_amounts(printable(text))
    try:
        return Text.from_markup(FOREIGN_BRACKET.sub(r"\\[", text), emoji=False, style=style)
    except MarkupError:  # unbalanced markup in a name
        return Text(text, style=style)


def _console(output: io.StringIO, width: int, on_terminal: bool) -> Console:
    """Return a console that parses only this package's markup."""
    from rich.console import Console

    class Screen(Console):
        def render_str(self, text: str, *, style: Any = "", **settings: Any) -> Text:
            shown = parse_marks(text, style)
            for name in ("justify", "overflow"):
                setattr(shown, name, settings.get(name))
            return shown

    return Screen(file=output, width=width, force_terminal=on_terminal, highlight=False, emoji=False)


def _fit_columns(table: Table, width: int) -> None:
    """If a table is wider than `width`, narrow its widest columns, without breaking words if possible."""
    texts = [
        [parse_marks(str(cell)).plain for cell in (column.header, *column.cells)] for column in table.columns
    ]
    widths = [max(len(line) for text in column for line in text.split("\n")) for column in texts]
    words = [max(len(word) for text in column for word in text.split() or [""]) for column in texts]
    least = [
        full if column.no_wrap else word
        for column, word, full in zip(table.columns, words, widths, strict=True)
    ]
    room = width - EDGES - BETWEEN_COLUMNS * (len(widths) - 1)
    if sum(least) > room:  # rather wrap every column than break words
        least = words
        for column in table.columns:
            column.no_wrap = False
    if sum(widths) <= room or sum(least) > room:
        return
    for _ in range(sum(widths) - room):
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)
        widths[widest] -= 1
    for column, fitted in zip(table.columns, widths, strict=True):
        column.width = fitted
