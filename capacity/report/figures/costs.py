"""The curve as pictures: latency and throughput against load, replicas by the hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, listed, symbol
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.planning.load.curve import Curve


def day_chart(curve: Curve) -> Chart | None:
    """Replicas by the hour against as many as the peak needs around the clock; None where no day was asked for."""
    import plotly.graph_objects as go

    day = curve.day
    if day is None:
        return None
    hours = [hour.hour for hour in day.hours]
    figure = go.Figure()
    figure.add_bar(
        name="autoscaled",
        x=hours,
        y=[hour.replicas for hour in day.hours],
        **bar_style(0),
        customdata=[hour.request_rate_per_s for hour in day.hours],
        hovertemplate="%{x}:00: %{y} replicas for %{customdata:,.2f} requests/s<extra></extra>",
    )
    figure.add_scatter(
        name="fixed",
        x=[hours[0] - 0.5, hours[-1] + 0.5],
        y=[day.peak_replicas] * 2,
        mode="lines",
        line={"color": colour(1), "dash": "dash", "width": 3},
    )
    layout(figure, x="hour of the day", y="replicas", height=360)
    figure.update_yaxes(rangemode="tozero", dtick=max(1, day.peak_replicas // 8))
    saved = day.fixed_replica_hours - day.autoscaled_replica_hours
    return Chart(
        name="replicas_by_hour",
        title="Replicas by the hour",
        alt=(
            f"Autoscaled {day.autoscaled_replica_hours:,} replica-hours a day, fixed {day.fixed_replica_hours:,}: "
            f"{saved:,} fewer."
        ),
        figure=figure,
        subject=subject_of(curve),
        rows=tuple(
            {
                "hour": hour.hour,
                "requests/s": hour.request_rate_per_s,
                "autoscaled": hour.replicas,
                "fixed": day.peak_replicas,
            }
            for hour in day.hours
        ),
    )


def curve_chart(curve: Curve) -> Chart:
    """Each level of the SLO over the request rate, as a share of its limit (1: met); knee and highest rate marked."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = [level.slo for level in curve.points[0].levels] if curve.points else []
    rates = [point.request_rate_per_s for point in curve.points]
    for index, name in enumerate(names):
        figure.add_scatter(
            name=name,
            x=rates,
            y=[point.levels[index].ratio for point in curve.points],
            mode="lines+markers",
            line={"color": colour(index), "width": 2.5},
            marker={"symbol": symbol(index), "size": 9},
            hovertemplate=f"{name}: %{{y:.2f}} of the limit at %{{x:,.2f}} requests/s<extra></extra>",
        )
    figure.add_hline(y=1.0, line={"color": NEUTRAL, "dash": "dash", "width": 2}, annotation={"text": "limit"})
    marks = [] if curve.knee_per_s is None else [("knee", curve.knee_per_s)]
    if curve.highest is not None:
        marks.append(("highest rate within the SLO", curve.highest.at_confidence))
    for label, rate in marks:
        figure.add_vline(
            x=rate,
            line={"color": NEUTRAL, "dash": "dot", "width": 2},
            annotation={"text": label, "textangle": -90, "yanchor": "top"},
        )
    if curve.highest is not None:
        figure.add_vrect(
            x0=curve.highest.low,
            x1=curve.highest.high,
            fillcolor=colour(0),
            opacity=0.12,
            line_width=0,
            annotation={"text": "90 % band of the rate", "yanchor": "bottom", "y": 0},
            annotation_position="bottom right",
        )
    layout(figure, x="requests/s offered", y="level / limit", height=400)
    figure.update_yaxes(rangemode="tozero", range=[0, 3])
    return Chart(
        name="latency_against_load",
        title="Latency against load",
        alt=listed([f"{label} at {rate:,.2f} requests/s" for label, rate in marks]) + ".",
        figure=figure,
        subject=subject_of(curve),
        rows=tuple(
            {
                "requests/s": point.request_rate_per_s,
                "served/s": point.requests_per_s,
                **{f"{level.slo}, s": level.value_s for level in point.levels},
                "met": point.met,
                "$ per 1M input": None if point.cost is None else point.cost.usd_per_million_input_tokens,
                "$ per 1M output": None if point.cost is None else point.cost.usd_per_million_output_tokens,
            }
            for point in curve.points
        ),
    )


def served_chart(curve: Curve) -> Chart:
    """Output tokens/s over the request rate that is offered."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.add_scatter(
        x=[p.request_rate_per_s for p in curve.points],
        y=[p.output_tokens_per_s for p in curve.points],
        mode="lines+markers",
        name="output tokens/s",
        line={"color": colour(0), "width": 2.5},
        marker={"symbol": symbol(0), "color": colour(0), "size": 8},
    )
    layout(figure, x="requests/s offered", y="output tokens/s", height=320)
    figure.update_yaxes(rangemode="tozero")
    most = max((p.output_tokens_per_s for p in curve.points), default=0.0)
    return Chart(
        name="throughput_over_load",
        title="Throughput against load",
        alt=f"At most {most:,.0f} output tokens/s over the rates tried.",
        figure=figure,
        rows=tuple(
            {"requests/s": p.request_rate_per_s, "output tokens/s": p.output_tokens_per_s}
            for p in curve.points
        ),
        subject=subject_of(curve),
    )
