"""Scatter charts as SVG text, without a plotting library: groups differ in colour and shape, labels show on hover."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # Okabe and Ito, 2008
MARKS = ("circle", "square", "diamond", "triangle")
WIDTH, HEIGHT, MARGIN = 640, 360, 56
Place = Callable[[float, float], tuple[float, float]]


def scatter(
    points: Sequence[tuple[str, str, float, float]],
    *,
    title: str,
    axes: tuple[str, str],
    line_y: float | None = None,
) -> str:
    """An SVG of (group, label, x, y): groups differ in colour and shape, labels show on hover."""
    if not points:
        return ""
    groups = list(dict.fromkeys(group for group, _, _, _ in points))
    most_x = max(x for _, _, x, _ in points) * 1.08 or 1.0
    most_y = max([y for _, _, _, y in points] + ([line_y] if line_y else [])) * 1.1 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        left = MARGIN + x / most_x * (WIDTH - 2 * MARGIN)
        return round(left, 1), round(HEIGHT - MARGIN - y / most_y * (HEIGHT - 2 * MARGIN), 1)

    marks = [
        f"<g><title>{escape(label)}: {x:,.4g}, {y:,.4g}</title>{_mark(groups.index(group), *place(x, y))}</g>"
        for group, label, x, y in points
    ]
    if line_y is not None:
        (x0, y0), (x1, _) = place(0, line_y), place(most_x, line_y)
        marks.append(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y0}" class="axis" stroke-dasharray="4"/>')
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: {len(points)} points">{_axes(axes, most_x, most_y, place)}{"".join(marks)}'
        f"{_legend(groups)}</svg></figure>"
    )


def _axes(axes: tuple[str, str], most_x: float, most_y: float, place: Place) -> str:
    (x0, y0), (x1, _), (_, y1) = place(0, 0), place(most_x, 0), place(0, most_y)
    lines = [
        f'<line class="axis" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y0}"/>',
        f'<line class="axis" x1="{x0}" y1="{y0}" x2="{x0}" y2="{y1}"/>',
        f'<text x="{(x0 + x1) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(axes[0])}</text>',
        f'<text x="14" y="{MARGIN - 20}">{escape(axes[1])}</text>',
    ]
    for value in _ticks(most_x):
        x, _ = place(value, 0)
        lines.append(f'<text x="{x}" y="{y0 + 16}" text-anchor="middle">{value:,.6g}</text>')
    for value in _ticks(most_y):
        _, y = place(0, value)
        lines.append(f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{value:,.6g}</text>')
    return "".join(lines)


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to `most`, three to six of them above 0."""
    ten = 10 ** math.floor(math.log10(most))
    step = next(step for step in (ten / 5, ten / 2, ten, 2 * ten) if most / step < 7)
    return [step * count for count in range(int(most / step) + 1)]


def _mark(number: int, x: float, y: float) -> str:
    colour = COLOURS[number % len(COLOURS)]
    match MARKS[number % len(MARKS)]:
        case "circle":
            return f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>'
        case "square":
            return f'<rect x="{x - 5}" y="{y - 5}" width="10" height="10" fill="{colour}"/>'
        case "diamond":
            return f'<path d="M{x} {y - 7}l7 7l-7 7l-7-7z" fill="{colour}"/>'
        case _:
            return f'<path d="M{x} {y - 7}l7 12h-14z" fill="{colour}"/>'


def _legend(groups: Sequence[str]) -> str:
    return "".join(
        f'{_mark(n, WIDTH - 170, 20 + 18 * n)}<text x="{WIDTH - 158}" y="{24 + 18 * n}">{escape(group)}</text>'
        for n, group in enumerate(groups)
    )
