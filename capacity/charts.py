"""Charts of answers, as plotly figures; HTML files that need nothing else to be seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.errors import InvalidInput

if TYPE_CHECKING:
    from capacity.results import BatchingComparison

# Okabe and Ito's palette, told apart by colour-blind readers too (jfly.uni-koeln.de/color, 2008)
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def batching_chart(comparison: BatchingComparison) -> Any:
    """Throughput, latency and KV waste of each way of batching, side by side."""
    from plotly.subplots import make_subplots

    panels = (
        ("output tokens/s", [row.output_throughput for row in comparison.rows]),
        ("p95 TTFT, ms", [row.p95_ttft_ms for row in comparison.rows]),
        ("p95 E2E, ms", [row.p95_e2el_ms for row in comparison.rows]),
        (
            "KV waste, %",
            [None if w is None else 100 * w for w in (row.kv_waste_fraction for row in comparison.rows)],
        ),
    )
    names = [row.name.replace(", ", ",<br>") for row in comparison.rows]
    figure = make_subplots(rows=1, cols=len(panels), subplot_titles=[title for title, _ in panels])
    for column, (_, values) in enumerate(panels, start=1):
        figure.add_bar(
            x=names, y=values, marker_color=PALETTE[: len(names)], showlegend=False, row=1, col=column
        )
    figure.update_layout(
        title=f"{comparison.model.name} on {comparison.gpu.count} x {comparison.gpu.name}: {comparison.workload}",
        template="plotly_white",
        height=480,
    )
    return figure


def write_html(figure: Any, path: str | Path) -> None:
    """Write a figure as one self-contained HTML file."""
    try:
        figure.write_html(str(path), include_plotlyjs=True, full_html=True)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None
