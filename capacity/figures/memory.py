"""Memory: what fills a GPU, against what the engine may use of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capacity.display import STANDARD, Units
from capacity.figures.chart import NEUTRAL, Chart, colour, layout, pattern

if TYPE_CHECKING:
    from capacity.api_grid import FitGrid, GridCell
    from capacity.results import Fit

PARTS = (
    ("weights", "weights_bytes"),
    ("activations", "activations_bytes"),
    ("overhead", "overhead_bytes"),
    ("KV cache", "kv_cache_bytes"),
)
YES, NO = "✓", "✗"


def memory_chart(answer: Fit, units: Units = STANDARD) -> Chart:
    """One GPU's memory as a stacked bar, with the lines of what there is and what may be used."""
    import plotly.graph_objects as go

    memory = answer.memory
    figure = go.Figure()
    for index, (name, field) in enumerate(PARTS):
        size = getattr(memory, field)
        figure.add_bar(
            name=name,
            x=[units.of_bytes(size)],
            y=[answer.gpu.name],
            orientation="h",
            marker={"color": colour(index), "pattern": {"shape": pattern(index)}},
            text=f"{name} {units.memory_text(size)}",
            textposition="inside",
            insidetextanchor="middle",
            hovertemplate=f"{name}: {units.memory_text(size)}<extra></extra>",
        )
    for label, value, dash, anchor in (
        ("may use", memory.usable_bytes, "dash", "bottom right"),
        ("engine sees", memory.total_bytes, "solid", "top right"),
    ):
        figure.add_vline(
            x=units.of_bytes(value),
            line={"color": NEUTRAL, "dash": dash, "width": 2},
            annotation={"text": f"{label} {units.memory_text(value)}"},
            annotation_position=anchor,
        )
    layout(figure, x=f"{units.memory} on one GPU", y="", height=230, barmode="stack")
    figure.update_yaxes(showticklabels=False)
    parts = ", ".join(f"{name} {units.memory_text(getattr(memory, field))}" for name, field in PARTS)
    verdict = "It fits" if answer.fits else "It does not fit"
    return Chart(
        name="memory",
        title=f"Memory of one {answer.gpu.name}",
        alt=f"{verdict}: {parts}, of {units.memory_text(memory.usable_bytes)} that the engine may use.",
        figure=figure,
        rows=tuple(
            {
                "part": name,
                units.memory: units.of_bytes(getattr(memory, field)),
                "bytes": getattr(memory, field),
            }
            for name, field in (*PARTS, ("may use", "usable_bytes"), ("engine sees", "total_bytes"))
        ),
    )


def grid_rows(grid: FitGrid) -> list[dict[str, Any]]:
    """One row a GPU, one column a size: ✓ with the longest context, or ✗; the first reason at the end."""
    rows: dict[str, dict[str, Any]] = {}
    for cell in grid.cells:
        row = rows.setdefault(cell.gpu, {"GPU": cell.gpu})
        row[f"TP {cell.tensor_parallel_size}"] = cell_text(cell)
        if cell.reason is not None:
            row.setdefault("why not", f"TP {cell.tensor_parallel_size}: {cell.reason}")
    return [{"why not": "", **row} | {"why not": row.get("why not", "")} for row in rows.values()]


def cell_text(cell: GridCell) -> str:
    """`✓ 131,072 tokens, 3.2 at a time`, or `✗`."""
    if not cell.fits:
        return NO
    return f"{YES} {cell.max_context_tokens:,} tokens, {cell.max_concurrency:,.1f} at a time"
