"""What every chart shares: a palette for colour-blind readers, marks beside colours, words beside the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from typing import Any

from capacity.base.html import page_html, records_html
from capacity.report.display import join_words

# Okabe and Ito's palette (jfly.uni-koeln.de/color, 2008), without the black that a dark page hides
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
PATTERNS = ("", "/", "x", ".", "-", "|")
MODE_BAR = 40  # pixels above the plot, for the tools
listed = join_words
NEUTRAL = "#8a8a8a"  # told from black and from white


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture of an answer. `name` is a file's name, `alt` says in a sentence or two what it shows, `rows` are the
    numbers behind it, as a table for those who would rather read, and `subject` says of what they are."""

    name: str
    title: str
    alt: str
    figure: Any
    rows: tuple[Mapping[str, Any], ...]
    subject: str = ""

    def svg(self, made: date | None = None) -> str:
        """The figure as a static picture, dark on white, with its title, subject and the day that it was `made`."""
        return self._draw("svg", made).decode()

    def png(self, made: date | None = None) -> bytes:
        """The same picture as a PNG."""
        return self._draw("png", made)

    def _draw(self, format: str, made: date | None) -> bytes:
        from capacity.report.figures.picture import draw_picture  # loads numpy

        return draw_picture(self.figure, format, title=self.title, subtitle=self.stamp(made), alt=self.alt)

    def figure_html(self, made: date | None = None) -> str:
        """The picture as a part of a page; its numbers without matplotlib."""
        from capacity.report.figures.picture import can_draw

        if can_draw():
            return f"<figure>{self.svg(made)}</figure>"
        return f"<h3>{escape(self.title)}</h3>{records_html(self.rows)}"

    def stamp(self, made: date | None = None) -> tuple[str, ...]:
        """What a copy says of itself: of what it is, and by what and when it was made."""
        return tuple(filter(None, (self.subject, made_by(made))))

    def html(self, made: date | None = None) -> str:
        """The picture and its numbers as one small file that needs nothing else."""
        body = f"<figure>{self.svg(made)}</figure><p>{escape(self.alt)}</p>{records_html(self.rows)}"
        return page_html(self.title, body)


def made_by(made: date | None = None) -> str:
    """`capacity 0.1.0, 2026-11-22`; None: today."""
    from importlib.metadata import version

    return f"capacity {version('llm-capacity')}, {made or date.today()}"


def coordinates(points: Iterable[tuple[Any, Any]]) -> dict[str, list[Any]]:
    """The x and the y of points, as a trace takes them."""
    pairs = list(points)
    return {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]}


def symbol(index: int) -> str:
    """The marker of the n-th series: colour is never the only difference."""
    return SYMBOLS[index % len(SYMBOLS)]


def colour(index: int) -> str:
    """The colour of the n-th series."""
    return PALETTE[index % len(PALETTE)]


def pattern(index: int) -> str:
    """The hatching of the n-th kind of bar."""
    return PATTERNS[index % len(PATTERNS)]


def bar_style(index: int) -> dict[str, object]:
    """How bars of the n-th kind look: colour, hatching over it, and text that is read on both."""
    hatched = {"shape": pattern(index), "fillmode": "overlay", "solidity": 0.15, "size": 7}
    return {
        "marker": {
            "color": colour(index),
            "pattern": {**hatched, "fgcolor": "rgba(255,255,255,0.75)"},
            "line": {"width": 1, "color": colour(index)},
        },
        "insidetextfont": {"color": "#ffffff" if index % len(PALETTE) == 0 else "#000000", "size": 13},
        "outsidetextfont": {"size": 12},
        "cliponaxis": False,
    }


def layout(figure: Any, *, x: str, y: str, height: int = 360, **more: Any) -> Any:
    """Axis titles, the legend below, tools above; transparent, so that light and dark pages both work."""
    figure.update_layout(
        xaxis_title=x,
        yaxis_title=y,
        height=height,
        margin={"l": 10, "r": 20, "t": MODE_BAR, "b": 10},
        legend={  # at the foot of the picture, whose plot makes room for it, however many lines it takes
            "orientation": "h",
            "yref": "container",
            "yanchor": "bottom",
            "y": 0,
            "x": 0,
            "traceorder": "normal",
        },
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": NEUTRAL, "activecolor": PALETTE[0]},
        hovermode="closest",
        **more,
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten from below `low` to above `high`; over more than three powers, 1 alone."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    return [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]


def log_axis(values: Sequence[float]) -> Mapping[str, Any]:
    """A logarithmic axis that can be read: what it spans, with ticks at 1, 2 and 5."""
    positive = [value for value in values if value > 0]
    if not positive:
        return {"type": "log"}
    ticks = log_ticks(min(positive), max(positive))
    return {"type": "log", "tickvals": ticks, "ticktext": [digits(tick) for tick in ticks]}


def digits(value: float) -> str:
    """Four digits, or as many as stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
