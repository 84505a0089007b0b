"""The table of a record that has no view, by the units in the names of its fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from capacity.report.layout import GIB, Part, notes
from capacity.report.views import units
from capacity.report.views.layout import draw_table
from capacity.report.views.units import Unit
from capacity.report.views.view import Column, Table, headline

if TYPE_CHECKING:
    from capacity.base.record import AnswerRecord

POOL = {"model", "gpu", "engine"}
WIDTH = 8  # columns of a table that is drawn by the names of fields
# endings of names that say a unit: how it is shown, and its scale; the first of which the largest value has one
UNITS = {
    "_s": (("ms", 1e3),),
    "seconds": (("ms", 1e3),),
    "_bytes": (("GiB", 1 / GIB), ("MiB", 1 / 2**20), ("KiB", 1 / 2**10)),
    "_fraction": (("%", 100.0),),
    "_share": (("%", 100.0),),
    "flops": (("TFLOP", 1e-12),),
}


def record_parts(answer: AnswerRecord) -> list[Part]:
    """Return any answer by the names of its fields: values in lines, tables for each tuple of records."""
    values = {field.name: getattr(answer, field.name) for field in fields(answer)}  # type: ignore[arg-type]
    warnings = values.pop("warnings", ())
    parts: list[Part] = []
    if values.keys() >= POOL:
        parts.append(headline(answer))
    for name, value in values.items():
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            parts += _tables(name.replace("_", " "), value)
        elif not (values.keys() >= POOL and name in POOL):
            column = _column(name, [answer])
            parts.append(f"{column.heading}: {column.unit.texts(value)[0]}")
    return [*parts, *notes(warnings)]


def _tables(title: str, rows: Sequence[Any]) -> list[Part]:
    """Every field of the rows, `WIDTH` of them a table beside the first."""
    first, *others = (_column(field.name, rows) for field in fields(rows[0]))
    starts = range(0, max(len(others), 1), WIDTH)
    return [draw_table(Table(title, rows, [first, *others[start : start + WIDTH]])) for start in starts]


def _column(name: str, records: Sequence[object]) -> Column:
    values = [value for record in records if (value := getattr(record, name)) is not None]
    words = name.replace("_", " ")
    if not all(type(value) in (int, float) for value in values):
        return Column(words, name, units.TEXT)
    unit = next((unit for unit in UNITS if name.endswith(unit) and "_per_" not in name), "")
    if not unit:
        return Column(words, name, Unit(0 if all(isinstance(value, int) for value in values) else 2))
    largest = max(map(abs, values), default=0.0)
    shown, scale = next(((u, s) for u, s in UNITS[unit] if largest * s >= 1), UNITS[unit][-1])
    return Column(f"{words.removesuffix(unit.replace('_', ' '))} {shown}", name, Unit(2, scale))
