"""Line charts as SVG text, without a browser or a plotting library: small enough for a page of the handbook."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from capacity.base.errors import InvalidInput

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 34, 46
COLOURS = ("#1f5fa8", "#c4501b", "#2b8a3e", "#8a3ea8", "#7a6a00", "#555555")
TICKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart: its name and its points, x ascending."""

    name: str
    points: tuple[tuple[float, float], ...]


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = True,
    log_y: bool = False,
) -> str:
    """An SVG of the lines over common axes; logarithmic axes are to the base of 2, and y starts at 0 otherwise.

    Raises InvalidInput for no points, for values that are not finite, or not above 0 on a logarithmic axis.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        raise InvalidInput(f"the chart {title!r} has no points")
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)) or (log_x and x <= 0) or (log_y and y <= 0):
            raise InvalidInput(f"the chart {title!r} cannot draw the point ({x}, {y})")
    across = _Axis.over([x for x, _ in points], logarithmic=log_x, pixels=(LEFT, WIDTH - RIGHT))
    up = _Axis.over([y for _, y in points], logarithmic=log_y, pixels=(HEIGHT - BOTTOM, TOP), from_zero=True)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        *_grid(across, up),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="14" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2})">{escape(y_label)}</text>',
    ]
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{across.pixel(x):.1f},{up.pixel(y):.1f}" for x, y in line.points)
        y = TOP + 12 + 18 * index
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<line x1="{WIDTH - RIGHT + 12}" y1="{y - 4}" x2="{WIDTH - RIGHT + 32}" y2="{y - 4}" '
            f'stroke="{colour}" stroke-width="2"/>',
            f'<text x="{WIDTH - RIGHT + 38}" y="{y}">{escape(line.name)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """From values to pixels, and where its ticks stand."""

    low: float
    high: float
    logarithmic: bool
    pixels: tuple[float, float]

    @classmethod
    def over(
        cls,
        values: Sequence[float],
        *,
        logarithmic: bool,
        pixels: tuple[float, float],
        from_zero: bool = False,
    ) -> _Axis:
        low, high = min(values), max(values)
        if not logarithmic and from_zero:
            low, high = min(0.0, low), high * 1.05
        if low == high:
            low, high = (low / 2, high * 2) if logarithmic else (low - 1, high + 1)
        return cls(low=low, high=high, logarithmic=logarithmic, pixels=pixels)

    def pixel(self, value: float) -> float:
        """Where a value stands."""
        begin, end = self.pixels
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return begin + share * (end - begin)

    @property
    def ticks(self) -> list[float]:
        """Powers of 2, thinned out, or round steps."""
        if self.logarithmic:
            first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
            stride = max(1, math.ceil((last - first + 1) / (2 * TICKS)))
            return [2.0**power for power in range(first, last + 1, stride)]
        raw = (self.high - self.low) / TICKS
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
        start = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(start, math.floor(self.high / step + 1e-9) + 1)]


def _grid(across: _Axis, up: _Axis) -> list[str]:
    parts = []
    for value in across.ticks:
        x = across.pixel(value)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#dddddd"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_tick(value)}</text>'
        )
    for value in up.ticks:
        y = up.pixel(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    return parts


def _tick(value: float) -> str:
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if value >= size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
