"""What was measured against what was predicted: parity, before and after calibration, and a server's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, listed, log_axis, symbol
from capacity.report.subject import subject_of
from capacity_validate.comparison_tables import error_text, inside_text, metric_title

if TYPE_CHECKING:
    from capacity_validate.comparison import Comparison, MetricRow, RunComparison
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


def metrics_chart(run: RunComparison, number: int = 0, *, subject: str = "") -> Chart:
    """A server's metrics: how far the prediction of each is from what was measured, with its 90 % interval.

    Where a whisker reaches over the zero, the measured figure lies within. `number` tells the charts of several runs
    apart.
    """
    import plotly.graph_objects as go

    errors = [(row, row.error) for row in run.metrics if row.error is not None]
    ends = [_relative_ends(row) for row, _ in errors]
    titles = [metric_title(row.name) for row, _ in errors]
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=titles,
        x=[error for _, error in errors],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - error for (_, high), (_, error) in zip(ends, errors, strict=True)],
            "arrayminus": [error - low for (low, _), (_, error) in zip(ends, errors, strict=True)],
            "color": NEUTRAL,
        },
        customdata=[
            f"{error_text(error)}, measured {inside_text(row) or 'without an interval'}"
            for row, error in errors
        ],
        hovertemplate="%{y}: %{customdata}<extra></extra>",
        showlegend=False,
        **bar_style(0),
    )
    low, high = min((0.0, *(end for end, _ in ends))), max((0.0, *(end for _, end in ends)))
    room = (high - low) or 0.01  # for the words, on a phone too
    figure.add_scatter(
        x=[max(end, 0.0) for _, end in ends],  # beside the bar, which may reach beyond its whisker
        y=titles,
        mode="text",
        text=[f" {error_text(error)}{MARKS[row.inside]}" for row, error in errors],
        textposition="middle right",
        textfont={"size": 12},
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
    )
    layout(figure, x="predicted / measured - 1", y="", height=140 + 34 * len(errors))
    across = [low - 0.05 * room, high + 0.45 * room]
    figure.update_xaxes(tickformat="+.0%", zeroline=True, zerolinecolor=NEUTRAL, range=across)
    figure.update_yaxes(autorange="reversed")
    return Chart(
        name=f"server_metrics_{number + 1}",
        title=f"{run.tool}, {run.requests:,} requests: error of each metric",
        alt=_metrics_words(run),
        figure=figure,
        subject=subject,
        rows=tuple(
            {
                "metric": metric_title(row.name),
                "measured": row.measured,
                "predicted": row.predicted,
                "low": row.low,
                "high": row.high,
                "error": row.error,
                "measured is": inside_text(row),
            }
            for row in run.metrics
        ),
    )


MARKS = {True: "", False: ", outside", None: ""}  # by whether what was measured lies within the interval


def _relative_ends(row: MetricRow) -> tuple[float, float]:
    """The ends of a prediction's interval over what was measured, less one; without one its error twice."""
    ends = (row.low, row.high) if row.inside is not None else (row.predicted, row.predicted)
    low, high = ((end or 0.0) / row.measured - 1 for end in ends)
    return low, high


def _metrics_words(run: RunComparison) -> str:
    """The largest error, and how many of the measured figures lie within their intervals."""
    worst = max(
        (row for row in run.metrics if row.error is not None),
        key=lambda row: abs(row.error or 0.0),
        default=None,
    )
    if worst is None:
        return "No metric in common."
    held = sum(bool(row.inside) for row in run.judged)
    within = (
        f" {held} of {len(run.judged)} measured figures lie within the 90 % interval." if run.judged else ""
    )
    return f"Largest: {metric_title(worst.name)}, {error_text(worst.error)}.{within}"


def comparison_charts(answer: Comparison) -> tuple[Chart, ...]:
    """A chart for each run."""
    subject = subject_of(answer)
    return tuple(metrics_chart(run, number, subject=subject) for number, run in enumerate(answer.runs))
