"""A model on every GPU at every size, as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capacity.answers.grid import FitGrid, GridCell

YES, NO = "✓", "✗"


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
