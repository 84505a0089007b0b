"""The grid of fits: every place is `fit` there."""

from __future__ import annotations

import pytest

import capacity
from capacity.answers.grid import fit_grid
from capacity.report.views.memory_parts import cell_text, grid_rows


def test_the_grid_is_fit_at_every_place() -> None:
    grid = fit_grid(
        "llama-3.1-70b", gpus=("h100-sxm-80gb", "l4-24gb"), tensor_parallel_sizes=(2, 4), quantization="fp8"
    )
    for cell in grid.cells:
        place = {"gpu": cell.gpu, "tensor_parallel_size": cell.tensor_parallel_size}
        answer = capacity.fit("llama-3.1-70b", quantization="fp8", **place)
        assert cell.fits is answer.fits
        assert cell.reason == answer.reason
        assert cell_text(cell) == (f"✓ {answer.max_concurrency:,.1f}" if answer.fits else "✗")
    assert [row["GPU"] for row in grid_rows(grid)] == ["h100-sxm-80gb", "l4-24gb"]


def test_what_cannot_be_on_a_gpu_is_a_cell_with_its_reason() -> None:
    (cell,) = fit_grid("llama-3.1-8b", gpus=("h100",), tensor_parallel_sizes=(7,)).cells
    assert not cell.fits
    assert cell.reason
    with pytest.raises(capacity.InvalidInput, match="no model"):
        fit_grid("llama-9")
