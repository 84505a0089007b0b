"""A sweep over the load as a table: its points, and where the engine is full."""

from __future__ import annotations

import capacity
from capacity.report.layout import printed
from capacity.report.load_sweep import load_sweep_tables


def test_each_load_is_a_line_and_what_is_full_is_said() -> None:
    sweep = capacity.load_sweep(
        "llama-3.1-8b",
        over="batch_size",
        loads=(1, 64, 4096),
        gpu="l40s",
        input_len=1024,
        output_len=64,
        price="1",
    )
    text = printed(load_sweep_tables(sweep))
    first = sweep.points[0]
    assert first.ttft_s is not None
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in (["1"], ["64"], ["4,096"])]
    assert [row[0] for row in rows] == ["1", "64", "4,096"]
    assert " ".join(rows[0][1:3]) == f"{first.ttft_s.value * 1e3:,.1f} ms"
    assert rows[2][1:5] == ["-", "-", "-", "-"]
    assert f"holds {sweep.kv_requests:,} requests" in " ".join(text.split())
