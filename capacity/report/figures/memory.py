"""Memory: what fills a GPU, against what the engine may use of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, layout
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.answers.grid import FitGrid, GridCell
    from capacity.answers.records import Fit

PARTS = (
    ("weights", "weights_bytes"),
    ("activations", "activations_bytes"),
    ("overhead", "overhead_bytes"),
    ("KV cache", "kv_cache_bytes"),
)
LABELLED_FRACTION = 0.12  # of the GPU: what is smaller has its name in the legend alone
YES, NO = "✓", "✗"


def memory_chart(answer: Fit, units: Units = STANDARD) -> Chart:
    """One GPU's memory as a stacked bar, with the lines of what there is and what may be used."""
    import plotly.graph_objects as go

    memory = answer.memory
    figure = go.Figure()
    for index, (name, field) in enumerate(PARTS):
        size = getattr(memory, field)
        figure.add_bar(
            name=f"{name} {units.memory_text(size)}",
            x=[units.of_bytes(size)],
            y=[answer.gpu.name],
            orientation="h",
            width=0.5,
            text=name if size > LABELLED_FRACTION * memory.total_bytes else "",
            textposition="inside",
            textangle=0,
            insidetextanchor="middle",
            **bar_style(index),
            hovertemplate=f"{name}: {units.memory_text(size)}<extra></extra>",
        )
    for label, value, dash, anchor in (
        ("may use", memory.usable_bytes, "dash", "top left"),
        ("engine sees", memory.total_bytes, "solid", "top right"),
    ):
        figure.add_vline(
            x=units.of_bytes(value),
            line={"color": NEUTRAL, "dash": dash, "width": 2},
            annotation={"text": f"{label} {units.memory_text(value)}"},
            annotation_position=anchor,
        )
    layout(figure, x=f"{units.memory} on one GPU", y="", height=280, barmode="stack")
    figure.update_yaxes(showticklabels=False)
    figure.update_layout(legend={"y": -0.55})
    parts = ", ".join(f"{name} {units.memory_text(getattr(memory, field))}" for name, field in PARTS)
    verdict = "It fits" if answer.fits else "It does not fit"
    return Chart(
        name="memory",
        title=f"Memory of one {answer.gpu.name}",
        alt=f"{verdict}: {parts}, of {units.memory_text(memory.usable_bytes)} that the engine may use.",
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(
            {
                "part": name,
                units.memory: units.of_bytes(getattr(memory, field)),
                "bytes": getattr(memory, field),
            }
            for name, field in (*PARTS, ("may use", "usable_bytes"), ("engine sees", "total_bytes"))
        ),
    )


def grid_rows(grid: FitGrid) -> list[dict[str, str]]:
    """One row a GPU, one column a size: ✓ with the longest requests at a time, or ✗; every reason at the end."""
    rows: dict[str, dict[str, str]] = {}
    reasons: dict[str, list[str]] = {}
    for cell in grid.cells:
        rows.setdefault(cell.gpu, {"GPU": cell.gpu})[f"TP {cell.tensor_parallel_size}"] = cell_text(cell)
        if cell.reason is not None:
            reasons.setdefault(cell.gpu, []).append(f"TP {cell.tensor_parallel_size}: {cell.reason}")
    return [{**row, "why not": " ".join(reasons.get(gpu, []))} for gpu, row in rows.items()]


def cell_text(cell: GridCell) -> str:
    """`✓ 3.2`, or `✗`."""
    return NO if cell.max_concurrency is None else f"{YES} {cell.max_concurrency:,.1f}"
