"""What an answer shows, as data: figures, lines, tables and charts. What draws a view knows no answer."""

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
    """A figure: label, value, unit, and a note beside it, in whose place `missing` stands where the value is None.

    `first`: its label among the figures to see first, and `instead`: the two texts that stand there in place of it.
    """

    label: str
    value: Any
    unit: Unit = COUNT
    note: str = ""
    missing: str = ""
    first: str = ""
    instead: tuple[str, str] | None = None

    def texts(self, units: Units = STANDARD) -> tuple[str, str]:
        """Return the value, and interval and note."""
        text, within = self.unit.texts(self.value, units)
        return text, self.missing if self.value is None else "; ".join(filter(None, (within, self.note)))


class Facts(NamedTuple):
    """A line for each figure; none, no table."""

    title: str
    rows: Sequence[Fact]


class Column(NamedTuple):
    """A value of each row, under a heading in which `{time}` and `{memory}` are the reader's units."""

    heading: str
    path: Path
    unit: Unit = WORDS


@dataclass(frozen=True, slots=True)
class Table:
    """A line for each record; none, no table. `name`: its file's; empty: the first words of the title. `numbered`: the
    first column holds numbers and not names; `wrap`: it may wrap too. `records`: the rows of tables that sort, where a
    cell holds several numbers."""

    title: str
    rows: Sequence[Any]
    columns: Sequence[Column]
    name: str = ""
    numbered: bool = False
    wrap: bool = False
    records: Sequence[Mapping[str, object]] = ()


class Refused(NamedTuple):
    """What cannot be, and why."""

    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart: a file's `name`, a title, words for who does not see it, and its data: values (numbers, quantities with
    an interval, or None) by series, then by label or place on the x axis; without any there is no chart.

    `labels` and `axis` say what labels and values are; `reference`: a value with a line through it, and its words;
    `marks`: words of upright lines, and where they stand on the x axis; `wholes`: sums of a `Stack` with an interval;
    `note`: how to read it; `linear`: the x axis is; `shares`: labels are shares of 1, on a linear axis; `top`: where
    the y axis ends; `rows`: the numbers behind it, if more; `ends`: where the axis of `Bars` ends, which cuts them.
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
    """Horizontal bars, those of a label beside each other, with whiskers over intervals; logarithmic ones from 1."""


class Stack(Drawing):
    """Horizontal bars, the values of a label one behind the other; of a single label the legend has the values."""


class UprightStack(Drawing):
    """Vertical bars of counts, those of a label upon each other."""


class Panels(Drawing):
    """Vertical bars of several quantities, a panel for each series, whose name says its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall(Drawing):
    """Horizontal bars from each value of the one series to the next, on a logarithmic axis: equal lengths are equal
    factors. `rising`: more is better."""

    rising: bool = False


class Curves(Drawing):
    """Lines over a logarithmic x axis with a tick at each point; whiskers over intervals."""


class OwnChart(NamedTuple):
    """A chart that a function of its own draws in the reader's units."""

    draw: Callable[[Units], Chart]


Block = str | Facts | Table | Refused | Drawing | OwnChart


class View(NamedTuple):
    """What is shown of an answer: a title, and blocks in order. Its notes and the answer's own always stand last.

    `detail`: what a terminal shows on request, in whose place `brief` stands otherwise; `screen`: what it shows then in
    place of the blocks.
    """

    title: str
    blocks: Iterable[Block]
    detail: Iterable[Block] = ()
    brief: str = ""
    notes: Sequence[str] = ()
    screen: Iterable[Block] = ()


def compared_text(busiest: Window | None) -> str:
    """Return a further line on the part of longer traffic that is compared."""
    if busiest is None:
        return ""
    return f"\nCompared on the busiest {busiest.lasts}: {busiest.text}, {busiest.requests:,} requests"


def headline(answer: Any) -> str:
    """Return model, GPUs and engine in one line."""
    gpu = answer.gpu
    return f"[bold]{answer.model}[/bold] on [bold]{gpu.count} x {gpu.name}[/bold], {answer.engine}"
