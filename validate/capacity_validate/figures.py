"""What was measured against what was predicted: parity, before and after calibration, and a server's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, listed, log_axis, symbol

if TYPE_CHECKING:
    from capacity_validate.comparison import MetricRow, RunComparison
    from capacity_validate.review import Review

SIDES = (("profile as it is", "before_s"), ("calibrated on the other half", "after_s"))


def parity_chart(review: Review, units: Units = STANDARD) -> Chart:
    """Predicted against measured time of each case: held-out ones where a fit was made, else all."""
    import plotly.graph_objects as go

    held_out = [row for row in review.cases if row.role == "held out"]
    rows = held_out or list(review.cases)
    figure = go.Figure()
    for index, (name, field) in enumerate(SIDES):
        points = [(row, getattr(row, field)) for row in rows if getattr(row, field)]
        if not points:
            continue
        figure.add_scatter(
            name=name,
            x=[units.of_seconds(row.measured_s) for row, _ in points],
            y=[units.of_seconds(predicted) for _, predicted in points],
            mode="markers",
            marker={"symbol": symbol(index), "color": colour(index), "size": 8, "opacity": 0.8},
            text=[row.id for row, _ in points],
            hovertemplate=f"%{{text}}: measured %{{x:.3g}}, predicted %{{y:.3g}} {units.time}<extra></extra>",
        )
    ends = [units.of_seconds(f(row.measured_s for row in rows)) for f in (min, max)] if rows else []
    figure.add_scatter(
        name="exact", x=ends, y=ends, mode="lines", line={"color": NEUTRAL, "width": 2}, hoverinfo="skip"
    )
    layout(figure, x=f"measured, {units.time}", y=f"predicted, {units.time}", height=480)
    ends = [float(end) for trace in figure.data for axis in (trace.x, trace.y) for end in axis]
    figure.update_xaxes(**log_axis(ends))
    figure.update_yaxes(**log_axis(ends))
    what = "held-out cases" if held_out else "cases, none of them held out"
    return Chart(
        name="parity",
        title=f"{review.device}: predicted against measured",
        alt=f"{len(rows):,} {what} of {len(review.cases):,}; on the line a prediction is exact.",
        figure=figure,
        rows=tuple(
            {
                "case": row.id,
                "role": row.role,
                "measured, s": row.measured_s,
                "before, s": row.before_s,
                "after, s": row.after_s,
                "error before": row.error_before,
                "error after": row.error_after,
            }
            for row in review.cases
        ),
    )


def errors_chart(review: Review) -> Chart:
    """Median error by class of kernels, before and after calibration."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, field) in enumerate((("before", "before_median"), ("after", "after_median"))):
        values = [getattr(c, field) for c in review.classes]
        figure.add_bar(
            name=name,
            orientation="h",
            y=[c.family for c in review.classes],
            x=values,
            text=["" if value is None else f"{value:.0%}" for value in values],
            textposition="outside",
            **bar_style(index),
        )
    layout(figure, x="median error", y="", height=160 + 42 * len(review.classes), barmode="group")
    figure.update_xaxes(tickformat=".0%")
    figure.update_yaxes(autorange="reversed")
    judged = [c for c in review.classes if c.after_median is not None]
    said = [f"{c.family} from {c.before_median:.0%} to {c.after_median:.0%}" for c in judged]
    return Chart(
        name="errors_by_class",
        title="Error before and after calibration, on cases that the fit did not see",
        alt=f"{listed(said)}." if said else "Too few cases of any class to calibrate.",
        figure=figure,
        rows=tuple(
            {
                "class": c.family,
                "cases": c.cases,
                "held out": c.held_out,
                "median before": c.before_median,
                "p90 before": c.before_p90,
                "median after": c.after_median,
                "p90 after": c.after_p90,
            }
            for c in review.classes
        ),
    )


WORDS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
TITLES = {
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "duration_s": "duration, s",
    "weights_gib": "weights, GiB",
    "kv_cache_gib": "KV cache, GiB",
    "graphs_gib": "CUDA graphs, GiB",
    "kv_tokens": "KV cache, tokens",
    "kv_blocks": "KV cache, blocks",
}


def metric_title(name: str) -> str:
    """`p95 TTFT, ms` of `p95_ttft_ms`."""
    statistic, _, rest = name.partition("_")
    metric = rest.removesuffix("_ms")
    return TITLES.get(name) or (f"{statistic} {WORDS[metric]}, ms" if metric in WORDS else name)


def error_text(error: float | None) -> str:
    """`+12.3 %`."""
    return "-" if error is None else f"{100 * error:+z.1f} %"


def metric_rows(metrics: Sequence[MetricRow]) -> list[dict[str, object]]:
    """Measured and predicted beside each other."""
    return [
        {
            "": metric_title(row.name),
            "measured": f"{row.measured:,.4g}",
            "predicted": "-" if row.predicted is None else f"{row.predicted:,.4g}",
            "error": error_text(row.error),
        }
        for row in metrics
    ]


def metrics_chart(run: RunComparison, number: int = 0) -> Chart:
    """A server's metrics: error of the prediction of each. `number` tells the charts of several runs apart."""
    import plotly.graph_objects as go

    errors = [(row, row.error) for row in run.metrics if row.error is not None]
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=[metric_title(row.name) for row, _ in errors],
        x=[error for _, error in errors],
        text=[error_text(error) for _, error in errors],
        textposition="outside",
        showlegend=False,
        **bar_style(0),
    )
    layout(figure, x="predicted / measured - 1", y="", height=140 + 34 * len(errors))
    low, high = (pick(0.0, *(error for _, error in errors)) for pick in (min, max))
    room = 0.45 * (high - low) or 0.01  # for the words of bars, on a phone too
    across = [low - room * (low < 0), high + room * (high > 0)]
    figure.update_xaxes(tickformat="+.0%", zeroline=True, zerolinecolor=NEUTRAL, range=across)
    figure.update_yaxes(autorange="reversed")
    worst = max(errors, key=lambda pair: abs(pair[1]), default=None)
    return Chart(
        name=f"server_metrics_{number + 1}",
        title=f"{run.tool}, {run.requests:,} requests: error of each metric",
        alt="No metric in common."
        if worst is None
        else f"Largest: {metric_title(worst[0].name)}, {error_text(worst[1])}.",
        figure=figure,
        rows=tuple(
            {
                "metric": metric_title(row.name),
                "measured": row.measured,
                "predicted": row.predicted,
                "error": row.error,
            }
            for row in run.metrics
        ),
    )
