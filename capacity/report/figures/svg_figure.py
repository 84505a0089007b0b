"""A chart as SVG text, drawn without a browser: dark on white, with its title and what it is of, small and static.

It draws what the package's figures are made of: lines, bands, points and bars on linear, logarithmic and category
axes, with whiskers, lines across, remarks, a scale of colours and a legend. Points say their numbers on hover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from capacity.report.figures.svg_around import (
    WIDTH,
    draw_colour_scale,
    draw_legend,
    draw_remarks,
    legend_entries,
)
from capacity.report.figures.svg_axis import Axis, axis_of
from capacity.report.figures.svg_marks import hatches
from capacity.report.figures.svg_traces import draw_bars, draw_point_words, draw_scatter
from capacity.report.figures.svg_values import (
    FAINT,
    GRID,
    INK,
    LETTER,
    Record,
    axis_name,
    column,
    escaped,
    spanned,
    wrapped,
)

SIZE, TITLE_SIZE = 12, 16
MOST_LABEL = 250  # pixels of a label beside an upright axis
Area = tuple[tuple[float, float], tuple[float, float]]  # left and right, foot and head


def svg(figure: Any, *, title: str, subtitle: Sequence[str] = (), alt: str = "") -> str:
    """The figure of a chart as one SVG; `subtitle` are lines below its title."""
    drawn = figure.to_plotly_json()
    layout = _still(drawn["layout"], drawn.get("frames") or ())
    traces: list[Record] = [trace for trace in drawn["data"] if trace.get("visible", True) is True]
    lines = [title, *(row for line in subtitle for row in wrapped(line, WIDTH - 20))]
    top = 16 + 18 * len(lines)
    height = int(layout.get("height") or 360)
    area = _area(layout, traces, top, height)
    panels = _panels(layout, traces, area)
    entries = legend_entries(traces)
    body = [part for panel in panels for part in panel.drawn(layout)]
    body += draw_remarks(layout, panels, area)
    body += draw_colour_scale(traces, top, height)
    legend, below = draw_legend(entries, top + height + 8)
    whole = top + height + below + 12
    return "".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole}" width="{WIDTH}" height="{whole}" '
            f'font-family="system-ui, sans-serif" font-size="{SIZE}" fill="{INK}" role="img">',
            f"<title>{escaped(alt or title)}</title>",
            f'<rect width="{WIDTH}" height="{whole}" fill="#ffffff"/>',
            f'<text x="10" y="24" font-size="{TITLE_SIZE}" font-weight="600">{escaped(title)}</text>',
            *(
                f'<text x="10" y="{24 + 18 * row}" fill="{FAINT}">{escaped(line)}</text>'
                for row, line in enumerate(lines[1:], start=1)
            ),
            hatches() if any("url(#hatch" in part for part in (*body, *legend)) else "",
            *body,
            *legend,
            "</svg>",
        )
    )


def _still(layout: Record, frames: Sequence[Record]) -> Record:
    """The layout without what moves from frame to frame."""
    if not frames:
        return layout
    last = frames[-1].get("layout") or {}
    kept = {
        name: [each for each in column(layout.get(name)) if each in column(last.get(name))]
        for name in ("shapes", "annotations")
    }
    return {**layout, **kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes and what is drawn on it; `name` is "", "2", ... as in `xaxis2`."""

    name: str
    across: Axis
    up: Axis
    across_layout: Record
    up_layout: Record
    traces: tuple[Record, ...]

    def drawn(self, layout: Record) -> Iterator[str]:
        """Grid, words of the axes, then the traces: areas below lines."""
        (left, right), (foot, head) = sorted(self.across.pixels), sorted(self.up.pixels, reverse=True)
        for place, words in self.across.ticks:
            x = self.across.pixel(place)
            yield f'<path d="M{x:.1f} {head:.1f}V{foot:.1f}" stroke="{GRID}"/>'
            yield f'<text x="{x:.1f}" y="{foot + 16:.1f}" text-anchor="middle">{escaped(words)}</text>'
        for place, words in self.up.ticks:
            y = self.up.pixel(place)
            yield f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="{GRID}"/>'
            short = (
                words if len(words) * LETTER <= MOST_LABEL else words[: int(MOST_LABEL / LETTER) - 1] + "…"
            )
            yield f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{escaped(short)}</text>'
        yield from self._titles(left, right, foot, head)
        clip = f"panel-{left:.0f}-{right:.0f}-{foot:.0f}-{head:.0f}"  # the same name is the same place
        box = f'x="{left:.1f}" y="{head - 8:.1f}" width="{right - left:.1f}" height="{foot - head + 8:.1f}"'
        yield f'<clipPath id="{clip}"><rect {box}/></clipPath>'
        yield f'<g clip-path="url(#{clip})">'
        yield from draw_bars(self, str(layout.get("barmode") or "group"), float(layout.get("bargap") or 0.0))
        for trace in self.traces:
            if trace["type"] == "scatter":
                yield from draw_scatter(self, trace)
        yield "</g>"
        for trace in self.traces:
            if trace["type"] == "scatter" and "text" in str(trace.get("mode") or ""):
                yield from draw_point_words(self, trace)

    def _titles(self, left: float, right: float, foot: float, head: float) -> Iterator[str]:
        below, beside = (_title(each) for each in (self.across_layout, self.up_layout))
        if below:
            yield (
                f'<text x="{(left + right) / 2:.1f}" y="{foot + 36:.1f}" text-anchor="middle">{escaped(below)}</text>'
            )
        if beside:
            yield f'<text x="{left:.1f}" y="{head - 10:.1f}" fill="{FAINT}">{escaped(beside)}</text>'


def _title(axis: Record) -> str:
    return str((axis.get("title") or {}).get("text") or "")


def _area(layout: Record, traces: Sequence[Record], top: int, height: int) -> Area:
    """Where the panels stand, beside room for the words of their axes."""
    labelled = max((_label_width(layout, traces, axis_name(trace, "y")) for trace in traces), default=40.0)
    scaled = any((trace.get("marker") or {}).get("showscale") for trace in traces)
    return (labelled + 16, WIDTH - (110.0 if scaled else 24.0)), (top + height - 44.0, top + 24.0)


def _panels(layout: Record, traces: Sequence[Record], area: Area) -> list[Panel]:
    """The panels where the figure's domains put them."""
    pairs = list(dict.fromkeys((axis_name(trace, "x"), axis_name(trace, "y")) for trace in traces)) or [
        ("", "")
    ]
    (left, right), (foot, head) = area
    shared: dict[str, list[Any]] = {}
    for trace in traces:
        for letter in "xy":
            shared.setdefault(letter + axis_name(trace, letter), []).extend(spanned(trace, letter))
    for shape in column(layout.get("shapes")):  # lines across are in sight
        for letter in "xy":
            if (name := str(shape.get(f"{letter}ref") or letter)) in ("x", "y"):
                shared.setdefault(name, []).extend((shape[f"{letter}0"], shape[f"{letter}1"]))
    if layout.get("barmode") in ("stack", "relative"):
        for name, ends in _stacked(traces).items():
            shared[name].extend(ends)
    panels = []
    for x, y in pairs:
        below, beside = layout.get(f"xaxis{x}") or {}, layout.get(f"yaxis{y}") or {}
        (x0, x1), (y0, y1) = (tuple(each.get("domain") or (0.0, 1.0)) for each in (below, beside))
        own = tuple(t for t in traces if (axis_name(t, "x"), axis_name(t, "y")) == (x, y))
        same = [f"x{other}" for other, _ in pairs if _matches(layout, "x", other) == _matches(layout, "x", x)]
        values = [value for name in dict.fromkeys(same) for value in shared.get(name, ())]
        uprights = [t for t in own if t["type"] == "bar"]
        lying = any(t.get("orientation") == "h" for t in uprights)
        panels.append(
            Panel(
                name=x,
                across=axis_of(
                    below,
                    values,
                    (left + x0 * (right - left), left + x1 * (right - left)),
                    from_zero=lying,
                    tight=not uprights and all("markers" not in str(t.get("mode")) for t in own),
                ),
                up=axis_of(
                    beside,
                    shared.get(f"y{y}", ()),
                    (foot - y0 * (foot - head), foot - y1 * (foot - head)),
                    from_zero=bool(uprights) and not lying,
                ),
                across_layout=below,
                up_layout=beside,
                traces=own,
            )
        )
    return panels


def _matches(layout: Record, letter: str, name: str) -> str:
    axis = layout.get(f"{letter}axis{name}") or {}
    return str(axis.get("matches") or f"{letter}{name}")


def _label_width(layout: Record, traces: Sequence[Record], y: str) -> float:
    """Pixels that the words beside an upright axis take."""
    beside = layout.get(f"yaxis{y}") or {}
    if beside.get("showticklabels") is False:
        return 8.0
    values = [v for t in traces if axis_name(t, "y") == y for v in spanned(t, "y") if isinstance(v, str)]
    words = [*values, *(str(text) for text in column(beside.get("ticktext")))] or ["10,000"]
    return min(float(MOST_LABEL), max(map(len, words)) * LETTER)


def _stacked(traces: Sequence[Record]) -> dict[str, list[float]]:
    """By the name of an axis how far the bars reach that stand on each other there."""
    sums: dict[tuple[str, Any, bool], float] = {}
    for trace in traces:
        along, over = ("y", "x") if trace.get("orientation") == "h" else ("x", "y")
        if trace["type"] != "bar":
            continue
        for name, length in zip(column(trace.get(along)), column(trace.get(over)), strict=False):
            key = (over + axis_name(trace, over), name, float(length or 0) < 0)
            sums[key] = sums.get(key, 0.0) + float(length or 0)
    found: dict[str, list[float]] = {}
    for (axis, _, _), end in sums.items():
        found.setdefault(axis, []).append(end)
    return found
