"""What stands over and around the panels of a figure: lines across, remarks, a scale of colours, the legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from capacity.report.figures.svg_axis import Axis
from capacity.report.figures.svg_marks import bar, mark
from capacity.report.figures.svg_values import LETTER, Record, colour_of, column, escaped, nth, stroke_of

if TYPE_CHECKING:
    from capacity.report.figures.svg_figure import Area, Panel

WIDTH = 860
LEGEND_ROW, SWATCH = 20, 30


def draw_remarks(layout: Record, panels: Sequence[Panel], area: Area) -> Iterator[str]:
    """Lines across the panels, and words at their places."""
    for shape in column(layout.get("shapes")):
        panel = _panel_of(shape, panels)
        x0, x1 = (_place(panel.across, shape.get(end), shape.get("xref"), area[0]) for end in ("x0", "x1"))
        y0, y1 = (_place(panel.up, shape.get(end), shape.get("yref"), area[1]) for end in ("y0", "y1"))
        if x0 is None or x1 is None or y0 is None or y1 is None:
            continue
        yield f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" {stroke_of(shape.get("line") or {}, 1.5)}/>'
    for note in column(layout.get("annotations")):
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
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{escaped(note.get("text") or "")}</text>'


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


def draw_colour_scale(traces: Sequence[Record], top: int, height: int) -> Iterator[str]:
    marker = next((t["marker"] for t in traces if (t.get("marker") or {}).get("showscale")), None)
    if marker is None:
        return
    bar_of = marker.get("colorbar") or {}
    low, high = float(marker.get("cmin") or 0.0), float(marker.get("cmax") or 1.0)
    head, foot, x = top + 60.0, top + height - 60.0, WIDTH - 90
    steps = 24
    tall = (foot - head) / steps
    for step in range(steps):
        colour = colour_of({**marker, "color": [low + (step + 0.5) / steps * (high - low)]}, 0)
        yield f'<rect x="{x}" y="{foot - (step + 1) * tall:.1f}" width="14" height="{tall + 0.5:.1f}" fill="{colour}"/>'
    words = str((bar_of.get("title") or {}).get("text") or "")
    for row, line in enumerate(words.split("<br>")):
        yield f'<text x="{x - 4}" y="{head - 24 + 14 * row:.1f}">{escaped(line)}</text>'
    for value, text in zip(column(bar_of.get("tickvals")), column(bar_of.get("ticktext")), strict=False):
        y = foot if high == low else foot - (float(value) - low) / (high - low) * (foot - head)
        yield f'<text x="{x + 19}" y="{y + 4:.1f}">{escaped(text)}</text>'


def legend_entries(traces: Sequence[Record]) -> list[Record]:
    """A trace for each name that the legend shows."""
    named = [t for t in traces if t.get("showlegend") is not False and t.get("name")]
    return list({str(t["name"]): t for t in reversed(named)}.values())[::-1] if len(named) > 1 else []


def draw_legend(entries: Sequence[Record], top: float) -> tuple[list[str], int]:
    """The legend in rows below the panels, and how high it is."""
    parts, x, y = [], 12.0, top + 12
    for trace in entries:
        wide = SWATCH + len(str(trace["name"])) * LETTER + 18
        if x > 12 and x + wide > WIDTH - 12:
            x, y = 12.0, y + LEGEND_ROW
        line = trace.get("line") or {}
        marker = {"color": line.get("color"), **(trace.get("marker") or {})}
        if trace["type"] == "bar":
            pattern = str(nth((marker.get("pattern") or {}).get("shape"), 0) or "")
            parts.append(
                bar(x, x + 20, (y - 10, y + 2), lying=True, colour=colour_of(marker, 0), pattern=pattern)
            )
        elif trace.get("fill"):
            parts.append(
                f'<rect x="{x}" y="{y - 10}" width="20" height="12" fill="{escape(str(trace["fillcolor"]))}"/>'
            )
        else:
            if "lines" in str(trace.get("mode") or "lines"):
                parts.append(f'<path d="M{x} {y - 4}h22" {stroke_of(line)}/>')
            if "markers" in str(trace.get("mode") or ""):
                edge = str((marker.get("line") or {}).get("color") or "") or colour_of(marker, 0)
                parts.append(
                    mark(str(nth(marker.get("symbol"), 0) or "circle"), x + 11, y - 4, 9, edge, edge, "")
                )
        parts.append(f'<text x="{x + SWATCH:.1f}" y="{y}">{escaped(trace["name"])}</text>')
        x += wide
    return parts, int(y - top) + 8 if entries else 0
