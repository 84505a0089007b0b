"""What a figure of the plotting library holds, as plain values: columns, colours, words."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from html import escape
from typing import Any

from capacity.base.foreign import printable
from capacity.report.figures.svg_marks import dashes

INK, FAINT, GRID = "#1c2733", "#55606e", "#dde3ea"
LETTER = 6.4  # pixels of one, about
TAGS = re.compile(r"</?(b|i|br|extra|sup|sub)\s*/?>")
Record = Mapping[str, Any]


def stroke_of(line: Record, usual: float = 2.0) -> str:
    """The attributes of a line."""
    width = float(line.get("width") or usual)
    colour = escape(str(line.get("color") or INK))
    return f'stroke="{colour}" stroke-width="{width:g}"{dashes(line.get("dash"), width)}'


def escaped(words: object) -> str:
    """Words as they stand in SVG: without the marks that figures write, and with nothing that a file could read."""
    return escape(printable(TAGS.sub(" ", str(words))))


def wrapped(line: str, width: float) -> list[str]:
    rows = [""]
    for word in line.split():
        if rows[-1] and (len(rows[-1]) + len(word) + 1) * LETTER > width:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return rows


def column(values: Any) -> list[Any]:
    """A column of a trace: a list, a tuple, an array, its packed form, one value, or none."""
    if values is None:
        return []
    if isinstance(values, dict):
        import numpy as np

        return list(np.frombuffer(b64decode(values["bdata"]), dtype=values["dtype"]).tolist())
    return [values] if isinstance(values, (str, int, float)) else list(values)


def nth(values: Any, n: int) -> Any:
    """Of a column its n-th, of a single value that."""
    if values is None or isinstance(values, (str, int, float)):
        return values
    several = column(values)
    return several[n] if n < len(several) else None


def spanned(trace: Record, letter: str) -> list[Any]:
    """What a trace spans on an axis: points, ends of whiskers, ends of bars."""
    own = [value for value in column(trace.get(letter)) if value is not None]
    error = trace.get(f"error_{letter}") or {}
    if own and not isinstance(own[0], str):
        for name, sign in (("array", 1), ("arrayminus", -1)):
            own += [v + sign * float(e) for v, e in zip(own, column(error.get(name)), strict=False)]
    if trace["type"] != "bar" or not own or isinstance(own[0], str):
        return own
    if letter == ("x" if trace.get("orientation") == "h" else "y"):
        bases = column(trace.get("base"))
        return [*bases, *(b + v for b, v in zip(bases, own, strict=False))] if bases else own
    widths = column(trace.get("width")) or [0.8]
    half = max(widths) / 2
    return [*(value - half for value in own), *(value + half for value in own)]


def axis_name(trace: Record, letter: str) -> str:
    """`2` of `x2`; empty for the first."""
    return str(trace.get(f"{letter}axis") or letter)[1:]


def colour_of(marker: Record, n: int) -> str:
    colour = nth(marker.get("color"), n)
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
