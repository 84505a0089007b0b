"""Parts shared by all charts: a palette for colour-blind readers, a marker for each colour, and export as an image."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from typing import Any

from capacity.base.html import page_html, records_html
from capacity.report.display import join_words

# palette of Okabe and Ito (jfly.uni-koeln.de/color, 2008) without black, which is invisible on a dark page
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
PATTERNS = ("", "/", "x", ".", "-", "|")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MODE_BAR = 40  # pixels above the plot, for the tools
listed = join_words
NEUTRAL = "#8a8a8a"  # visible on black and on white


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of an answer, with its data.

    `name` is used in file names, `alt` is the alternative text, `rows` are the numbers behind the chart, and `subject`
    describes the answer in one line.
    """

    name: str
    title: str
    alt: str
    figure: Any
    rows: tuple[Mapping[str, Any], ...]
    subject: str = ""

    def svg(self, made: date | None = None) -> str:
        """Return the chart as a static SVG image, dark on white, with title, subject and date `made` (None: today)."""
        return self._draw("svg", made).decode()

    def png(self, made: date | None = None) -> bytes:
        """Return the chart as a PNG image, dark on white, with title, subject and date `made` (None: today)."""
        return self._draw("png", made)

    def _draw(self, format: str, made: date | None) -> bytes:
        from capacity.report.figures.picture import draw_picture  # loads numpy

        subtitle = tuple(filter(None, (self.subject, version_and_date(made))))
        return draw_picture(self.figure, format, title=self.title, subtitle=subtitle, alt=self.alt)

    def _repr_svg_(self) -> str:
        """Return the chart as SVG, which notebooks display."""
        return self.svg()

    def figure_html(self, made: date | None = None) -> str:
        """Return the chart as an HTML element; without matplotlib, return a table of its numbers."""
        from capacity.report.figures.picture import can_draw

        if can_draw():
            return f"<figure>{self.svg(made)}</figure>"
        return f"<h3>{escape(self.title)}</h3>{records_html(self.rows)}"

    def html(self, made: date | None = None) -> str:
        """Return the chart and a table of its numbers as one self-contained HTML file."""
        body = f"<figure>{self.svg(made)}</figure><p>{escape(self.alt)}</p>{records_html(self.rows)}"
        return page_html(self.title, body)


def version_and_date(made: date | None = None) -> str:
    """Return the version of `capacity` and a date: `capacity 0.1.0, 2026-11-22`; without `made`, the date is today."""
    from importlib.metadata import version

    return f"capacity {version('llm-capacity')}, {made or date.today()}"


def new_figure(**panels: Any) -> Any:
    """Return an empty plotly figure; `panels`: options of `make_subplots`, for stacked panels."""
    from plotly.graph_objects import Figure  # takes long to import

    return Figure().set_subplots(cols=1, shared_xaxes=True, **panels) if panels else Figure()


def symbol(index: int) -> str:
    """Return the marker of the n-th series, so that colour is never the only difference."""
    return SYMBOLS[index % len(SYMBOLS)]


def colour(index: int) -> str:
    """Return the colour of the n-th series."""
    return PALETTE[index % len(PALETTE)]


def bar_style(index: int) -> dict[str, object]:
    """Return the style of the n-th series of bars: colour, hatching, and a text colour with enough contrast."""
    hatched = {"shape": PATTERNS[index % len(PATTERNS)], "fillmode": "overlay", "solidity": 0.15, "size": 7}
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


def apply_layout(figure: Any, *, x: str, y: str, height: int = 360, **more: Any) -> Any:
    """Set axis titles, the legend below the plot, the toolbar above, and a transparent background."""
    layout = {
        "xaxis_title": x,
        "yaxis_title": y,
        "height": height,
        "margin": {"l": 10, "r": 20, "t": MODE_BAR, "b": 10},
        "legend": {  # below the plot, which shrinks to leave room for it
            "orientation": "h",
            "yref": "container",
            "yanchor": "bottom",
            "y": 0,
            "x": 0,
            "traceorder": "normal",
        },
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": NEUTRAL, "activecolor": PALETTE[0]},
        "hovermode": "closest",
    }
    for name, value in {**layout, **more}.items():  # `update_layout` takes five times as long
        figure.layout[name] = value
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        axis.automargin = True
    return figure


def log_ticks(low: float, high: float) -> list[float]:
    """Return ticks around a range: powers of ten; if the range has at most three powers, also 2 and 5 times each."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    return [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]


def log_axis(values: Sequence[float]) -> Mapping[str, Any]:
    """Return the plotly options of a logarithmic axis that covers these values, with the ticks of `log_ticks`."""
    positive = [value for value in values if value > 0]
    if not positive:
        return {"type": "log"}
    ticks = log_ticks(min(positive), max(positive))
    return {"type": "log", "tickvals": ticks, "ticktext": [four_digits(tick) for tick in ticks]}


def four_digits(value: float) -> str:
    """Return a number with four significant digits; from 1,000 on, rounded to an integer."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
