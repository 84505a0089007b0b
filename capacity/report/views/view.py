"""Content of an answer as data: figures, lines, tables and charts. Renderers of views know no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from capacity.base.quantity import Quantity
from capacity.report.display import STANDARD, Units
from capacity.report.views.units import COUNT, WORDS, Path, Unit

if TYPE_CHECKING:
    from capacity.report.figures.chart import Chart
    from capacity.workload.windows import Window


class Fact(NamedTuple):
    """A figure: label, value, unit and note; `missing` replaces the note if the value is None.

    `first`: its label among the most important figures. `instead`: two texts that replace value and note there.
    """

    label: str
    value: Any
    unit: Unit = COUNT
    note: str = ""
    missing: str = ""
    first: str = ""
    instead: tuple[str, str] | None = None

    def texts(self, units: Units = STANDARD) -> tuple[str, str]:
        """Return the value as text, and its interval and note."""
        text, within = self.unit.texts(self.value, units)
        return text, self.missing if self.value is None else "; ".join(filter(None, (within, self.note)))


class Facts(NamedTuple):
    """A table of figures, one line each; not shown without rows."""

    title: str
    rows: Sequence[Fact]


class Column(NamedTuple):
    """A value of each row, under a heading in which `{time}` and `{memory}` are the reader's units."""

    heading: str
    path: Path
    unit: Unit = WORDS


@dataclass(frozen=True, slots=True)
class Table:
    """A line for each record; not shown without rows.

    `name`: its file's name, by default the first words of the title. `numbered`: the first column contains numbers,
    not names. `wrap`: the first column may wrap. `records`: the rows of sortable tables, if a cell contains several
    numbers.
    """

    title: str
    rows: Sequence[Any]
    columns: Sequence[Column]
    name: str = ""
    numbered: bool = False
    wrap: bool = False
    records: Sequence[Mapping[str, object]] = ()


class Rejections(NamedTuple):
    """Rejected items, with reasons."""

    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart: file `name`, title, alternative text, and data: values (numbers, quantities with an interval, or None)
    by series, then by label or position on the x axis. Without data there is no chart.

    `labels` and `axis`: titles of the label axis and the value axis. `reference`: a value with a line through it, and
    its label. `marks`: labels of vertical lines, and their positions on the x axis. `wholes`: totals of a `Stack` with
    an interval. `note`: how to read the chart. `linear`: the x axis is linear. `shares`: labels are shares of 1 on a
    linear axis. `top`: upper end of the y axis. `rows`: more numbers behind the chart. `ends`: range of the axis of
    `Bars`, which cuts longer bars.
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
    marks: Mapping[str, float] = field(default_factory=dict)
    wholes: Mapping[Any, Quantity | None] = field(default_factory=dict)
    note: str = ""
    linear: bool = False
    top: float | None = None
    shares: bool = False
    rows: Sequence[Mapping[str, object]] = ()
    ends: tuple[float, float] | None = None


class Bars(Drawing):
    """Horizontal bars, grouped by label, with whiskers for intervals; logarithmic bars begin at 1."""


class Stack(Drawing):
    """Stacked horizontal bars; with a single label, the legend contains the values."""


class VerticalStack(Drawing):
    """Stacked vertical bars of counts."""


class Panels(Drawing):
    """Vertical bars of several quantities, one panel for each series; the series' name contains its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall(Drawing):
    """Horizontal bars from each value of one series to the next, on a logarithmic axis: equal lengths are equal
    factors. `rising`: higher values are better."""

    rising: bool = False


class Curves(Drawing):
    """Lines over a logarithmic x axis with a tick at each point, and whiskers for intervals."""


class CustomChart(NamedTuple):
    """A chart drawn by its own function in the reader's units."""

    draw: Callable[[Units], Chart]


Block = str | Facts | Table | Rejections | Drawing | CustomChart


class View(NamedTuple):
    """The content of an answer: a title, and blocks in order. The notes of the view and of the answer come last.

    `detail`: additional blocks on request; otherwise a terminal shows `brief`. `screen`: blocks that replace the
    others then.
    """

    title: str
    blocks: Iterable[Block]
    detail: Iterable[Block] = ()
    brief: str = ""
    notes: Sequence[str] = ()
    screen: Iterable[Block] = ()


def busiest_window_text(busiest: Window | None) -> str:
    """Return a line on the part of longer traffic that is compared."""
    if busiest is None:
        return ""
    return f"\nCompared on the busiest {busiest.duration}: {busiest.text}, {busiest.requests:,} requests"


def headline(answer: Any) -> str:
    """Return model, GPUs and engine in one line."""
    gpu = answer.gpu
    return f"[bold]{answer.model}[/bold] on [bold]{gpu.count} x {gpu.name}[/bold], {answer.engine}"
