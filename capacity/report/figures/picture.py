"""Draw a figure as SVG or PNG with matplotlib, without a browser: dark on white, with its title and subject.

Of plotly's figures it draws what the package's charts contain: lines, bands, points and bars with whiskers and labels
on linear, logarithmic and category axes, lines across, notes, a colour scale and a legend.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.base.foreign import printable

WIDTH, HEIGHT = 860, 360  # points, which are pixels at 72 dots an inch; the height without title and legend
MARGIN, LINE = 10, 18
COLOUR_BAR = 110  # points at the right of a figure with a colour scale
DPI = 144  # of a PNG
INK, FAINT, GRID = "#1c2733", "#55606e", "#dde3ea"
DASHES = {"dash": "--", "dot": ":"}
MARKERS = {
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "x": "X",
    "star": "*",
    "line-ns": "|",
}
# of words at that side of a point
ALIGNED = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
STYLE = {
    "font.size": 12,
    "font.sans-serif": ["DejaVu Sans"],
    "text.color": INK,
    "text.parse_math": False,  # a dollar is a dollar
    "axes.edgecolor": GRID,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "errorbar.capsize": 4,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "svg.fonttype": "none",  # words stay words
    "svg.hashsalt": "capacity",  # the same figure gives the same file
}
NEEDED = "pictures need matplotlib: pip install 'llm-capacity[charts]'"
SPARE = re.compile(  # what stands before an SVG element, metadata, comments, names of groups, spaces
    r'\A.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->| id="\w+[._]\w+"|(?<=>)\s+(?=<)', re.S
)
DRAWING = Lock()  # matplotlib's settings belong to the process
Names = Sequence[str] | None  # the categories of an axis


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw_picture(
    figure: Any, format: str, *, title: str, subtitle: Sequence[str] = (), alt: str = ""
) -> bytes:
    """Draw a plotly figure as a file of `format`, `svg` or `png`; `subtitle` are lines below its title.

    Raises InvalidInput without matplotlib.
    """
    if not can_draw():
        raise InvalidInput(NEEDED)
    import matplotlib as mpl

    about = {"Title": printable(alt or title), "Date": None, "Creator": None, "Format": None, "Type": None}
    file = BytesIO()
    with DRAWING, mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's fonts draw it
        drawn = _Picture(figure, title, subtitle).drawn
        drawn.savefig(file, format=format, dpi=DPI, metadata=about if format == "svg" else None)
    return file.getvalue() if format == "png" else _svg_element(file.getvalue())


def _svg_element(document: bytes) -> bytes:
    """Return the SVG element for a page, without invisible metadata."""
    text = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', SPARE.sub("", document.decode()), count=2)
    return text.replace("<svg ", '<svg role="img" ', 1).encode()


class _Picture:
    """A matplotlib figure, `drawn`, of a plotly figure."""

    def __init__(self, figure: Any, title: str, subtitle: Sequence[str]) -> None:
        from matplotlib.figure import Figure

        self.layout = figure.layout
        self.drawn = Figure(dpi=72)
        self.paper = self.drawn.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
        self.scale: Any = None  # the points with a colour scale, and what it says
        self.outside: list[Any] = []  # labels of bars beyond their ends
        self.inside: list[tuple[Any, Any]] = []  # bars and the labels in them
        traces = [trace for trace in figure.data if trace.visible in (None, True)]
        pairs = dict.fromkeys((_number(trace.xaxis), _number(trace.yaxis)) for trace in traces) or [("", "")]
        self.axes = {x: (self.layout[f"xaxis{x}"], self.layout[f"yaxis{y}"]) for x, y in pairs}
        self.panels: Mapping[str, Any] = {x: self.drawn.add_axes((0, 0, 1, 1), label=x) for x, _ in pairs}
        names: dict[str, list[Names]] = {}
        for x, panel in self.panels.items():
            own = [trace for trace in traces if _number(trace.xaxis) == x]
            names[x] = [
                _categories(axis, own, letter) for axis, letter in zip(self.axes[x], "xy", strict=True)
            ]
            self._draw_panel(panel, own, *names[x])
        for x, panel in self.panels.items():
            if other := self.axes[x][0].matches:
                panel.sharex(self.panels[_number(other)])
        last = figure.frames[-1].layout if figure.frames else self.layout  # what moves is left out
        for shape in self.layout.shapes:
            if shape in last.shapes:
                self._draw_shape(shape)
        for x, panel in self.panels.items():
            for drawn, axis, categories in zip(
                (panel.xaxis, panel.yaxis), self.axes[x], names[x], strict=True
            ):
                _set_axis(drawn, axis, categories)
        for note in self.layout.annotations:
            if note in last.annotations:
                self._draw_note(note)
        self._place(title, subtitle)

    def _draw_panel(self, panel: Any, traces: Sequence[Any], across: Names, up: Names) -> None:
        x_axis, y_axis = self.axes[panel.get_label()]
        panel.set(xscale=_scale_name(x_axis), yscale=_scale_name(y_axis))
        bars = [trace for trace in traces if trace.type == "bar"]
        if not bars and all("markers" not in (trace.mode or "") for trace in traces):
            panel.margins(x=0)
        ends: dict[tuple[float, bool], float] = {}
        for number, trace in enumerate(bars):
            self._draw_bars(
                panel, trace, up if trace.orientation == "h" else across, (number, len(bars)), ends
            )
        for trace in traces:
            if trace.type == "scatter":
                self._draw_scatter(panel, trace, _places(trace.x, across), _places(trace.y, up))

    def _draw_scatter(self, panel: Any, trace: Any, x: Sequence[Any], y: Sequence[Any]) -> None:
        mode, line, marker = trace.mode or "lines", trace.line, trace.marker
        symbol = marker.symbol or "circle"
        name = trace.name if trace.showlegend is not False else None
        if trace.fill == "toself":
            panel.fill(x, y, color=_rgba(trace.fillcolor), linewidth=0, label=name)
            return
        first = marker.color if isinstance(marker.color, str) else None
        colour = _rgba(line.color or first or INK)
        edge = _rgba(marker.line.color or first or line.color or INK)
        look = {
            "label": name,
            "marker": MARKERS.get(symbol.removesuffix("-open"), "o") if "markers" in mode else None,
            "alpha": marker.opacity if trace.opacity is None else trace.opacity,
            "clip_on": trace.cliponaxis is not False,
        }
        if marker.colorscale:
            from matplotlib.colors import LinearSegmentedColormap

            colours = LinearSegmentedColormap.from_list("", [tuple(step) for step in marker.colorscale])
            ends = {"cmap": colours, "vmin": marker.cmin, "vmax": marker.cmax}
            area, above = (marker.size or 8) ** 2, {"zorder": 3, "edgecolors": edge}
            points = panel.scatter(x, y, area, marker.color, **look, **ends, **above)
            self.scale = (points, marker.colorbar) if marker.showscale else self.scale
            look = {"marker": None}
        dashes = DASHES.get(line.dash, "-") if "lines" in mode and line.width != 0 else "none"
        (points,) = panel.plot(x, y, color=colour, linewidth=line.width or 2, linestyle=dashes, **look)
        points.set_drawstyle("steps-post" if line.shape == "hv" else "default")
        fill = "none" if symbol.endswith("-open") else _rgba(first or colour)
        points.set(markersize=marker.size or 8, markerfacecolor=fill, markeredgecolor=edge)
        errors = {"xerr": _whiskers(trace.error_x), "yerr": _whiskers(trace.error_y)}
        whisker = _rgba(trace.error_x.color or trace.error_y.color or colour)
        panel.errorbar(x, y, **errors, fmt="none", ecolor=whisker, elinewidth=1.5)
        texts = _column(trace.text) if "text" in mode else ()
        for at, words in zip(zip(x, y, strict=True), texts, strict=False):
            up, _, side = (trace.textposition or "top center").partition(" ")
            shift = {"left": -8, "right": 8}.get(side, 0), {"top": 7, "bottom": -7}.get(up, 0)
            aligned = {"ha": ALIGNED.get(side, "center"), "va": ALIGNED.get(up, "center")}
            panel.annotate(_words(words), at, shift, textcoords="offset points", **aligned)

    def _draw_bars(
        self,
        panel: Any,
        trace: Any,
        names: Names,
        place: tuple[int, int],
        ends: dict[tuple[float, bool], float],
    ) -> None:
        """Draw the bars of one trace, number `place`; `ends` are the ends of the bars that they are stacked on."""
        lying, mode, marker = trace.orientation == "h", self.layout.barmode or "group", trace.marker
        along, over = (trace.y, trace.x) if lying else (trace.x, trace.y)
        at, length = np.asarray(_places(along, names), dtype=float), np.asarray(_column(over), dtype=float)
        wide = np.broadcast_to(trace.width or 0.8, at.shape) / (place[1] if mode == "group" else 1)
        base = np.array(np.broadcast_to(trace.base or 0.0, at.shape), dtype=float)
        if mode == "stack":
            for n, key in enumerate(zip(at, length < 0, strict=True)):
                base[n] = ends.get(key, 0.0)
                ends[key] = base[n] + np.nan_to_num(length[n])
        elif mode == "group":
            at = at + wide * (place[0] - (place[1] - 1) / 2)
        error = trace.error_x if lying else trace.error_y
        bars = (panel.barh if lying else panel.bar)(
            at,
            length,
            wide,
            base,
            color=marker.color,
            hatch=2 * (marker.pattern.shape or "").replace(".", "\\"),  # dots would take most of a file
            edgecolor=(1, 1, 1, 0.75),  # of the hatching
            linewidth=0,
            label=trace.name if trace.showlegend is not False and len(at) else None,
            error_kw={"ecolor": error.color, "elinewidth": 1.5},
            **{"xerr" if lying else "yerr": _whiskers(error)},
        )
        texts = [_words(each) for each in np.broadcast_to("" if trace.text is None else trace.text, at.shape)]
        if trace.textposition == "inside":
            self.inside += zip(bars, panel.bar_label(bars, texts, label_type="center"), strict=True)
            for _, label in self.inside[-len(at) :]:
                label.set_color(trace.insidetextfont.color or INK)
        elif trace.textposition != "none":
            self.outside += panel.bar_label(bars, texts, padding=4)

    def _draw_shape(self, shape: Any) -> None:
        panel, line = self._panel_of(shape), shape.line
        if shape.type == "rect":
            corners = (shape.x0, shape.x1, shape.x1, shape.x0), (shape.y0, shape.y0, shape.y1, shape.y1)
            panel.fill(*corners, color=shape.fillcolor, alpha=shape.opacity, transform=self._transform(shape))
        else:
            look = {"color": line.color, "linewidth": line.width, "linestyle": DASHES.get(line.dash, "-")}
            ends = (shape.x0, shape.x1), (shape.y0, shape.y1)
            panel.plot(*ends, transform=self._transform(shape), scalex=shape.xref == "x", **look)

    def _draw_note(self, note: Any) -> None:
        panel = self._panel_of(note)
        x_axis, y_axis = self.axes[panel.get_label()]
        x = 10**note.x if x_axis.type == "log" and note.xref in (None, "x") else note.x
        y = 10**note.y if y_axis.type == "log" and note.yref in (None, "y") else note.y
        panel.annotate(
            _words(note.text),
            (x, y),
            (note.xshift or 0, note.yshift or 0),
            xycoords=self._transform(note),
            textcoords="offset points",
            ha=note.xanchor or "center",
            va=(note.yanchor or "center").replace("middle", "center"),
            rotation=-(note.textangle or 0),
        )

    def _panel_of(self, mark: Any) -> Any:
        """The panel of a shape or a note; the first for one on the whole."""
        return self.panels.get(
            _number((mark.xref or "x").split(" ")[0]), self.panels[next(iter(self.panels))]
        )

    def _transform(self, mark: Any) -> Any:
        """From the coordinates of a shape or a note to points."""
        from matplotlib.transforms import blended_transform_factory

        def one(ref: str) -> Any:
            if ref == "paper":
                return self.paper.transAxes
            return panel.transAxes if ref.endswith("domain") else panel.transData

        panel = self._panel_of(mark)
        across, up = one(mark.xref or "x"), one(mark.yref or "y")
        return across if across is up else blended_transform_factory(across, up)

    def _place(self, title: str, subtitle: Sequence[str]) -> None:
        """Place the panels between the title and the legend, with room for the labels of their axes."""
        lines = [_words(title), *(row for line in subtitle for row in textwrap.wrap(printable(line), 135))]
        legend = self._legend()
        foot = MARGIN + (legend.get_window_extent().height if legend else 0)
        top, right = MARGIN + LINE * (len(lines) + 2), COLOUR_BAR if self.scale else 2 * MARGIN
        height = top + (self.layout.height or HEIGHT) + foot
        self.drawn.set_size_inches(WIDTH / 72, height / 72)
        for row, words in enumerate(lines):
            look = {"color": FAINT} if row else {"fontsize": 16, "fontweight": "bold"}
            self.drawn.text(MARGIN / WIDTH, 1 - (24 + LINE * row) / height, words, **look)
        left, low = 0.0, foot
        for _ in range(2):  # with less room an axis may have other words
            self._set_positions((left, low, WIDTH - right - left, height - top - low))
            for panel in self.panels.values():
                _turn_words(panel)
            outer = [panel.get_tightbbox() for panel in self.panels.values()]
            left += MARGIN - min(box.x0 for box in outer)
            low += foot - min(box.y0 for box in outer)
        self._set_positions((left, low, WIDTH - right - left, height - top - low))
        if self.scale:
            points, bar = self.scale
            box = self.drawn.add_axes(
                (1 - 90 / WIDTH, low / height + 0.1, 14 / WIDTH, (height - top - low) / height - 0.2)
            )
            self.drawn.colorbar(points, cax=box, ticks=bar.tickvals).set_ticklabels(bar.ticktext)
            box.set_title(_words(bar.title.text), loc="left", fontsize=12)
        for label in self.outside:
            _widen(label)
        for bar, label in self.inside:
            label.set_visible(label.get_window_extent().width <= bar.get_window_extent().width)

    def _set_positions(self, area: tuple[float, float, float, float]) -> None:
        """Place the panels in an area: left, low, width and height in points."""
        wide, high = self.drawn.get_size_inches() * 72
        self.paper.set_position((area[0] / wide, area[1] / high, area[2] / wide, area[3] / high))
        for x, panel in self.panels.items():
            corners = np.asarray([axis.domain or (0, 1) for axis in self.axes[x]]).T
            (x0, y0), (x1, y1) = np.asarray(area[:2]) + corners * area[2:]
            panel.set_position((x0 / wide, y0 / high, (x1 - x0) / wide, (y1 - y0) / high))

    def _legend(self) -> Any:
        """Draw the legend in as many columns as have room; none for a single entry."""
        drawn = [
            pair
            for panel in self.panels.values()
            for pair in zip(*panel.get_legend_handles_labels(), strict=True)
        ]
        entries = {_words(label): handle for handle, label in reversed(drawn)}
        words, handles = list(entries)[::-1], list(entries.values())[::-1]
        for columns in range(len(words) if len(words) > 1 else 0, 0, -1):
            legend = self.drawn.legend(handles, words, loc="lower left", bbox_to_anchor=(0, 0), ncols=columns)
            if columns == 1 or legend.get_window_extent().width < WIDTH:
                return legend
            legend.remove()
        return None


def _set_axis(axis: Any, source: Any, names: Names) -> None:
    """Give an axis its title, its range and its ticks."""
    from matplotlib import ticker

    axis.set_label_text(_words(source.title.text))
    low, high = axis.get_view_interval()
    if source.rangemode == "tozero":
        low = min(low, 0.0)
    if source.range:
        low, high = (10.0**end for end in source.range) if source.type == "log" else source.range
    texts = dict(zip(_column(source.tickvals), _column(source.ticktext or source.tickvals), strict=True))
    if names is not None:
        low, high = -0.5, len(names) - 0.5
        texts = {place: texts.get(name, name) for place, name in enumerate(names)}
    axis.set_view_interval(low, high, ignore=True)
    if texts:
        shown = {value: _words(text) for value, text in texts.items() if low <= value <= high}
        axis.set_ticks(list(shown), shown.values())
    else:
        axis.set_major_formatter(
            ticker.FuncFormatter(lambda value, _: format(value, source.tickformat or ",.10g"))
        )
        if source.type == "log":
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        elif source.dtick:
            axis.set_major_locator(ticker.MultipleLocator(source.dtick))
    axis.set_minor_locator(ticker.NullLocator())
    if source.showticklabels is False:
        axis.set_tick_params(labelleft=False, labelbottom=False)
    if source.autorange == "reversed":
        axis.set_inverted(True)


def _turn_words(panel: Any) -> None:
    """Rotate the tick labels of a panel that would overlap."""
    words = [label.get_window_extent() for label in panel.get_xticklabels() if label.get_text()]
    if any(box.x1 > other.x0 for box, other in pairwise(sorted(words, key=lambda box: box.x0))):
        lines = [label.get_text().replace("\n", " ") for label in panel.get_xticklabels()]
        panel.set_xticks(panel.get_xticks(), lines, rotation=90)


def _widen(label: Any) -> None:
    """Widen the axis of lying bars until the label beyond the end of one is in sight."""
    panel, extent = label.axes, label.get_window_extent()
    box, (low, high) = panel.get_window_extent(), panel.get_xlim()
    room = box.width - extent.width - MARGIN
    if extent.x1 > box.x1:
        panel.set_xlim(low, low + (high - low) * (extent.x0 - box.x0) / room)
    elif extent.x0 < box.x0:
        panel.set_xlim(high - (high - low) * (box.x1 - extent.x1) / room, high)


def _scale_name(axis: Any) -> str:
    return "log" if axis.type == "log" else "linear"


def _number(name: str | None) -> str:
    """`2` of `x2`; empty for the first axis."""
    return (name or "x")[1:]


def _column(values: Any) -> list[Any]:
    return [] if values is None else [values] if isinstance(values, str) else list(values)


def _categories(axis: Any, traces: Sequence[Any], letter: str) -> Names:
    """The names on an axis in their order; None for an axis of numbers."""
    found = dict.fromkeys(value for trace in traces for value in _column(trace[letter]) if value is not None)
    if axis.type != "category" and not any(isinstance(value, str) for value in found):
        return None
    return list(dict.fromkeys([*(name for name in _column(axis.categoryarray) if name in found), *found]))


def _places(values: Any, names: Names) -> list[Any]:
    return [value if names is None else names.index(value) for value in _column(values)]


def _whiskers(error: Any) -> Any:
    """Lengths of whiskers below and above; None without any."""
    if error.array is None or not len(error.array):
        return None
    both = np.asarray([error.arrayminus, error.array], dtype=float)
    return np.where(both.sum(axis=0) > 0, both, np.nan)


def _words(text: Any) -> str:
    """Text without the tags that plotly knows."""
    return printable(re.sub(r"</?(b|i|extra|sup|sub)\s*/?>", "", str(text or "").replace("<br>", "\n")))


def _rgba(colour: str) -> Any:
    """A colour as matplotlib reads it, from `#0072B2` or `rgba(0,114,178,0.18)`."""
    if not colour.startswith("rgba"):
        return colour
    *light, opacity = map(float, re.findall(r"[\d.]+", colour))
    return (*(each / 255 for each in light), opacity)
