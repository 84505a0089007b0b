"""A chart as SVG text, drawn without a browser: dark on white, with its title and what it is of, small and static.

It draws what the package's figures are made of: lines, bands, points and bars on linear, logarithmic and category
axes, with whiskers, lines across, remarks, a scale of colours and a legend. Points say their numbers on hover.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from capacity.base.foreign import printable
from capacity.report.figures.svg_axis import Axis, axis_of
from capacity.report.figures.svg_marks import bar, dashes, hatches, mark

WIDTH = 860
INK, FAINT, GRID = "#1c2733", "#55606e", "#dde3ea"
SIZE, TITLE_SIZE = 12, 16
LETTER = 6.4  # pixels of one at that size, about
MOST_LABEL = 250  # pixels of a label beside an upright axis
LEGEND_ROW, SWATCH = 20, 30
TAGS = re.compile(r"</?(b|i|br|extra|sup|sub)\s*/?>")
Record = Mapping[str, Any]


def svg(figure: Any, *, title: str, subtitle: Sequence[str] = (), alt: str = "") -> str:
    """The figure of a chart as one SVG; `subtitle` are lines below its title."""
    drawn = figure.to_plotly_json()
    layout: Record = drawn["layout"]
    traces: list[Record] = [trace for trace in drawn["data"] if trace.get("visible", True) is True]
    lines = [title, *(wrapped for line in subtitle for wrapped in _wrapped(line, WIDTH - 20))]
    top = 16 + 18 * len(lines)
    height = int(layout.get("height") or 360)
    area = _area(layout, traces, top, height)
    panels = _panels(layout, traces, area)
    entries = _legend(traces)
    body = [part for panel in panels for part in panel.drawn(layout)]
    body += _remarks(layout, panels, area)
    body += _colour_scale(traces, top, height)
    legend, below = _legend_drawn(entries, top + height + 8)
    whole = top + height + below + 12
    return "".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole}" width="{WIDTH}" height="{whole}" '
            f'font-family="system-ui, sans-serif" font-size="{SIZE}" fill="{INK}" role="img">',
            f"<title>{_text(alt or title)}</title>",
            f'<rect width="{WIDTH}" height="{whole}" fill="#ffffff"/>',
            f'<text x="10" y="24" font-size="{TITLE_SIZE}" font-weight="600">{_text(title)}</text>',
            *(
                f'<text x="10" y="{24 + 18 * row}" fill="{FAINT}">{_text(line)}</text>'
                for row, line in enumerate(lines[1:], start=1)
            ),
            hatches() if any("url(#hatch" in part for part in (*body, *legend)) else "",
            *body,
            *legend,
            "</svg>",
        )
    )


def _text(words: object) -> str:
    """Words as they stand in SVG: without the marks that figures write, and with nothing that a file could read."""
    return escape(printable(TAGS.sub(" ", str(words))))


def _wrapped(line: str, width: float) -> list[str]:
    rows = [""]
    for word in line.split():
        if rows[-1] and (len(rows[-1]) + len(word) + 1) * LETTER > width:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return rows


# panels


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
            yield f'<text x="{x:.1f}" y="{foot + 16:.1f}" text-anchor="middle">{_text(words)}</text>'
        for place, words in self.up.ticks:
            y = self.up.pixel(place)
            yield f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="{GRID}"/>'
            short = words if len(words) * LETTER <= MOST_LABEL else words[: int(MOST_LABEL / LETTER) - 1] + "…"
            yield f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{_text(short)}</text>'
        yield from self._titles(left, right, foot, head)
        clip = f"panel{self.name or 1}-{abs(hash((left, right, foot, head))) % 10**6}"
        box = f'x="{left:.1f}" y="{head - 8:.1f}" width="{right - left:.1f}" height="{foot - head + 8:.1f}"'
        yield f'<clipPath id="{clip}"><rect {box}/></clipPath>'
        yield f'<g clip-path="url(#{clip})">'
        yield from _bars(self, str(layout.get("barmode") or "group"), float(layout.get("bargap") or 0.0))
        for trace in self.traces:
            if trace["type"] == "scatter":
                yield from _scatter(self, trace)
        yield "</g>"
        for trace in self.traces:
            if trace["type"] == "scatter" and "text" in str(trace.get("mode") or ""):
                yield from _point_words(self, trace)

    def _titles(self, left: float, right: float, foot: float, head: float) -> Iterator[str]:
        below, beside = (_title(each) for each in (self.across_layout, self.up_layout))
        if below:
            yield (
                f'<text x="{(left + right) / 2:.1f}" y="{foot + 36:.1f}" text-anchor="middle">{_text(below)}</text>'
            )
        if beside:
            yield f'<text x="{left:.1f}" y="{head - 10:.1f}" fill="{FAINT}">{_text(beside)}</text>'


def _title(axis: Record) -> str:
    return str((axis.get("title") or {}).get("text") or "")


Area = tuple[tuple[float, float], tuple[float, float]]  # left and right, foot and head


def _area(layout: Record, traces: Sequence[Record], top: int, height: int) -> Area:
    """Where the panels stand, beside room for the words of their axes."""
    labelled = max((_label_width(layout, traces, _axis(trace, "y")) for trace in traces), default=40.0)
    scaled = any((trace.get("marker") or {}).get("showscale") for trace in traces)
    return (labelled + 16, WIDTH - (110.0 if scaled else 24.0)), (top + height - 44.0, top + 24.0)


def _panels(layout: Record, traces: Sequence[Record], area: Area) -> list[Panel]:
    """The panels where the figure's domains put them."""
    pairs = list(dict.fromkeys((_axis(trace, "x"), _axis(trace, "y")) for trace in traces)) or [("", "")]
    (left, right), (foot, head) = area
    shared: dict[str, list[Any]] = {}
    for trace in traces:
        for letter in "xy":
            shared.setdefault(letter + _axis(trace, letter), []).extend(_values(trace, letter))
    panels = []
    for x, y in pairs:
        below, beside = layout.get(f"xaxis{x}") or {}, layout.get(f"yaxis{y}") or {}
        (x0, x1), (y0, y1) = (tuple(each.get("domain") or (0.0, 1.0)) for each in (below, beside))
        own = tuple(t for t in traces if (_axis(t, "x"), _axis(t, "y")) == (x, y))
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
                    tight=all("markers" not in str(t.get("mode")) for t in own),
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


def _axis(trace: Record, letter: str) -> str:
    """`2` of `x2`; empty for the first."""
    return str(trace.get(f"{letter}axis") or letter)[1:]


def _matches(layout: Record, letter: str, name: str) -> str:
    axis = layout.get(f"{letter}axis{name}") or {}
    return str(axis.get("matches") or f"{letter}{name}")


def _label_width(layout: Record, traces: Sequence[Record], y: str) -> float:
    """Pixels that the words beside an upright axis take."""
    beside = layout.get(f"yaxis{y}") or {}
    if beside.get("showticklabels") is False:
        return 8.0
    values = [v for t in traces if _axis(t, "y") == y for v in _values(t, "y") if isinstance(v, str)]
    words = [*values, *(str(text) for text in _items(beside.get("ticktext")))] or ["10,000"]
    return min(float(MOST_LABEL), max(map(len, words)) * LETTER)


def _items(values: Any) -> list[Any]:
    """A column of a trace: a list, a tuple, an array, one value, or none."""
    if values is None:
        return []
    return [values] if isinstance(values, (str, int, float)) else list(values)


def _values(trace: Record, letter: str) -> list[Any]:
    """What a trace spans on an axis: points, ends of whiskers, ends of bars."""
    own = [value for value in _items(trace.get(letter)) if value is not None]
    error = trace.get(f"error_{letter}") or {}
    if own and not isinstance(own[0], str):
        for name, sign in (("array", 1), ("arrayminus", -1)):
            own += [v + sign * float(e) for v, e in zip(own, _items(error.get(name)), strict=False)]
    if trace["type"] != "bar" or not own or isinstance(own[0], str):
        return own
    if letter == ("x" if trace.get("orientation") == "h" else "y"):
        bases = _items(trace.get("base"))
        return [*bases, *(b + v for b, v in zip(bases, own, strict=False))] if bases else own
    widths = _items(trace.get("width")) or [0.8]
    half = max(widths) / 2
    return [*(value - half for value in own), *(value + half for value in own)]


# traces


def _scatter(panel: Panel, trace: Record) -> Iterator[str]:
    mode = str(trace.get("mode") or "lines")
    line, marker = trace.get("line") or {}, trace.get("marker") or {}
    places = [
        (panel.across.at(x), panel.up.at(y), n)
        for n, (x, y) in enumerate(zip(_items(trace.get("x")), _items(trace.get("y")), strict=False))
        if x is not None and y is not None
    ]
    known = [(x, y, n) for x, y, n in places if x is not None and y is not None]
    path = "".join(
        f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}"
        if i == 0 or line.get("shape") != "hv"
        else f"H{x:.1f}V{y:.1f}"
        for i, (x, y, _) in enumerate(known)
    )
    if trace.get("fill") == "toself" and path:
        yield f'<path d="{path}Z" fill="{escape(str(trace.get("fillcolor") or GRID))}"/>'
    if "lines" in mode and path and line.get("width") != 0:
        stroke = escape(str(line.get("color") or INK))
        width = float(line.get("width") or 2)
        yield f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashes(line.get("dash"), width)}/>'
    for x, y, n in known:
        yield from _whiskers(panel, trace, n, x, y)
        if "markers" in mode:
            colour = _colour(marker, n)
            size = float(_nth(marker.get("size"), n) or 8)
            shape = str(_nth(marker.get("symbol"), n) or "circle")
            edge = str((marker.get("line") or {}).get("color") or colour)
            yield mark(shape, x, y, size, colour, edge, _text(_hover(trace, n)))


def _hover(trace: Record, n: int) -> str:
    """What a point says."""
    if str(trace.get("hovertemplate") or "").startswith("%{text}"):
        return str(_nth(trace.get("text"), n) or "").replace("<br>", "\n")
    name, x, y = trace.get("name") or "", _items(trace.get("x"))[n], _items(trace.get("y"))[n]
    return f"{name}: {_shown(x)}, {_shown(y)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{float(value):,.4g}"


def _point_words(panel: Panel, trace: Record) -> Iterator[str]:
    for n, (x, y) in enumerate(zip(_items(trace.get("x")), _items(trace.get("y")), strict=False)):
        words, place = _nth(trace.get("text"), n), (panel.across.at(x), panel.up.at(y))
        if not words or None in place:
            continue
        assert place[0] is not None
        assert place[1] is not None
        below = "bottom" in str(trace.get("textposition") or "")
        anchor = "start" if "right" in str(trace.get("textposition") or "") else "middle"
        yield (
            f'<text x="{place[0]:.1f}" y="{place[1] + (18 if below else -8):.1f}" text-anchor="{anchor}">'
            f"{_text(words)}</text>"
        )


def _whiskers(panel: Panel, trace: Record, n: int, x: float, y: float) -> Iterator[str]:
    for letter, axis in (("x", panel.across), ("y", panel.up)):
        error = trace.get(f"error_{letter}") or {}
        if error.get("array") is None:
            continue
        value = float(_items(trace.get(letter))[n])
        more = float(_nth(error.get("array"), n) or 0.0)
        less = float(_nth(error.get("arrayminus"), n) or 0.0) if error.get("symmetric") is False else more
        low, high = axis.at(value - less), axis.at(value + more)
        if low is None or high is None or low == high:
            continue
        stroke = f'stroke="{escape(str(error.get("color") or INK))}" stroke-width="1.5" fill="none"'
        if letter == "x":
            yield f'<path d="M{low:.1f} {y - 4:.1f}v8m0 -4H{high:.1f}m0 -4v8" {stroke}/>'
        else:
            yield f'<path d="M{x - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8" {stroke}/>'


def _bars(panel: Panel, mode: str, gap: float) -> Iterator[str]:
    traces = [trace for trace in panel.traces if trace["type"] == "bar"]
    ends: dict[tuple[Any, bool], float] = {}
    for place, trace in enumerate(traces):
        lying = trace.get("orientation") == "h"
        names, lengths = (_items(trace.get(letter)) for letter in ("yx" if lying else "xy"))
        along, along_axis = (panel.up, panel.across) if lying else (panel.across, panel.up)
        for n, (name, length) in enumerate(zip(names, lengths, strict=False)):
            at = along.scaled(name)
            if at is None or length is None:
                continue
            base = float(_nth(trace.get("base"), n) or 0.0)
            if mode in ("stack", "relative"):
                key = (name, float(length) < 0)
                base = ends.get(key, 0.0)
                ends[key] = base + float(length)
            wide = float(_nth(trace.get("width"), n) or (1 - gap if trace.get("width") else 0.8))
            if mode == "group":
                wide /= len(traces)
                at += wide * (place - (len(traces) - 1) / 2)
            begin, end = along_axis.at(base), along_axis.at(base + float(length))
            sides = sorted((along.pixel(at - wide / 2), along.pixel(at + wide / 2)))
            if begin is None or end is None:
                continue
            words = _nth(trace.get("text"), n)
            marker = trace.get("marker") or {}
            pattern = str(_nth((marker.get("pattern") or {}).get("shape"), n) or "")
            colour = _colour(marker, n)
            hover = f"{trace.get('name') or ''} {_shown(name)}: {_shown(length)}".strip()
            yield bar(begin, end, (sides[0], sides[1]), lying=lying, colour=colour, pattern=pattern, hover=_text(hover))
            if trace.get("error_x" if lying else "error_y"):
                centre = (sides[0] + sides[1]) / 2
                yield from _whiskers(panel, trace, n, end if lying else centre, centre if lying else end)
            if words:
                yield from _bar_words(trace, n, str(words), begin, end, (sides[0], sides[1]), lying=lying)


def _bar_words(
    trace: Record, n: int, words: str, begin: float, end: float, sides: tuple[float, float], *, lying: bool
) -> Iterator[str]:
    """A bar's own words: inside where they have room, else beyond its end."""
    centre = (sides[0] + sides[1]) / 2
    inside = trace.get("textposition") == "inside"
    if inside and lying and len(words) * LETTER > abs(end - begin):
        return
    font = trace.get("insidetextfont") or {}
    fill = escape(str(font.get("color"))) if inside and font.get("color") else INK
    if lying:
        x, anchor = ((begin + end) / 2, "middle") if inside else (end + (6 if end >= begin else -6), "start")
        anchor = "end" if not inside and end < begin else anchor
        yield f'<text x="{x:.1f}" y="{centre + 4:.1f}" text-anchor="{anchor}" fill="{fill}">{_text(words)}</text>'
    else:
        y = (begin + end) / 2 if inside else end - 6
        yield f'<text x="{centre:.1f}" y="{y:.1f}" text-anchor="middle" fill="{fill}">{_text(words)}</text>'


def _nth(values: Any, n: int) -> Any:
    """Of a column its n-th, of a single value that."""
    if values is None or isinstance(values, (str, int, float)):
        return values
    return values[n] if n < len(values) else None


def _colour(marker: Record, n: int) -> str:
    colour = _nth(marker.get("color"), n)
    if colour is None or isinstance(colour, str):
        return escape(str(colour or INK))
    from plotly.colors import sample_colorscale

    low, high = float(marker.get("cmin") or 0.0), float(marker.get("cmax") or 1.0)
    share = 0.5 if high == low else min(max((float(colour) - low) / (high - low), 0.0), 1.0)
    return str(sample_colorscale(_scale(marker), [share])[0])


def _scale(marker: Record) -> Any:
    """The colour scale: its name, or its steps."""
    scale = marker.get("colorscale") or "Cividis"
    return scale if isinstance(scale, str) else [list(step) for step in scale]


# around the panels


def _remarks(layout: Record, panels: Sequence[Panel], area: Area) -> Iterator[str]:
    """Lines across the panels, and words at their places."""
    for shape in _items(layout.get("shapes")):
        panel = _panel_of(shape, panels)
        x0, x1 = (_place(panel.across, shape.get(end), shape.get("xref"), area[0]) for end in ("x0", "x1"))
        y0, y1 = (_place(panel.up, shape.get(end), shape.get("yref"), area[1]) for end in ("y0", "y1"))
        if x0 is None or x1 is None or y0 is None or y1 is None:
            continue
        line = shape.get("line") or {}
        width = float(line.get("width") or 1.5)
        stroke = f'stroke="{escape(str(line.get("color") or INK))}" stroke-width="{width:g}"'
        yield f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" {stroke}{dashes(line.get("dash"), width)}/>'
    for note in _items(layout.get("annotations")):
        panel = _panel_of(note, panels)
        x = _place(panel.across, note.get("x"), note.get("xref"), area[0], is_note=True)
        y = _place(panel.up, note.get("y"), note.get("yref"), area[1], is_note=True)
        if x is not None and y is not None:
            yield _note(note, x + float(note.get("xshift") or 0), y - float(note.get("yshift") or 0))


def _note(note: Record, x: float, y: float) -> str:
    anchor = {"left": "start", "right": "end"}.get(str(note.get("xanchor")), "middle")
    y += {"top": 12.0, "bottom": -4.0}.get(str(note.get("yanchor")), 4.0)
    turn = note.get("textangle")
    turned = f' transform="rotate({float(turn):g} {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{_text(note.get("text") or "")}</text>'


def _panel_of(remark: Record, panels: Sequence[Panel]) -> Panel:
    name = str(remark.get("xref") or "x").split(" ")[0][1:]
    return next((panel for panel in panels if panel.name == name), panels[0])


def _place(
    axis: Axis, value: Any, ref: Any, whole: tuple[float, float], *, is_note: bool = False
) -> float | None:
    """A pixel of a value, or of a share of the panel or of all. Words on a logarithmic axis stand at logarithms."""
    if value is None:
        return None
    if ref == "paper" or str(ref or "").endswith("domain"):
        begin, end = whole if ref == "paper" else axis.span
        return begin + float(value) * (end - begin)
    return axis.pixel(float(value)) if is_note and axis.logarithmic else axis.at(value)


def _colour_scale(traces: Sequence[Record], top: int, height: int) -> Iterator[str]:
    marker = next((t["marker"] for t in traces if (t.get("marker") or {}).get("showscale")), None)
    if marker is None:
        return
    bar_of = marker.get("colorbar") or {}
    low, high = float(marker.get("cmin") or 0.0), float(marker.get("cmax") or 1.0)
    head, foot, x = top + 60.0, top + height - 60.0, WIDTH - 90
    steps = 24
    tall = (foot - head) / steps
    for step in range(steps):
        colour = _colour({**marker, "color": [low + (step + 0.5) / steps * (high - low)]}, 0)
        yield f'<rect x="{x}" y="{foot - (step + 1) * tall:.1f}" width="14" height="{tall + 0.5:.1f}" fill="{colour}"/>'
    words = str((bar_of.get("title") or {}).get("text") or "")
    for row, line in enumerate(words.split("<br>")):
        yield f'<text x="{x - 4}" y="{head - 24 + 14 * row:.1f}">{_text(line)}</text>'
    for value, text in zip(_items(bar_of.get("tickvals")), _items(bar_of.get("ticktext")), strict=False):
        y = foot if high == low else foot - (float(value) - low) / (high - low) * (foot - head)
        yield f'<text x="{x + 19}" y="{y + 4:.1f}">{_text(text)}</text>'


def _legend(traces: Sequence[Record]) -> list[Record]:
    """A trace for each name that the legend shows."""
    named = [t for t in traces if t.get("showlegend") is not False and t.get("name")]
    return list({str(t["name"]): t for t in reversed(named)}.values())[::-1] if len(named) > 1 else []


def _legend_drawn(entries: Sequence[Record], top: float) -> tuple[list[str], int]:
    """The legend in rows below the panels, and how high it is."""
    parts, x, y = [], 12.0, top + 12
    for trace in entries:
        wide = SWATCH + len(str(trace["name"])) * LETTER + 18
        if x > 12 and x + wide > WIDTH - 12:
            x, y = 12.0, y + LEGEND_ROW
        marker, line = trace.get("marker") or {}, trace.get("line") or {}
        if trace["type"] == "bar":
            pattern = str(_nth((marker.get("pattern") or {}).get("shape"), 0) or "")
            parts.append(bar(x, x + 20, (y - 10, y + 2), lying=True, colour=_colour(marker, 0), pattern=pattern))
        elif trace.get("fill"):
            parts.append(f'<rect x="{x}" y="{y - 10}" width="20" height="12" fill="{escape(str(trace["fillcolor"]))}"/>')
        else:
            colour, width = escape(str(line.get("color") or INK)), float(line.get("width") or 2)
            if "lines" in str(trace.get("mode") or "lines"):
                parts.append(
                    f'<path d="M{x} {y - 4}h22" stroke="{colour}" stroke-width="{width:g}"{dashes(line.get("dash"), width)}/>'
                )
            if "markers" in str(trace.get("mode") or ""):
                edge = str((marker.get("line") or {}).get("color") or "") or _colour(marker, 0)
                parts.append(mark(str(_nth(marker.get("symbol"), 0) or "circle"), x + 11, y - 4, 9, edge, edge, ""))
        parts.append(f'<text x="{x + SWATCH:.1f}" y="{y}">{_text(trace["name"])}</text>')
        x += wide
    return parts, int(y - top) + 8 if entries else 0
