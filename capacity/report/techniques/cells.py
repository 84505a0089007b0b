"""Tables of records: columns as headings with a cell each, and a table for a record that has none of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from capacity.report.layout import GIB, Side, grid

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from capacity.answers.records import GpuSummary
    from capacity.base.record import AnswerRecord

    Part = RenderableType
else:
    Part = object

Row = TypeVar("Row")
Cell = Callable[[Row], str]
Columns = list[tuple[str, Cell[Row]]]
PROSE = ("remark", "published quality", "weights", "KV cache", "calibration")
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


class OfAPool(Protocol):
    """An answer that names its pool."""

    @property
    def model(self) -> str: ...
    @property
    def gpu(self) -> GpuSummary: ...
    @property
    def engine(self) -> str: ...


def table(title: str, rows: Sequence[Row], columns: Sequence[tuple[str, Cell[Row]]]) -> Part:
    """A table of records: the first column and those of prose to the left, numbers to the right."""
    sides: list[Side] = [
        "left" if i == 0 or heading in PROSE else "right" for i, (heading, _) in enumerate(columns)
    ]
    lines: Table = grid(title, *((heading, side) for (heading, _), side in zip(columns, sides, strict=True)))
    lines.columns[0].no_wrap = True
    for row in rows:
        lines.add_row(*(cell(row) for _, cell in columns))
    return lines


def number(key: str, scale: float = 1.0, digits: int = 2) -> Cell[object]:
    """A number of the record in another unit; "-" where it is None."""

    def cell(row: object) -> str:
        value = getattr(row, key)
        return "-" if value is None else f"{value * scale:,.{digits}f}"

    return cell


def text(key: str) -> Cell[object]:
    """Whatever the record says, as text."""
    return lambda row: str(getattr(row, key))


def yes(key: str) -> Cell[object]:
    """A flag as yes or no."""
    return lambda row: "yes" if getattr(row, key) else "no"


def percent(key: str, digits: int = 1) -> Cell[object]:
    """A fraction as %."""

    def cell(row: object) -> str:
        value = getattr(row, key)
        return "-" if value is None else f"{value:.{digits}%}"

    return cell


def tokens(count: int | None) -> str:
    """4096 as 4K, 1048576 as 1M; None: no limit."""
    if count is None:
        return "no limit"
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return f"{count:,}"


def headline(answer: OfAPool) -> str:
    """Model, GPUs and engine in one line."""
    gpu = answer.gpu
    return f"[bold]{answer.model}[/bold] on [bold]{gpu.count} x {gpu.name}[/bold], {answer.engine}"


def notes(warnings: Sequence[str]) -> list[Part]:
    """A line for each warning."""
    return [f"[yellow]note:[/yellow] {warning}" for warning in warnings]


def record_parts(answer: AnswerRecord) -> list[Part]:
    """Any answer, by the units in the names of its fields: its values in lines, tables for each tuple of records."""
    values = {field.name: getattr(answer, field.name) for field in fields(answer)}  # type: ignore[arg-type]
    warnings = values.pop("warnings", ())
    parts: list[Part] = []
    if values.keys() >= POOL:
        parts.append(headline(answer))  # type: ignore[arg-type]
    for name, value in values.items():
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            parts += _tables(name.replace("_", " "), value)
        elif not (values.keys() >= POOL and name in POOL):
            heading, cell = _column(name, [answer])
            parts.append(f"{heading}: {cell(answer)}")
    return [*parts, *notes(warnings)]


def _tables(title: str, rows: Sequence[Any]) -> list[Part]:
    """Every field of the rows, `WIDTH` of them a table beside the first."""
    first, *others = (_column(field.name, rows) for field in fields(rows[0]))
    starts = range(0, max(len(others), 1), WIDTH)
    return [table(title, rows, [first, *others[start : start + WIDTH]]) for start in starts]


def _column(name: str, records: Sequence[object]) -> tuple[str, Cell[object]]:
    values = [value for record in records if (value := getattr(record, name)) is not None]
    words = name.replace("_", " ")
    if not all(type(value) in (int, float) for value in values):
        return words, yes(name) if all(isinstance(value, bool) for value in values) else text(name)
    unit = next((unit for unit in UNITS if name.endswith(unit) and "_per_" not in name), "")
    if not unit:
        return words, number(name, 1, 0 if all(isinstance(value, int) for value in values) else 2)
    largest = max(map(abs, values), default=0.0)
    shown, scale = next(((u, s) for u, s in UNITS[unit] if largest * s >= 1), UNITS[unit][-1])
    return f"{words.removesuffix(unit.replace('_', ' '))} {shown}", number(name, scale)
