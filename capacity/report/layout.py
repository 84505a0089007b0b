"""Tables and text for a terminal: what fits a line, which column gives way, and no word broken."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from capacity.base.foreign import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    Part = RenderableType
else:
    Part = object

GIB = 2**30
WIDTH = 110  # columns where the output is no terminal
NO_MARK = re.compile(r"(?<!\\)\[(?!/?(bold|dim|red|green|yellow)( (red|green|yellow))?\])")
BETWEEN_COLUMNS, EDGES = 3, 2  # cells: two of padding and one of rule; one at each side

Row = TypeVar("Row")
Side = Literal["left", "right"]
Column = tuple[str, Side, Callable[[Row], str]]


def grid(title: str, *columns: tuple[str, Side]) -> Table:
    """An empty table: headings, and the side that their cells stand on."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, side in columns:
        table.add_column(name, justify=side, overflow="fold")
    return table


def table_of_records(title: str, rows: Iterable[Row], *columns: Column[Row]) -> Table:
    """A table of records: each column as heading, side and what it shows of a record."""
    table = grid(title, *((heading, side) for heading, side, _ in columns))
    for row in rows:
        table.add_row(*(cell(row) for _, _, cell in columns))
    return table


def table_of_numbers(title: str, heads: Sequence[str], rows: Iterable[tuple[str, Iterable[str]]]) -> Table:
    """A table of numbers: a heading for each column, a name before each row."""
    table = grid(title, ("", "left"), *((head, "right") for head in heads))
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def facts(title: str, rows: Iterable[tuple[str, str, str]]) -> Table:
    """A table without headings: name, value, remark."""
    table = grid(title, ("", "left"), ("", "right"), ("", "left"))
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    return table


def tokens(count: float | None) -> str:
    """4096 as 4K, 1048576 as 1M; None: no limit."""
    if count is None:
        return "no limit"
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size:.0f}{unit}"
    return f"{count:,}"


def notes(warnings: Iterable[str]) -> list[Part]:
    """A line for each warning."""
    return [f"[yellow]note:[/yellow] {warning}" for warning in warnings]


def render_text(parts: Iterable[Part]) -> str:
    """Lines and tables as text, in colour on a terminal."""
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((WIDTH, 24)).columns if on_terminal else WIDTH
    output = io.StringIO()
    console = _console(output, width, on_terminal)
    for part in parts:
        if title := _taken_title(part):
            console.print(title)
        _keep_words(part, width)
        console.print(part)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def _taken_title(part: Part) -> Text | None:
    """A table's title, to stand on a line of its own: within the table it would wrap at the table's width."""
    from rich.table import Table

    if not isinstance(part, Table) or not part.title:
        return None
    title, part.title = str(part.title), None
    return parse_marks(title, style="table.title")


def parse_marks(text: str, style: str = "") -> Text:
    """Text with our own marks read and all other brackets kept: names from outside may hold any."""
    from rich.errors import MarkupError
    from rich.text import Text

    text = printable(text)
    try:
        return Text.from_markup(NO_MARK.sub(r"\\[", text), emoji=False, style=style)
    except MarkupError:  # a name with half a mark
        return Text(text, style=style)


def _console(output: io.StringIO, width: int, on_terminal: bool) -> Console:
    """A console that reads no marks but ours."""
    from rich.console import Console

    class Screen(Console):
        def render_str(self, text: str, *, style: Any = "", **settings: Any) -> Text:
            shown = parse_marks(text, style)
            for name in ("justify", "overflow"):
                setattr(shown, name, settings.get(name))
            return shown

    return Screen(file=output, width=width, force_terminal=on_terminal, highlight=False, emoji=False)


def _keep_words(part: Part, width: int) -> None:
    """Give a table that must wrap such columns that no word is broken, where there are any: the widest give way."""
    from rich.table import Table

    if not isinstance(part, Table):
        return
    texts = [
        [parse_marks(str(cell)).plain for cell in (column.header, *column.cells)] for column in part.columns
    ]
    widths = [max(len(line) for text in column for line in text.split("\n")) for column in texts]
    least = [max(len(word) for text in column for word in text.split() or [""]) for column in texts]
    least = [
        full if column.no_wrap else word
        for column, word, full in zip(part.columns, least, widths, strict=True)
    ]
    room = width - EDGES - BETWEEN_COLUMNS * (len(widths) - 1)
    if sum(widths) <= room or sum(least) > room:
        return
    for _ in range(sum(widths) - room):
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)
        widths[widest] -= 1
    for column, fitted in zip(part.columns, widths, strict=True):
        column.width = fitted
