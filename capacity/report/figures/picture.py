"""Render a plotly figure as SVG or PNG with matplotlib, without a browser: dark on white, with title and subject.

It supports the plotly features that this package's charts use: lines, bands, points and bars with whiskers and labels
on linear, logarithmic and category axes, reference lines, annotations, a colour scale and a legend.
"""

import re
import textwrap
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import chain, pairwise
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.base.untrusted_text import printable

WIDTH = 860  # points, which are pixels at 72 dots an inch
MARGIN, LINE = 10, 18
COLOUR_BAR = 110  # points at the right of a figure with a colour scale
DPI = 144  # of a PNG
TEXT_COLOUR, SUBTITLE_COLOUR = "#1c2733", "#55606e"
SETTINGS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
WORDS: Mapping[str, Mapping[str, Any]] = SETTINGS["words"]
MATPLOTLIB_NEEDED = "pictures need matplotlib: pip install 'llm-capacity[charts]'"
INVISIBLE_SVG = re.compile(  # text before the SVG element, metadata, comments, names of groups, spaces
    r'\A.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->| id="\w+[._]\w+"|(?<=>)\s+(?=<)', re.S
)
DRAWING_LOCK = Lock()  # matplotlib's settings are global
Names = Sequence[str] | None  # the categories of an axis


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_drawing() -> None:
    """Raise InvalidInput without matplotlib."""
    if not can_draw():
        raise InvalidInput(MATPLOTLIB_NEEDED)


def draw_picture(
    figure: Any, format: str, *, title: str, subtitle: Sequence[str] = (), alt: str = ""
) -> bytes:
    """Return a plotly figure as `svg` or `png` with title and subtitles. Raises InvalidInput without matplotlib."""
    check_drawing()
    import matplotlib as mpl

    about = {"Title": printable(alt or title), "Date": None, "Creator": None, "Format": None, "Type": None}
    file = BytesIO()
    with DRAWING_LOCK, mpl.rc_context(SETTINGS["style"]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's fonts have the glyph
        drawn = _Picture(figure, title, subtitle).drawn
        drawn.savefig(file, format=format, dpi=DPI, metadata=about if format == "svg" else None)
    return file.getvalue() if format == "png" else _svg_element(file.getvalue())


def _svg_element(document: bytes) -> bytes:
    """Return the SVG element of the document for use in an HTML page, without invisible metadata."""
    text = re.sub(
        r'(width|height)="([\d.]+)pt"', r'\1="\2"', INVISIBLE_SVG.sub("", document.decode()), count=2
    )
    return text.replace("<svg ", '<svg role="img" ', 1).encode()


class _Panel(NamedTuple):
    """A panel: the matplotlib axes (`drawn`), the two plotly axes that they show, and the categories of each axis."""

    drawn: Any
    axes: Sequence[Any]
    names: tuple[Names, Names]


class _Picture:
    """Converts a plotly figure to a matplotlib figure (`drawn`)."""

    def __init__(self, figure: Any, title: str, subtitle: Sequence[str]) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        still = (figure.frames or [figure])[-1].layout  # without animations
        figure = type(figure)(figure.data, figure.layout)
        self.layout = _fill_defaults(figure.layout, "layout")
        self.drawn = Figure(dpi=72)
        FigureCanvasAgg(self.drawn)  # keeps its renderer; without it each text makes one to measure itself
        self.paper = self.drawn.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
        self.scale: Any = None  # the points with a colour scale, and the scale
        self.outside: list[Any] = []  # labels of bars beyond their ends
        self.inside: list[tuple[Any, Any]] = []  # bars and the labels in them
        self.panels: dict[str, _Panel] = {}  # by the number of the x axis; the first has none
        traces = [_fill_defaults(trace, trace.type) for trace in figure.data if trace.visible in (None, True)]
        for x, y in dict.fromkeys((trace.xaxis[1:], trace.yaxis[1:]) for trace in traces) or [("", "")]:
            self._draw_panel(x, y, [trace for trace in traces if trace.xaxis[1:] == x])
        for panel in self.panels.values():
            if other := panel.axes[0].matches:
                panel.drawn.sharex(self.panels[other[1:]].drawn)
        for shape in filter(still.shapes.__contains__, self.layout.shapes):
            self._draw_shape(_fill_defaults(shape, "shape"))
        for panel in self.panels.values():
            _set_axis(panel.drawn.xaxis, panel.axes[0], panel.names[0])
            _set_axis(panel.drawn.yaxis, panel.axes[1], panel.names[1])
        for note in filter(still.annotations.__contains__, self.layout.annotations):
            self._draw_note(_fill_defaults(note, "annotation"))
        self._place_panels(title, subtitle)

    def _draw_panel(self, x: str, y: str, traces: Sequence[Any]) -> None:
        axes = [_fill_defaults(self.layout[name], "axis") for name in (f"xaxis{x}", f"yaxis{y}")]
        names = (_categories(axes[0], traces, "x"), _categories(axes[1], traces, "y"))
        panel = self.panels[x] = _Panel(self.drawn.add_axes((0, 0, 1, 1), label=x), axes, names)
        x_scale, y_scale = (axis.type.replace("category", "linear") for axis in axes)
        panel.drawn.set(xscale=x_scale, yscale=y_scale)
        bars = [trace for trace in traces if trace.type == "bar"]
        lines = [trace for trace in traces if trace.type == "scatter"]
        if not bars and all("markers" not in trace.mode for trace in lines):
            panel.drawn.margins(x=0)
        ends: dict[tuple[float, bool], float] = {}
        for number, trace in enumerate(bars):
            self._draw_bars(panel, trace, (number, len(bars)), ends)
        for trace in lines:
            self._draw_scatter(panel, trace)

    def _draw_scatter(self, panel: _Panel, trace: Any) -> None:
        mode, line, marker, axes = trace.mode, trace.line, trace.marker, panel.drawn
        x, y = _positions(trace.x, panel.names[0]), _positions(trace.y, panel.names[1])
        name = trace.name if trace.showlegend else None
        if trace.fill == "toself":
            axes.fill(x, y, color=_rgba(trace.fillcolor), linewidth=0, label=name)
            return
        first = marker.color if isinstance(marker.color, str) else None
        colour = _rgba(line.color or first or TEXT_COLOUR)
        edge = _rgba(marker.line.color or first or line.color or TEXT_COLOUR)
        shape = WORDS["markers"].get(marker.symbol.removesuffix("-open"), "o")
        look = {
            "label": name,
            "marker": shape if "markers" in mode else None,
            "alpha": marker.opacity if trace.opacity is None else trace.opacity,
            "clip_on": trace.cliponaxis,
        }
        if marker.colorscale:
            from matplotlib.colors import LinearSegmentedColormap

            colours = LinearSegmentedColormap.from_list("", list(map(tuple, marker.colorscale)))
            ends = {"cmap": colours, "vmin": marker.cmin, "vmax": marker.cmax}
            above = {"zorder": 3, "edgecolors": edge}
            points = axes.scatter(x, y, marker.size**2, marker.color, **look, **ends, **above)
            self.scale = (points, marker.colorbar) if marker.showscale else self.scale
            look = {"marker": None}
        dashes = WORDS["dashes"].get(line.dash, "-") if "lines" in mode else "none"
        (points,) = axes.plot(x, y, color=colour, linewidth=line.width, linestyle=dashes, **look)
        points.set_drawstyle(WORDS["steps"].get(line.shape, "default"))
        fill = "none" if marker.symbol.endswith("-open") else _rgba(first or colour)
        points.set(markersize=marker.size, markerfacecolor=fill, markeredgecolor=edge)
        errors = {"xerr": _whiskers(trace.error_x), "yerr": _whiskers(trace.error_y)}
        whisker = _rgba(trace.error_x.color or trace.error_y.color or colour)
        axes.errorbar(x, y, **errors, fmt="none", ecolor=whisker, elinewidth=1.5)
        up, _, side = trace.textposition.partition(" ")
        shift = WORDS["shifts"][side], WORDS["shifts"][up]
        aligned = {"ha": WORDS["aligned"][side], "va": WORDS["aligned"][up]}
        for at, words in zip(zip(x, y, strict=True), _as_list(trace.text) * ("text" in mode), strict=False):
            axes.annotate(_plain_text(words), at, shift, textcoords="offset points", **aligned)

    def _draw_bars(
        self, panel: _Panel, trace: Any, place: tuple[int, int], ends: dict[tuple[float, bool], float]
    ) -> None:
        """Draw the bars of one trace; `place`: index of the trace, number of traces; `ends`: tops of stacks."""
        lying, mode, marker = trace.orientation == "h", self.layout.barmode, trace.marker
        along, over, draw, error, whisker = (
            (trace.y, trace.x, panel.drawn.barh, trace.error_x, "xerr")
            if lying
            else (trace.x, trace.y, panel.drawn.bar, trace.error_y, "yerr")
        )
        at = np.asarray(_positions(along, panel.names[lying]), dtype=float)
        length = np.asarray(_as_list(over), dtype=float)
        wide = np.broadcast_to(trace.width, at.shape) / (place[1] if mode == "group" else 1)
        base = np.array(np.broadcast_to(trace.base, at.shape), dtype=float)
        if mode == "stack":
            for n, key in enumerate(zip(at, length < 0, strict=True)):
                base[n] = ends.get(key, 0.0)
                ends[key] = base[n] + np.nan_to_num(length[n])
        elif mode == "group":
            at = at + wide * (place[0] - (place[1] - 1) / 2)
        bars = draw(
            at,
            length,
            wide,
            base,
            color=marker.color,
            hatch=2 * marker.pattern.shape.replace(".", "\\"),  # dots would make the file large
            edgecolor=(1, 1, 1, 0.75),  # of the hatching
            linewidth=0,
            label=trace.name if trace.showlegend and len(at) else None,
            error_kw={"ecolor": error.color, "elinewidth": 1.5},
            **{whisker: _whiskers(error)},
        )
        texts = list(map(_plain_text, np.broadcast_to(trace.text, at.shape)))
        if trace.textposition == "inside":
            labels = panel.drawn.bar_label(bars, texts, label_type="center", color=trace.insidetextfont.color)
            self.inside += zip(bars, labels, strict=True)
        elif trace.textposition != "none":
            self.outside += panel.drawn.bar_label(bars, texts, padding=4)

    def _draw_shape(self, shape: Any) -> None:
        panel, line, transform = self._panel_of(shape).drawn, shape.line, self._transform(shape)
        if shape.type == "rect":
            corners = (shape.x0, shape.x1, shape.x1, shape.x0), (shape.y0, shape.y0, shape.y1, shape.y1)
            panel.fill(*corners, color=shape.fillcolor, alpha=shape.opacity, transform=transform)
        else:
            dash = WORDS["dashes"].get(line.dash, "-")
            look = {"color": line.color, "linewidth": line.width, "linestyle": dash}
            ends = (shape.x0, shape.x1), (shape.y0, shape.y1)
            panel.plot(*ends, transform=transform, scalex=shape.xref == "x", **look)

    def _draw_note(self, note: Any) -> None:
        panel = self._panel_of(note)
        places = zip((note.x, note.y), (note.xref, note.yref), panel.axes, strict=True)
        # on logarithmic axes, plotly stores the logarithm
        at = [10**v if axis.type == "log" and ref in ("x", "y") else v for v, ref, axis in places]
        panel.drawn.annotate(
            _plain_text(note.text),
            at,
            (note.xshift, note.yshift),
            xycoords=self._transform(note),
            textcoords="offset points",
            ha=note.xanchor,
            va=note.yanchor.replace("middle", "center"),
            rotation=-note.textangle,
        )

    def _panel_of(self, mark: Any) -> _Panel:
        """Return the panel of a shape or an annotation; the first panel if it refers to the whole figure."""
        return self.panels.get(mark.xref.split(" ")[0][1:], next(iter(self.panels.values())))

    def _transform(self, mark: Any) -> Any:
        """Return the matplotlib transform from the coordinates of a shape or an annotation to points on the page."""
        from matplotlib.transforms import blended_transform_factory

        panel = self._panel_of(mark).drawn
        whole = {"paper": self.paper.transAxes, "domain": panel.transAxes}
        across, up = (whole.get(ref.split(" ")[-1], panel.transData) for ref in (mark.xref, mark.yref))
        return across if across is up else blended_transform_factory(across, up)

    def _place_panels(self, title: str, subtitle: Sequence[str]) -> None:
        """Place the panels between the title and the legend, with room for axis labels."""
        lines = [
            _plain_text(title),
            *(row for line in subtitle for row in textwrap.wrap(printable(line), 135)),
        ]
        legend = self._legend()
        foot = MARGIN + (legend.get_window_extent().height if legend else 0)
        top, right = MARGIN + LINE * (len(lines) + 2), COLOUR_BAR if self.scale else 2 * MARGIN
        height = top + self.layout.height + foot
        self.drawn.set_size_inches(WIDTH / 72, height / 72)
        for row, words in enumerate(lines):
            look = {"color": SUBTITLE_COLOUR} if row else {"fontsize": 16, "fontweight": "bold"}
            self.drawn.text(MARGIN / WIDTH, 1 - (24 + LINE * row) / height, words, **look)
        left, low = 0.0, foot
        for _ in range(2):  # with less room an axis may have other tick labels
            self._set_positions((left, low, WIDTH - right - left, height - top - low))
            for panel in self.panels.values():
                _rotate_tick_labels(panel.drawn)
            outer = [panel.drawn.get_tightbbox() for panel in self.panels.values()]
            left += MARGIN - min(box.x0 for box in outer)
            low += foot - min(box.y0 for box in outer)
        self._set_positions((left, low, WIDTH - right - left, height - top - low))
        if self.scale:
            points, bar = self.scale
            box = self.drawn.add_axes(
                (1 - 90 / WIDTH, low / height + 0.1, 14 / WIDTH, (height - top - low) / height - 0.2)
            )
            self.drawn.colorbar(points, cax=box, ticks=bar.tickvals).set_ticklabels(bar.ticktext)
            box.set_title(_plain_text(bar.title.text), loc="left", fontsize=12)
        for label in self.outside:
            _widen_axis(label)
        for bar, label in self.inside:
            label.set_visible(label.get_window_extent().width <= bar.get_window_extent().width)

    def _set_positions(self, area: tuple[float, float, float, float]) -> None:
        """Place the panels in an area: left, bottom, width and height in points."""
        wide, high = self.drawn.get_size_inches() * 72
        self.paper.set_position((area[0] / wide, area[1] / high, area[2] / wide, area[3] / high))
        for panel in self.panels.values():
            corners = np.asarray([axis.domain for axis in panel.axes]).T
            (x0, y0), (x1, y1) = np.asarray(area[:2]) + corners * area[2:]
            panel.drawn.set_position((x0 / wide, y0 / high, (x1 - x0) / wide, (y1 - y0) / high))

    def _legend(self) -> Any:
        """Draw the legend in as many columns as fit; none for a single entry."""
        found = (panel.drawn.get_legend_handles_labels() for panel in self.panels.values())
        drawn = chain.from_iterable(zip(*entries, strict=True) for entries in found)
        entries = {_plain_text(label): handle for handle, label in reversed(list(drawn))}
        words, handles = list(entries)[::-1], list(entries.values())[::-1]
        for columns in range(len(words) if len(words) > 1 else 0, 0, -1):
            legend = self.drawn.legend(handles, words, loc="lower left", bbox_to_anchor=(0, 0), ncols=columns)
            if columns == 1 or legend.get_window_extent().width < WIDTH:
                return legend
            legend.remove()
        return None


def _set_axis(axis: Any, source: Any, names: Names) -> None:
    from matplotlib import ticker

    axis.set_label_text(_plain_text(source.title.text))
    low, high = axis.get_view_interval()
    if source.rangemode == "tozero":
        low = min(low, 0.0)
    if source.range:
        low, high = (10.0**end for end in source.range) if source.type == "log" else source.range
    texts = dict(zip(_as_list(source.tickvals), _as_list(source.ticktext or source.tickvals), strict=True))
    if names is not None:
        low, high = -0.5, len(names) - 0.5
        texts = {place: texts.get(name, name) for place, name in enumerate(names)}
    axis.set_view_interval(low, high, ignore=True)
    if texts:
        shown = {value: _plain_text(text) for value, text in texts.items() if low <= value <= high}
        axis.set_ticks(list(shown), shown.values())
    else:
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: format(value, source.tickformat)))
        if source.type == "log":
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        elif source.dtick:
            axis.set_major_locator(ticker.MultipleLocator(source.dtick))
    axis.set_minor_locator(ticker.NullLocator())
    if source.showticklabels is False:
        axis.set_tick_params(labelleft=False, labelbottom=False)
    if source.autorange == "reversed":
        axis.set_inverted(True)


def _rotate_tick_labels(panel: Any) -> None:
    """Rotate the tick labels of a panel if they overlap."""
    words = [label.get_window_extent() for label in panel.get_xticklabels() if label.get_text()]
    if any(box.x1 > other.x0 for box, other in pairwise(sorted(words, key=lambda box: box.x0))):
        lines = [label.get_text().replace("\n", " ") for label in panel.get_xticklabels()]
        panel.set_xticks(panel.get_xticks(), lines, rotation=90)


def _widen_axis(label: Any) -> None:
    """Widen the axis of horizontal bars until a label outside the end of its bar is visible."""
    panel, extent = label.axes, label.get_window_extent()
    box, (low, high) = panel.get_window_extent(), panel.get_xlim()
    room = box.width - extent.width - MARGIN
    if extent.x1 > box.x1:
        panel.set_xlim(low, low + (high - low) * (extent.x0 - box.x0) / room)
    elif extent.x0 < box.x0:
        panel.set_xlim(high - (high - low) * (box.x1 - extent.x1) / room, high)


def _fill_defaults(part: Any, kind: str) -> Any:
    """Set the missing properties of a part of a plotly figure to the defaults of its `kind`, and return the part."""
    for name, value in SETTINGS["defaults"][kind].items():
        if part[name] is None:
            part[name] = value
    return part


def _as_list(values: Any) -> list[Any]:
    return [] if values is None else [values] if isinstance(values, str) else list(values)


def _categories(axis: Any, traces: Sequence[Any], letter: str) -> Names:
    """Return the category names of an axis in order; None for a numeric axis."""
    found = dict.fromkeys(value for trace in traces for value in _as_list(trace[letter]) if value is not None)
    if axis.type != "category" and not any(isinstance(value, str) for value in found):
        return None
    return list(dict.fromkeys([*(name for name in _as_list(axis.categoryarray) if name in found), *found]))


def _positions(values: Any, names: Names) -> list[Any]:
    return [value if names is None else names.index(value) for value in _as_list(values)]


def _whiskers(error: Any) -> Any:
    """Return the lengths of whiskers below and above each value; None if the trace has no whiskers."""
    if error.array is None or not len(error.array):
        return None
    both = np.asarray([error.arrayminus, error.array], dtype=float)
    return np.where(both.sum(axis=0) > 0, both, np.nan)


def _plain_text(text: Any) -> str:
    """Return text without plotly's tags."""
    return printable(re.sub(r"</?(b|i|extra|sup|sub)\s*/?>", "", str(text or "").replace("<br>", "\n")))


def _rgba(colour: str) -> Any:
    """Return a colour for matplotlib from a plotly colour: `#0072B2` or `rgba(0,114,178,0.18)`."""
    if not colour.startswith("rgba"):
        return colour
    *light, opacity = map(float, re.findall(r"[\d.]+", colour))
    return (*(each / 255 for each in light), opacity)
