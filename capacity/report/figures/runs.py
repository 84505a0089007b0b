"""Simulated runs as pictures: latency distributions, state over time, where time went, the steps one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capacity.answers.attribution import BOUNDS
from capacity.base.latency_metrics import METRICS
from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import (
    MODE_BAR,
    NEUTRAL,
    Chart,
    bar_style,
    colour,
    layout,
    listed,
    log_axis,
    symbol,
)
from capacity.report.figures.drawing import draw_chart
from capacity.report.subject import subject_of
from capacity.report.views.units import MS, PERCENT_0
from capacity.report.views.view import Stack
from capacity.simulator.distribution import PERCENTILES

if TYPE_CHECKING:
    from capacity.answers.records import Quantity, Simulation

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CURVE_POINTS = 400
SERIES_POINTS = 600
STATES = (
    ("running", "requests running"),
    ("waiting", "requests waiting"),
    ("kv_fraction", "KV cache in use"),
)


def latency_chart(
    runs: Mapping[str, Simulation],
    metric: str,
    units: Units = STANDARD,
    *,
    limit_s: float | None = None,
) -> Chart:
    """Share of requests at or below a latency, a curve for each run; with a limit, a line for it."""
    import numpy as np
    import plotly.graph_objects as go

    name = METRICS[metric].title
    figure, rows, phrases = go.Figure(), [], []
    for index, (label, answer) in enumerate(runs.items()):
        values_s = np.sort(answer.run.records.latency_s(metric))
        values_s = values_s[~np.isnan(values_s)]
        if not len(values_s):
            continue
        shares = np.linspace(0.0, 1.0, min(CURVE_POINTS, len(values_s)))
        figure.add_scatter(
            x=[units.of_seconds(float(v)) for v in np.quantile(values_s, shares)],
            y=shares,
            mode="lines",
            name=label,
            line={"color": colour(index), "dash": DASHES[index % len(DASHES)], "width": line_width(index)},
            hovertemplate=f"{label}: %{{y:.1%}} within %{{x:,.4g}} {units.time}<extra></extra>",
        )
        quantiles = {p: float(np.percentile(values_s, p)) for p in PERCENTILES}
        figure.add_scatter(
            x=[units.of_seconds(v) for v in quantiles.values()],
            y=[p / 100 for p in quantiles],
            mode="markers+text",
            marker={"symbol": symbol(index), "color": colour(index), "size": 9},
            text=[f"p{p}" for p in quantiles],
            textposition="middle right" if index == 0 else "middle left",
            error_x=_error_bars([_prediction_s(answer, metric, p) for p in quantiles], units, 1.5),
            customdata=[_quantile_text(answer, metric, p, v, units) for p, v in quantiles.items()],
            hovertemplate=f"{label}, %{{text}}: %{{customdata}}<extra></extra>",
            showlegend=False,
        )
        rows.append(
            {"run": label, **{f"p{p}, {units.time}": units.of_seconds(v) for p, v in quantiles.items()}}
        )
        phrases.append(f"{label} p95 {_quantile_text(answer, metric, 95, quantiles[95], units)}")
    if limit_s is not None:
        figure.add_vline(
            x=units.of_seconds(limit_s),
            line={"color": NEUTRAL, "dash": "dash", "width": 2},
        )
        figure.add_annotation(
            text=f"limit {units.time_text(limit_s)}",
            x=math.log10(units.of_seconds(limit_s)),  # as annotations on a logarithmic axis want it
            y=0.02,
            yanchor="bottom",
            xanchor="right",
            xshift=-4,
            showarrow=False,
        )
    layout(figure, x=f"{name}, {units.time}", y="share of requests", height=380)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.05])
    drawn = [float(x) for trace in figure.data for x in trace.x]
    figure.update_xaxes(**log_axis(drawn if limit_s is None else [*drawn, units.of_seconds(limit_s)]))
    return Chart(
        name=f"{metric}_distribution",
        title=f"{name}: share of requests within it",
        alt=f"{name}: {listed(phrases)}." if phrases else f"No request has a {name}.",
        figure=figure,
        subject=_subject(runs),
        rows=tuple(rows),
    )


def _subject(runs: Mapping[str, Simulation]) -> str:
    """What the first is of: the others differ from it in what their names say."""
    return subject_of(next(iter(runs.values()))) if runs else ""


def line_width(index: int) -> float:
    """Of the n-th line: one that lies on another leaves a rim of it."""
    return max(2.0, 5.0 - 1.5 * index)


def _prediction_s(answer: Simulation, metric: str, percentile: int) -> Quantity | None:
    """What is known of a percentile's error, in seconds."""
    found = answer.predicted_ms.get(f"p{percentile}_{metric}_ms")
    return None if found is None else found.scaled(1e-3)


def _quantile_text(answer: Simulation, metric: str, percentile: int, seconds: float, units: Units) -> str:
    found = _prediction_s(answer, metric, percentile)
    within = "" if found is None else units.time_interval(found)
    return units.time_text(seconds, found) + (f" (90 %: {within})" if within else "")


def _error_bars(known: Sequence[Quantity | None], units: Units, thickness: float) -> dict[str, Any]:
    """The 90 % interval (s) of each figure that has one."""
    ends = [
        (0.0, 0.0)
        if each is None or each.low is None or each.high is None
        else (max(0.0, each.high - each.value), max(0.0, each.value - each.low))
        for each in known
    ]
    return {
        "type": "data",
        "symmetric": False,
        "array": [units.of_seconds(above) for above, _ in ends],
        "arrayminus": [units.of_seconds(below) for _, below in ends],
        "color": NEUTRAL,
        "thickness": thickness,
    }


def state_chart(runs: Mapping[str, Simulation]) -> Chart:
    """Batch, queue and KV use over time: three panels that zoom together. Needs runs with a time series."""
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=len(STATES),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.07,
        subplot_titles=[t for _, t in STATES],
    )
    rows: list[Mapping[str, object]] = []
    phrases = []
    for index, (label, answer) in enumerate(runs.items()):
        states = _states(answer)
        rows += [{"run": label, **row} for row in states]
        for panel, (state, _) in enumerate(STATES, start=1):
            figure.add_scatter(
                x=[row["time_s"] for row in states],
                y=[row[state] for row in states],
                mode="lines",
                name=label,
                legendgroup=label,
                showlegend=panel == 1,
                line={
                    "color": colour(index),
                    "dash": DASHES[index % len(DASHES)],
                    "width": line_width(index) - 0.5,
                },
                row=panel,
                col=1,
            )
        peak = max((row["kv_fraction"] for row in states), default=0.0)
        queue = max((row["waiting"] for row in states), default=0)
        phrases.append(f"{label}: at most {queue:,} waiting, KV at most {peak:.0%}")
    layout(figure, x="", y="", height=560)
    figure.update_xaxes(title_text="s since the first arrival", row=len(STATES), col=1)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".0%", row=len(STATES), col=1)
    figure.update_layout(margin={"t": 2 * MODE_BAR})
    return Chart(
        name="state_over_time",
        title="The engine over time",
        alt="; ".join(phrases) + ".",
        figure=figure,
        subject=_subject(runs),
        rows=tuple(rows),
    )


def _states(answer: Simulation) -> list[dict[str, float]]:
    """The series, thinned to what a screen shows; of several engines their sum."""
    series = answer.run.series or ()
    every = max(1, len(series) // SERIES_POINTS)
    blocks = max(1, answer.kv_capacity_blocks * max(1, len(answer.run.replicas)))
    return [
        {
            "time_s": sample.time_s,
            "running": sample.running,
            "waiting": sample.waiting,
            "kv_fraction": sample.kv_used_blocks / blocks,
        }
        for sample in series[::every]
    ]


def time_parts_chart(runs: Mapping[str, Simulation], units: Units = STANDARD) -> Chart:
    """Where the time of all requests, and of the slowest 5 %, went: stacked bars that add up to E2E latency."""
    bars: list[tuple[str, Mapping[str, float]]] = []
    for label, answer in runs.items():
        if answer.time_parts is None:
            continue
        bars.append((f"{label}, all", answer.time_parts["mean_ms"]))
        bars.append((f"{label}, slowest 5 %", answer.time_parts["slowest_mean_ms"]))
    names = dict.fromkeys(part for _, parts in bars for part in parts)
    means = {label: answer.predicted_ms.get("mean_e2el_ms") for label, answer in runs.items()}
    largest = [f"{label}: mostly {max(parts, key=lambda p: parts[p])}" for label, parts in bars]
    drawing = Stack(
        name="where_time_went",
        title="Where the time of a request goes",
        alt=(listed(largest) + ".") if largest else "No request completed.",
        data={name: {label: parts.get(name, 0.0) / 1e3 for label, parts in bars} for name in names},
        unit=MS,
        axis="mean, {time}",
        wholes={f"{label}, all": mean and mean.scaled(1e-3) for label, mean in means.items()},
        rows=[{"requests": label, **{f"{p}, ms": v for p, v in parts.items()}} for label, parts in bars],
    )
    return replace(draw_chart(drawing, units=units), subject=_subject(runs))


def bounds_chart(runs: Mapping[str, Simulation]) -> Chart:
    """What the busy time of the engine went to: a bar for each run, by what bound its steps."""
    bounded = {label: answer for label, answer in runs.items() if answer.step_bounds}
    phrases = [f"{label}: mostly {_largest_bound(answer)}" for label, answer in bounded.items()]
    drawing = Stack(
        name="what_bound_the_steps",
        title="What bound the steps",
        alt=(listed(phrases) + ".") if phrases else "No step was taken.",
        data={
            bound: {label: _share_of(answer, bound) for label, answer in bounded.items()} for bound in BOUNDS
        },
        unit=PERCENT_0,
        axis="% of busy time",
        rows=[
            {
                "run": label,
                "bound": bound.bound,
                "share of steps": bound.steps_fraction,
                "share of busy time": bound.time_fraction,
                "s": bound.time_s,
            }
            for label, answer in bounded.items()
            for bound in answer.step_bounds
        ],
    )
    return replace(draw_chart(drawing), subject=_subject(runs))


def _largest_bound(answer: Simulation) -> str:
    return max(answer.step_bounds, key=lambda part: part.time_fraction).bound


def _share_of(answer: Simulation, bound: str) -> float:
    return sum(part.time_fraction for part in answer.step_bounds if part.bound == bound)


def timeline_chart(steps: Sequence[Mapping[str, Any]], units: Units = STANDARD) -> Chart:
    """Every step as a bar as wide as it lasted and as high as its tokens; drag to zoom.

    `steps` are those of a Chrome trace (`simulator.Timeline`): `ts` and `dur` in microseconds, `name` its kind, `args`
    its rows and tokens.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    kinds = ("prefill", "mixed", "decode")
    for index, kind in enumerate(kinds):
        chosen = [step for step in steps if step["name"] == kind]
        figure.add_bar(
            name=kind,
            x=[units.of_seconds((step["ts"] + step["dur"] / 2) / 1e6) for step in chosen],
            width=[units.of_seconds(step["dur"] / 1e6) for step in chosen],
            y=[step["args"]["tokens"] for step in chosen],
            **bar_style(index),
            customdata=[
                (units.time_text(step["dur"] / 1e6), step["args"]["rows"], step["args"]["prefill_tokens"])
                for step in chosen
            ],
            hovertemplate=f"{kind}: %{{customdata[0]}}, %{{customdata[1]}} rows, %{{y:,}} tokens, "
            "%{customdata[2]:,} of them prefill<extra></extra>",
        )
    layout(figure, x=f"time, {units.time}", y="tokens in the step", height=420, bargap=0, dragmode="zoom")
    figure.update_xaxes(rangeslider={"visible": True, "thickness": 0.08})
    counted = [f"{sum(step['name'] == kind for step in steps):,} {kind}" for kind in kinds]
    return Chart(
        name="step_timeline",
        title="The steps, one by one",
        alt=f"{len(steps):,} steps: {listed(counted)}.",
        figure=figure,
        rows=tuple(
            {
                "start, s": step["ts"] / 1e6,
                "lasts, s": step["dur"] / 1e6,
                "kind": step["name"],
                **step["args"],
            }
            for step in steps
        ),
    )
