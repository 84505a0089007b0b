"""Content of an answer as data: facts, lines, tables and charts, so that one renderer can display any answer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from capacity.base.quantity import Quantity
from capacity.report.display import STANDARD, Units, phrase
from capacity.report.views.units import COUNT, TEXT, WORDS, Path, Unit, value_at

if TYPE_CHECKING:
    from capacity.report.figures.chart import Chart
    from capacity.workload.windows import Window


S = TypeVar("S")
T = TypeVar("T")


class Fact(NamedTuple):
    """One value of an answer with label, unit and note; if the value is None, `missing` replaces the note.

    `first`: the label in the list of the most important values, or empty to leave the fact out of that list.
    `instead`: two texts that replace value and note in that list.
    """

    label: str
    value: Any
    unit: Unit = COUNT
    note: str = ""
    missing: str = ""
    first: str = ""
    instead: tuple[str, str] | None = None

    def texts(self, units: Units = STANDARD) -> tuple[str, str]:
        """Return two texts: the value, and its interval and note."""
        text, within = self.unit.texts(self.value, units)
        return text, self.missing if self.value is None else "; ".join(filter(None, (within, self.note)))


def known_facts(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts whose value is known."""
    return [fact for fact in facts if fact.value is not None]


class Facts(NamedTuple):
    """A table with one line for each fact; not shown if it is empty."""

    title: str
    rows: Sequence[Fact]


class Column(NamedTuple):
    """A table column; `{time}` and `{memory}` in its heading are replaced by the reader's units.

    `optional`: the table leaves the column out if it has no value in any row.
    """

    heading: str
    path: Path
    unit: Unit = WORDS
    optional: bool = False

    def value_of(self, row: Any) -> Any:
        """Return the cell's value in a row."""
        return value_at(row, self.path)

    def texts(self, row: Any) -> tuple[str, str]:
        """Return the cell's value in a row and its interval as texts."""
        return self.unit.texts(value_at(row, self.path))


@dataclass(frozen=True, slots=True)
class Table:
    """A table with one line for each record; not shown if it is empty.

    `name`: the name of its download, by default the first words of the title. `numbered`: the first column contains
    numbers, not names. `wrap`: the first column may wrap. `records`: the rows for sortable tables, if a cell contains
    several numbers.
    """

    title: str
    rows: Sequence[Any]
    columns: Sequence[Column]
    name: str = ""
    numbered: bool = False
    wrap: bool = False
    records: Sequence[Mapping[str, object]] = ()

    def __post_init__(self) -> None:
        shown = [
            column
            for column in self.columns
            if not column.optional or any(column.value_of(row) is not None for row in self.rows)
        ]
        object.__setattr__(self, "columns", shown)


def side_by_side_table(
    title: str,
    rows: Iterable[tuple[str, Path, Unit]],
    sides: Mapping[str, Any],
    unit: Unit = TEXT,
    name: str = "",
) -> Table:
    """Return a table with a column for each side, and for each metric (label, path, unit) that a side has, a row."""
    lines = [
        (label, *(metric.text_with_interval(value_at(side, path)) for side in sides.values()))
        for label, path, metric in rows
    ]
    columns = (Column(side, str(place), unit) for place, side in enumerate(sides, start=1))
    shown = [line for line in lines if set(line[1:]) != {"-"}]
    return Table(title, shown, [Column("", "0"), *columns], name)


class Rejections(NamedTuple):
    """Rejected items by name, with the reasons."""

    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Base class of charts that a view declares as data; a chart without data is not shown.

    `data`: values (numbers, quantities with an interval, or None) by series, then by label or x position. `name`: file
    name. `alt`: alternative text. `labels` and `axis`: titles of the axis of labels and of the axis of values.
    `reference`: a value at which a line is drawn, and the line's label. `marks`: x positions of vertical lines, by
    label. `wholes`: totals of a `Stack` with an interval. `note`: how to read the chart. `linear`: the x axis is
    linear. `shares`: the x axis is linear and shows fractions as %. `top`: upper end of the y axis. `rows`: additional
    numbers behind the chart. `ends`: range of the value axis of `Bars`; longer bars are cut off.
    """

    name: str
    title: str
    alt: str
    data: Mapping[str, Mapping[Any, Any]]
    unit: Unit = COUNT
    labels: str = ""
    axis: str = ""
    log: bool = False
    reference: tuple[float | None, str] = (None, "")
    marks: Mapping[str, float | None] = field(default_factory=dict)
    wholes: Mapping[Any, Quantity | None] = field(default_factory=dict)
    note: str = ""
    linear: bool = False
    top: float | None = None
    shares: bool = False
    rows: Sequence[Mapping[str, object]] = ()
    ends: tuple[float, float] | None = None


class Bars(Drawing):
    """Horizontal bars, grouped by label, with whiskers for intervals; on a logarithmic axis, bars begin at 1."""


class Stack(Drawing):
    """Stacked horizontal bars; with a single label, the legend contains the values."""


class VerticalStack(Drawing):
    """Stacked vertical bars of counts."""


class Panels(Drawing):
    """Vertical bars of several quantities, one panel for each series; the name of a series contains its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall(Drawing):
    """Horizontal bars from each value of a series to the next; on the logarithmic axis, bar length shows the factor.

    `rising`: higher values are better.
    """

    rising: bool = False


class Curves(Drawing):
    """Lines over a logarithmic x axis with a tick at each point, and whiskers for intervals."""


class CustomChart(NamedTuple):
    """A chart drawn by a function that takes the reader's units; with `fixed`, the function takes no units."""

    draw: "partial[Chart]"
    fixed: bool = False

    def draw_in(self, units: Units) -> "Chart":
        """Return the chart in the reader's units."""
        return self.draw() if self.fixed else self.draw(units)


Block = str | Facts | Table | Rejections | Drawing | CustomChart


class View(NamedTuple):
    """The content of an answer: a title, and blocks in order. The notes of the view and of the answer come last.

    `detail`: additional blocks that are shown on request. In the summary on a terminal, the line `brief` replaces
    `detail`, and `screen`, if given, replaces `blocks`. `main`: the most important facts, by default those of the
    blocks that are marked `first`.
    """

    title: str
    blocks: Iterable[Block]
    detail: Iterable[Block] = ()
    brief: str = ""
    notes: Sequence[str] = ()
    screen: Iterable[Block] = ()
    main: Sequence[Fact] = ()


def blocks_if_known(make: Callable[[T], Iterable[S]], value: T | None) -> Iterable[S]:
    """Return the blocks or facts that `make` returns for a value; none if the value is None."""
    return () if value is None else make(value)


def list_with_heading(heading: str, lines: Iterable[str], indent: str = "  ") -> list[str]:
    """Return a heading and the indented lines; an empty list if there are no lines."""
    texts = [f"{indent}{line}" for line in lines]
    return [heading, *texts] if texts else []


def busiest_window_text(busiest: "Window | None") -> str:
    """Return a line that names the busiest window if only that part of a workload was compared; else empty."""
    return phrase("\nCompared on the busiest {0.duration}: {0.text}, {0.requests:,} requests", busiest)


def headline(answer: Any) -> str:
    """Return model, GPUs and engine of an answer in one line."""
    gpu, model = answer.gpu, getattr(answer.model, "name", answer.model)
    return f"[bold]{model}[/bold] on [bold]{gpu.count} x {gpu.name}[/bold], {answer.engine}"
