"""Views on a terminal and on printed pages, and their tables as numbers for tables that sort and for files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from capacity.base.quantity import Quantity
from capacity.report.display import STANDARD, Units, rounded
from capacity.report.layout import Part, facts, grid, notes
from capacity.report.views.units import Unit, name_units, value_at
from capacity.report.views.view import Fact, Facts, Table, View

if TYPE_CHECKING:
    from rich.table import Table as RichTable


def parts(view: View, answer: Any) -> list[Part]:
    """Return title, tables, lines and notes as a terminal shows them."""
    shown: list[Part] = [view.title] if view.title else []
    for block in view.blocks:
        if isinstance(block, str):
            shown.append(block)
        elif isinstance(block, Facts):
            shown.append(facts(block.title, (fact_texts(fact) for fact in block.rows)))
        elif isinstance(block, Table) and block.rows:
            shown.append(draw_table(block))
    return [*shown, *notes(getattr(answer, "warnings", ()))]


def fact_texts(fact: Fact, units: Units = STANDARD) -> tuple[str, str, str]:
    """Return label, value and note of a fact, its interval before the note; no note where there is no value."""
    text, within = fact.unit.texts(fact.value, units)
    return fact.label, text, "" if fact.value is None else "; ".join(filter(None, (within, fact.note)))


def draw_table(table: Table) -> RichTable:
    """Return a table for a terminal: the first column and words to the left, an interval below its number."""
    sides = ["left" if i == 0 or column.unit.left else "right" for i, column in enumerate(table.columns)]
    heads = (name_units(column.heading, STANDARD) for column in table.columns)
    lines = grid(table.title, *zip(heads, sides, strict=True))  # type: ignore[arg-type]
    lines.columns[0].no_wrap = not table.wrap
    for row in table.rows:
        cells = (unit.texts(value_at(row, path)) for _, path, unit in table.columns)
        lines.add_row(*(f"{text}\n[dim]{within}[/dim]" if within else text for text, within in cells))
    return lines


def table_records(table: Table, units: Units = STANDARD) -> list[dict[str, object]]:
    """Return rows by heading, in numbers that say no more than the texts do; a heading that is there already follows
    the one before it."""
    if table.records:
        return [dict(record) for record in table.records]
    heads: list[str] = []
    for column in table.columns:
        heading = name_units(column.heading, units) + (f", {column.unit.after}" if column.unit.after else "")
        heads.append(f"{heads[-1]}, {heading}" if heading in heads else heading)
    return [
        {
            heading + end: value
            for heading, column in zip(heads, table.columns, strict=True)
            for end, value in _values(column.unit, value_at(row, column.path), units)
        }
        for row in table.rows
    ]


def _values(unit: Unit, value: Any, units: Units) -> Iterator[tuple[str, object]]:
    """A value, and the ends of its interval where it has one; at least three digits of a number without one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Quantity)):
        yield "", value if value is None or isinstance(value, bool) else str(value)
        return
    number = (value if isinstance(value, Quantity) else Quantity(value=value)).scaled(unit.scale_in(units))
    ends = {"": number.value} if unit.show else {"": number.value, " low": number.low, " high": number.high}
    for name, end in ends.items():
        if end is not None:
            digits = unit.digits_in(units)
            short = number.low is not None or abs(end) < 10.0 ** (2 - digits)
            yield name, rounded(end, number) if short else round(end, digits) if digits else round(end)
