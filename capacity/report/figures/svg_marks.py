"""Marks of a picture as SVG: points by their shapes, hatched bars, dashes."""

from __future__ import annotations

from html import escape

DASHES = {"dash": (4.0, 3.0), "dot": (1.0, 2.0), "dashdot": (4.0, 2.0, 1.0, 2.0), "longdash": (7.0, 3.0)}
SHAPES = {  # as paths in a square of two from its centre
    "square": "M-.9-.9h1.8v1.8h-1.8z",
    "diamond": "M0-1.2L1.2 0L0 1.2L-1.2 0Z",
    "triangle-up": "M0-1.1L1.05.8H-1.05Z",
    "cross": "M-.35-1h.7v.65h.65v.7h-.65v.65h-.7v-.65h-.65v-.7h.65z",
    "x": "M-.9-.55L-.55-.9L0-.35L.55-.9L.9-.55L.35 0L.9.55L.55.9L0 .35L-.55.9L-.9.55L-.35 0Z",
    "star": "M0-1.2L.3-.4L1.15-.35L.5.18L.72 1L0 .55L-.72 1L-.5.18L-1.15-.35L-.3-.4Z",
}
HATCH = 7  # pixels from stroke to stroke
HATCHES = {  # strokes over a square of that size
    "/": "M-1 8L8-1M-4.5 4.5L4.5-4.5M2.5 11.5L11.5 2.5",
    "x": "M0 0L7 7M7 0L0 7",
    "-": "M0 3.5H7",
    "|": "M3.5 0V7",
    ".": "M2.5 3.5h2",
    "+": "M0 3.5H7M3.5 0V7",
    "\\": "M-1-1L8 8M2.5-4.5L11.5 4.5M-4.5 2.5L4.5 11.5",
}


def dashes(name: object, width: float) -> str:
    """The attribute of a line that is dashed."""
    pattern = DASHES.get(str(name or ""), ())
    return f' stroke-dasharray="{" ".join(f"{part * width:g}" for part in pattern)}"' if pattern else ""


def mark(shape: str, x: float, y: float, size: float, colour: str, edge: str, hover: str) -> str:
    """A point of `size` pixels that says `hover`, which is escaped already."""
    said = f"<title>{hover}</title>" if hover else ""
    look = f'fill="{escape(colour)}" stroke="{escape(edge)}"'
    half = size / 2
    path = SHAPES.get(shape.removesuffix("-open"))
    if path is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{half:g}" {look} stroke-width="1.2">{said}</circle>'
    return (
        f'<path transform="translate({x:.1f} {y:.1f}) scale({half:g})" d="{path}" {look} '
        f'stroke-width="{1.2 / half:.3g}">{said}</path>'
    )


def bar(
    begin: float,
    end: float,
    sides: tuple[float, float],
    *,
    lying: bool,
    colour: str,
    pattern: str,
    hover: str = "",
) -> str:
    """A bar from `begin` to `end` pixels between `sides`; hatched by strokes within it where it has a pattern."""
    low, long = min(begin, end), abs(end - begin)
    x, y, wide, high = (low, sides[0], long, sides[1] - sides[0])
    if not lying:
        x, y, wide, high = (sides[0], low, sides[1] - sides[0], long)
    said = f"<title>{hover}</title>" if hover else ""
    box = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    plain = f'<rect {box} fill="{escape(colour)}" stroke="{escape(colour)}">{said}</rect>'
    if pattern not in HATCHES or wide < 3 or high < 3:
        return plain
    return f'{plain}<rect {box} fill="url(#{hatch_name(pattern)})" pointer-events="none"/>'


def hatch_name(pattern: str) -> str:
    """The name of a hatching within an SVG."""
    return f"hatch{ord(pattern)}"


def hatches() -> str:
    """All hatchings, to stand once in an SVG."""
    return "<defs>" + "".join(_hatch(pattern) for pattern in HATCHES) + "</defs>"


def _hatch(pattern: str) -> str:
    return (
        f'<pattern id="{hatch_name(pattern)}" width="{HATCH}" height="{HATCH}" patternUnits="userSpaceOnUse">'
        f'<path d="{HATCHES[pattern]}" stroke="#ffffff" stroke-opacity="0.7" fill="none"/></pattern>'
    )
