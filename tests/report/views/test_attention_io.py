"""The table of attention's traffic."""

from __future__ import annotations

import capacity
from capacity.report.tables import render as render_answer


def test_each_context_is_a_line_with_its_ratio() -> None:
    answer = capacity.attention_traffic("llama-3.1-8b", gpu="h100", contexts=(1024, 65536))
    shown = render_answer(answer, "table")
    assert "227 KiB on-chip memory" in shown
    for row, context in zip(answer.rows, ("1K", "64K"), strict=True):
        line, kernels = [line for line in shown.splitlines() if line.split()[:1] == [context]]
        assert f"{1e3 * row.kernels[0].prefill_s:,.2f}" in kernels
        assert f"{row.naive_bytes / 1e9:,.1f}" in line
        assert f"{row.naive_bytes / row.tiled_bytes:,.1f}" in line
