"""The picture of ways of batching."""

from __future__ import annotations

import capacity
from capacity.report.figures.batching import PANELS, batching_chart


def test_each_panel_has_a_bar_for_each_way() -> None:
    answer = capacity.compare_batching(
        "llama-3.1-8b", gpu="h100", max_model_len=4096, input_len=100, output_len=20, num_prompts=12, max_batch=4,
        spread=False,
    )  # fmt: skip
    chart = batching_chart(answer)
    assert [row["way"] for row in chart.rows] == [row.name for row in answer.rows]
    assert len(chart.figure.data) == len(PANELS)
    assert list(chart.figure.data[0].y) == [row.output_tokens_per_s_per_gpu for row in answer.rows]
    fastest = max(answer.rows, key=lambda row: row.output_tokens_per_s_per_gpu)
    assert f"{fastest.name} makes the most tokens a GPU" in chart.alt
