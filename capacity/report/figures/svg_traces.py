"""The traces of a figure as SVG: lines, bands, points and bars with their whiskers and words."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from capacity.report.figures.svg_marks import bar, mark
from capacity.report.figures.svg_values import (
    GRID,
    INK,
    LETTER,
    Record,
    colour_of,
    column,
    escaped,
    nth,
    stroke_of,
)

if TYPE_CHECKING:
    from capacity.report.figures.svg_figure import Panel


def draw_scatter(panel: Panel, trace: Record) -> Iterator[str]:
    mode = str(trace.get("mode") or "lines")
    line = trace.get("line") or {}
    marker = {"color": line.get("color"), **(trace.get("marker") or {})}
    places = [
        (panel.across.at(x), panel.up.at(y), n)
        for n, (x, y) in enumerate(zip(column(trace.get("x")), column(trace.get("y")), strict=False))
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
        yield f'<path d="{path}" fill="none" {stroke_of(line)}/>'
    for x, y, n in known:
        yield from _whiskers(panel, trace, n, x, y)
        if "markers" in mode:
            colour = colour_of(marker, n)
            size = float(nth(marker.get("size"), n) or 8)
            shape = str(nth(marker.get("symbol"), n) or "circle")
            edge = str((marker.get("line") or {}).get("color") or colour)
            yield mark(shape, x, y, size, colour, edge, escaped(_hover(trace, n)))


def _hover(trace: Record, n: int) -> str:
    """What a point says."""
    if str(trace.get("hovertemplate") or "").startswith("%{text}"):
        return str(nth(trace.get("text"), n) or "").replace("<br>", "\n")
    name, x, y = trace.get("name") or "", column(trace.get("x"))[n], column(trace.get("y"))[n]
    return f"{name}: {_shown(x)}, {_shown(y)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{float(value):,.4g}"


def draw_point_words(panel: Panel, trace: Record) -> Iterator[str]:
    for n, (x, y) in enumerate(zip(column(trace.get("x")), column(trace.get("y")), strict=False)):
        words, place = nth(trace.get("text"), n), (panel.across.at(x), panel.up.at(y))
        if not words or None in place:
            continue
        assert place[0] is not None
        assert place[1] is not None
        said = str(trace.get("textposition") or "")
        up = 18 if "bottom" in said else 4 if "middle " in said else -8
        aside = (10 if "middle " in said else 0) * (-1 if "left" in said else 1 if "right" in said else 0)
        anchor = "start" if "right" in said else "end" if "left" in said else "middle"
        yield (
            f'<text x="{place[0] + aside:.1f}" y="{place[1] + up:.1f}" text-anchor="{anchor}">'
            f"{escaped(words)}</text>"
        )


def _whiskers(panel: Panel, trace: Record, n: int, x: float, y: float) -> Iterator[str]:
    for letter, axis in (("x", panel.across), ("y", panel.up)):
        error = trace.get(f"error_{letter}") or {}
        if error.get("array") is None:
            continue
        value = float(column(trace.get(letter))[n])
        more = float(nth(error.get("array"), n) or 0.0)
        less = float(nth(error.get("arrayminus"), n) or 0.0) if error.get("symmetric") is False else more
        low, high = axis.at(value - less), axis.at(value + more)
        if low is None or high is None or low == high:
            continue
        stroke = f'stroke="{escape(str(error.get("color") or INK))}" stroke-width="1.5" fill="none"'
        if letter == "x":
            yield f'<path d="M{low:.1f} {y - 4:.1f}v8m0 -4H{high:.1f}m0 -4v8" {stroke}/>'
        else:
            yield f'<path d="M{x - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8" {stroke}/>'


def draw_bars(panel: Panel, mode: str, gap: float) -> Iterator[str]:
    traces = [trace for trace in panel.traces if trace["type"] == "bar"]
    ends: dict[tuple[Any, bool], float] = {}
    for place, trace in enumerate(traces):
        lying = trace.get("orientation") == "h"
        names, lengths = (column(trace.get(letter)) for letter in ("yx" if lying else "xy"))
        along, along_axis = (panel.up, panel.across) if lying else (panel.across, panel.up)
        for n, (name, length) in enumerate(zip(names, lengths, strict=False)):
            at = along.scaled(name)
            if at is None or length is None:
                continue
            base = float(nth(trace.get("base"), n) or 0.0)
            if mode in ("stack", "relative"):
                key = (name, float(length) < 0)
                base = ends.get(key, 0.0)
                ends[key] = base + float(length)
            wide = float(nth(trace.get("width"), n) or (1 - gap if trace.get("width") else 0.8))
            if mode == "group":
                wide /= len(traces)
                at += wide * (place - (len(traces) - 1) / 2)
            begin, end = along_axis.at(base), along_axis.at(base + float(length))
            sides = sorted((along.pixel(at - wide / 2), along.pixel(at + wide / 2)))
            if begin is None or end is None:
                continue
            words = nth(trace.get("text"), n)
            marker = trace.get("marker") or {}
            pattern = str(nth((marker.get("pattern") or {}).get("shape"), n) or "")
            colour = colour_of(marker, n)
            hover = f"{trace.get('name') or ''} {_shown(name)}: {_shown(length)}".strip()
            yield bar(
                begin,
                end,
                (sides[0], sides[1]),
                lying=lying,
                colour=colour,
                pattern=pattern,
                hover=escaped(hover),
            )
            error = trace.get("error_x" if lying else "error_y") or {}
            beyond = end
            if error:
                centre = (sides[0] + sides[1]) / 2
                yield from _whiskers(panel, trace, n, end if lying else centre, centre if lying else end)
                more = float(nth(error.get("array"), n) or 0.0)
                beyond = along_axis.at(base + float(length) + more) or end
            if words:
                last = end if trace.get("textposition") == "inside" else beyond
                yield from _bar_words(trace, str(words), begin, last, (sides[0], sides[1]), lying=lying)


def _bar_words(
    trace: Record, words: str, begin: float, end: float, sides: tuple[float, float], *, lying: bool
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
        yield f'<text x="{x:.1f}" y="{centre + 4:.1f}" text-anchor="{anchor}" fill="{fill}">{escaped(words)}</text>'
    else:
        y = (begin + end) / 2 if inside else end - 6
        yield f'<text x="{centre:.1f}" y="{y:.1f}" text-anchor="middle" fill="{fill}">{escaped(words)}</text>'
