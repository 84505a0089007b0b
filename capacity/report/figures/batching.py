"""Ways of batching side by side: throughput, latency and KV waste of the same arrivals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.figures.chart import Chart, colour, listed
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.techniques.batching import Batching

PANELS = (
    ("output tokens/s a GPU", "output_tokens_per_s_per_gpu", 1.0),
    ("p95 TTFT, ms", "p95_ttft_s", 1e3),
    ("p95 E2E, ms", "p95_e2e_s", 1e3),
    ("KV waste, %", "kv_waste_fraction", 100.0),
)


def batching_chart(answer: Batching) -> Chart:
    """Four panels of bars, one bar for each way of batching."""
    from plotly.subplots import make_subplots

    names = [row.name for row in answer.rows]
    figure = make_subplots(rows=1, cols=len(PANELS), subplot_titles=[title for title, *_ in PANELS])
    for column, (_, field, scale) in enumerate(PANELS, start=1):
        values = [getattr(row, field) for row in answer.rows]
        figure.add_bar(
            x=[name.replace(", ", ",<br>") for name in names],
            y=[None if value is None else scale * value for value in values],
            marker_color=[colour(index) for index in range(len(names))],
            showlegend=False,
            row=1,
            col=column,
        )
    title = f"{answer.model} on {answer.gpu.count} x {answer.gpu.name}: {answer.workload}"
    figure.update_layout(title=title, template="plotly_white", height=480)
    fastest = max(answer.rows, key=lambda row: row.output_tokens_per_s_per_gpu)
    return Chart(
        name="batching",
        title=title,
        alt=(
            f"Throughput, latency and KV waste under {listed(names)}. {fastest.name} makes the most tokens a GPU: "
            f"{fastest.output_tokens_per_s_per_gpu:,.0f} a second, {fastest.gain:.2f} times {names[0]}."
        ),
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(
            {"way": row.name, **{label: getattr(row, field) for label, field, _ in PANELS}}
            for row in answer.rows
        ),
    )
