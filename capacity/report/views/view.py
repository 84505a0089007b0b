"""What an answer shows, as data: figures, lines, tables and charts. What draws a view knows no answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from capacity.report.views.units import COUNT, WORDS, Path, Unit

if TYPE_CHECKING:
    from capacity.workload.windows import Window


class Fact(NamedTuple):
    """A figure to see first: label, value, unit, and a note below it, which is left out where the value is None."""

    label: str
    value: Any
    unit: Unit = COUNT
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """A line for each fact: label, value and note."""

    title: str
    rows: Sequence[Fact]


class Column(NamedTuple):
    """A value of each row, under a heading in which `{time}` and `{memory}` are the reader's units."""

    heading: str
    path: Path
    unit: Unit = WORDS


@dataclass(frozen=True, slots=True)
class Table:
    """A line for each record; none, no table. `wrap`: the first column may wrap too. `records`: the rows of tables that
    sort, where a cell holds several numbers."""

    title: str
    rows: Sequence[Any]
    columns: Sequence[Column]
    wrap: bool = False
    records: Sequence[Mapping[str, object]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart: a file's `name`, a title, words for who does not see it, and its data: values (numbers, quantities with
    an interval, or None) by series, then by label or place on the x axis; without any there is no chart.

    `labels` and `axis` say what labels and values are; `reference`: a value with a line through it, and its words;
    `note`: how to read it; `shares`: labels are shares of 1, on a linear axis; `rows`: the numbers behind it, if more;
    `ends`: where the axis of horizontal bars ends, which cuts those that go on.
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
    note: str = ""
    shares: bool = False
    rows: Sequence[Mapping[str, object]] = ()
    ends: tuple[float, float] | None = None


class Bars(Drawing):
    """Horizontal bars, those of a label beside each other, with whiskers over intervals; logarithmic ones from 1."""


class Panels(Drawing):
    """Vertical bars of several quantities, a panel for each series, whose name says its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall(Drawing):
    """Horizontal bars from each value of the one series to the next, on a logarithmic axis: equal lengths are equal
    factors. `rising`: more is better."""

    rising: bool = False


class Curves(Drawing):
    """Lines over a logarithmic x axis with a tick at each point; whiskers over intervals."""


Block = str | Facts | Table | Drawing


class View(NamedTuple):
    """What is shown of an answer: a title, and blocks in order. Notes are the answer's own, and always stand last."""

    title: str
    blocks: Iterable[Block]


def compared_text(busiest: Window | None) -> str:
    """Return a further line on the part of longer traffic that is compared."""
    if busiest is None:
        return ""
    return f"\nCompared on the busiest {busiest.lasts}: {busiest.text}, {busiest.requests:,} requests"


def headline(answer: Any) -> str:
    """Return model, GPUs and engine in one line."""
    gpu = answer.gpu
    return f"[bold]{answer.model}[/bold] on [bold]{gpu.count} x {gpu.name}[/bold], {answer.engine}"
