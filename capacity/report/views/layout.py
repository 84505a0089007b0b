"""Convert views to text for a terminal or a printed page, and their tables to numbers for sorting and for files."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from capacity.base.money import convert_amounts, currency_note
from capacity.base.quantity import Quantity
from capacity.report.display import STANDARD, Units, phrase, round_like
from capacity.report.layout import Part, empty_table, facts_table, note_lines
from capacity.report.views.units import Unit, name_units
from capacity.report.views.view import Facts, Rejections, Table, View

if TYPE_CHECKING:
    from rich.table import Table as RichTable


def view_parts(view: View, answer: Any, kind: str = "tables") -> list[Part]:
    """Return a view as lines and tables. `kind`: `tables` (blocks and details), `sheet` (blocks), `summary` (blocks of
    the first screen and the line `brief`) or `text` (a summary without that line)."""
    more = {"tables": view.detail, "summary": [view.brief]}.get(kind, ())
    shown: list[Part] = []
    blocks = {"summary": view.screen, "text": view.screen}.get(kind) or view.blocks
    for block in (view.title, *blocks, *more):
        if isinstance(block, str):
            shown += filter(None, [block])
        elif isinstance(block, Rejections):
            shown += [f"[red]{name}[/red]: {reason}" for name, reason in block.reasons.items()]
        elif isinstance(block, Facts) and block.rows:
            shown.append(facts_table(block.title, [(fact.label, *fact.texts()) for fact in block.rows]))
        elif isinstance(block, Table) and block.rows:
            shown.append(draw_table(block))
    notes = note_lines([*view.notes, *getattr(answer, "warnings", ())])
    return [*shown, *notes, *filter(None, (currency_note(),))]


def draw_table(table: Table) -> "RichTable":
    """Return a table for a terminal: the first column and texts left-aligned, an interval below its number."""
    sides = [
        "left" if (i == 0 and not table.numbered) or column.unit.left else "right"
        for i, column in enumerate(table.columns)
    ]
    heads = (name_units(column.heading, STANDARD) for column in table.columns)
    lines = empty_table(table.title, *zip(heads, sides, strict=True))  # type: ignore[arg-type]
    lines.columns[0].no_wrap = not table.wrap
    for row in table.rows:
        cells = (column.texts(row) for column in table.columns)
        lines.add_row(*(f"{text}\n[dim]{within}[/dim]" if within else text for text, within in cells))
    return lines


def table_records(table: Table, units: Units = STANDARD) -> list[dict[str, object]]:
    """Return for each row of a table a dict of numbers by column heading, as precise as the displayed texts. A
    repeated heading is preceded by the heading of the previous column."""
    if table.records:
        return [{name_units(name, units): value for name, value in each.items()} for each in table.records]
    heads: list[str] = []
    for column in table.columns:
        heading = name_units(column.heading, units)
        unit = column.unit.after or (column.unit.reader_unit(units) if column.unit.show else "")
        heading += phrase(", {}", unit)
        heads.append(f"{heads[-1]}, {heading}" if heading in heads else heading)
    return [
        {
            heading + end: value
            for heading, column in zip(heads, table.columns, strict=True)
            for end, value in _cell_values(column.unit, column.value_of(row), units)
        }
        for row in table.rows
    ]


def _cell_values(unit: Unit, value: Any, units: Units) -> Iterator[tuple[str, object]]:
    """Yield pairs of a heading suffix ("", " low", " high") and a number: the cell's value and its interval's bounds.
    The interval limits the digits; a number without an interval has at least three."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Quantity)):
        yield "", value if value is None or isinstance(value, bool) else convert_amounts(str(value))
        return
    number = (value if isinstance(value, Quantity) else Quantity(value=value)).scale(unit.scale_for(units))
    for name, end in {"": number.value, " low": number.low, " high": number.high}.items():
        if end is not None and unit.significant:
            yield name, round_like(end, digits=unit.significant)
        elif end is not None:
            digits = 3 if unit.show or unit.text or unit.symbol else unit.digits_for(units)
            short = number.low is not None or abs(end) < 10.0 ** (2 - digits)
            yield name, round_like(end, number) if short else round(end, digits) if digits else round(end)
