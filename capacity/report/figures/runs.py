"""Charts of simulated runs that a view cannot declare: latency distributions, engine state over time, and steps."""

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from capacity.answers.records import Quantity, Simulation
from capacity.base.latency_metrics import METRICS
from capacity.report.display import STANDARD, Units
from capacity.report.figures.chart import (
    DASHES,
    MODE_BAR,
    NEUTRAL,
    Chart,
    apply_layout,
    bar_style,
    colour,
    listed,
    log_axis,
    new_figure,
    symbol,
)
from capacity.report.figures.drawing import whiskers
from capacity.report.subject import describe_answer
from capacity.report.views.units import group_by, read_columns, read_rows
from capacity.simulator.distribution import PERCENTILES

CURVE_POINTS = 400
SERIES_POINTS = 600
STATES = {"running": "requests running", "waiting": "requests waiting", "kv_fraction": "KV cache in use"}


def latency_chart(
    runs: Mapping[str, Simulation], metric: str, units: Units = STANDARD, *, limit_s: float | None = None
) -> Chart:
    """Return the cumulative distribution of a latency, one curve for each run, and a line at the limit."""
    import numpy as np

    name = METRICS[metric].title
    figure, rows, phrases = new_figure(), [], []
    for index, (label, answer) in enumerate(runs.items()):
        values_s = answer.run.records.latency_s(metric)
        values_s = values_s[~np.isnan(values_s)]
        if not len(values_s):
            continue
        shares = np.linspace(0.0, 1.0, min(CURVE_POINTS, len(values_s)))
        figure.add_scatter(
            x=[units.convert_seconds(value) for value in np.quantile(values_s, shares).tolist()],
            y=shares,
            mode="lines",
            name=label,
            line=line_style(index),
            hovertemplate=f"{label}: %{{y:.1%}} within %{{x:,.4g}} {units.time}<extra></extra>",
        )
        quantiles_s = dict(zip(PERCENTILES, np.percentile(values_s, PERCENTILES).tolist(), strict=True))
        known = {p: answer.predicted_ms.get(f"p{p}_{metric}_ms") for p in PERCENTILES}
        known_s = {percent: each and each.scale(1e-3) for percent, each in known.items()}
        texts = _draw_percentiles(figure, index, label, quantiles_s, known_s, units)
        shown = {f"p{p}, {units.time}": units.convert_seconds(value) for p, value in quantiles_s.items()}
        rows.append({"run": label, **shown})
        phrases.append(f"{label} p95 {texts[95]}")
    drawn = [float(x) for trace in figure.data for x in trace.x]
    if limit_s is not None:
        drawn.append(units.convert_seconds(limit_s))
        _draw_limit(figure, drawn[-1], units.time_text(limit_s))
    apply_layout(figure, x=f"{name}, {units.time}", y="share of requests", height=380)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.05])
    figure.update_xaxes(**log_axis(drawn))
    return Chart(
        name=f"{metric}_distribution",
        title=f"Distribution of {name}",
        alt=f"{name}: {listed(phrases)}." if phrases else f"No request has a {name}.",
        figure=figure,
        subject=describe_answer(next(iter(runs.values()), None)),
        rows=tuple(rows),
    )


def _draw_percentiles(
    figure: Any,
    index: int,
    label: str,
    quantiles_s: Mapping[int, float],
    known_s: Mapping[int, Quantity | None],
    units: Units,
) -> dict[int, str]:
    """Draw the percentiles of the n-th run, with the intervals of the predictions `known_s`; return them as texts."""
    texts = {percent: units.time_text(value, known_s[percent]) for percent, value in quantiles_s.items()}
    for percent, each in known_s.items():
        if each is not None and (within := units.time_interval(each)):
            texts[percent] += f" (90 %: {within})"
    figure.add_scatter(
        x=[units.convert_seconds(value) for value in quantiles_s.values()],
        y=[percent / 100 for percent in quantiles_s],
        mode="markers+text",
        marker={"symbol": symbol(index), "color": colour(index), "size": 9},
        text=[f"p{percent}" for percent in quantiles_s],
        textposition="middle right" if index == 0 else "middle left",
        error_x={**whiskers(known_s.values(), scale=units.convert_seconds(1)), "thickness": 1.5},
        customdata=list(texts.values()),
        hovertemplate=f"{label}, %{{text}}: %{{customdata}}<extra></extra>",
        showlegend=False,
    )
    return texts


def _draw_limit(figure: Any, limit: float, text: str) -> None:
    """Draw a vertical line at the limit, which is in the unit of the x axis."""
    figure.add_vline(x=limit, line={"color": NEUTRAL, "dash": "dash", "width": 2})
    figure.add_annotation(
        text=f"limit {text}",
        x=math.log10(limit),  # annotations on a logarithmic axis need the logarithm
        y=0.02,
        yanchor="bottom",
        xanchor="right",
        xshift=-4,
        showarrow=False,
    )


def line_style(index: int, width: float = 5.0) -> dict[str, object]:
    """Return the style of the n-th line; lines get thinner, so that a covered line remains visible."""
    return {
        "color": colour(index),
        "dash": DASHES[index % len(DASHES)],
        "width": max(width - 3.0, width - 1.5 * index),
    }


def state_chart(runs: Mapping[str, Simulation]) -> Chart:
    """Return batch, queue and KV use over time in three panels that zoom together. Needs runs with a time series."""
    figure = new_figure(rows=len(STATES), vertical_spacing=0.07, subplot_titles=list(STATES.values()))
    states = {label: _state_rows(answer) for label, answer in runs.items()}
    phrases = []
    for index, (label, samples) in enumerate(states.items()):
        for panel, state in enumerate(STATES, start=1):
            figure.add_scatter(
                **read_columns(samples, x="time_s", y=state),
                mode="lines",
                name=label,
                legendgroup=label,
                showlegend=panel == 1,
                line=line_style(index, 4.5),
                row=panel,
                col=1,
            )
        queue, peak = (
            max((sample[state] for sample in samples), default=0) for state in ("waiting", "kv_fraction")
        )
        phrases.append(f"{label}: at most {queue:,} requests waiting, KV use at most {peak:.0%}")
    apply_layout(figure, x="", y="", height=560)
    figure.update_xaxes(title_text="s since the first arrival", row=len(STATES), col=1)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".0%", row=len(STATES), col=1)
    figure.update_layout(margin={"t": 2 * MODE_BAR})
    return Chart(
        name="state_over_time",
        title="Engine state over time",
        alt="; ".join(phrases) + ".",
        figure=figure,
        subject=describe_answer(next(iter(runs.values()), None)),
        rows=tuple({"run": label, **sample} for label, samples in states.items() for sample in samples),
    )


def _state_rows(answer: Simulation) -> list[dict[str, float]]:
    """Return the time series, thinned to the resolution of a screen; KV use is relative to all replicas' caches."""
    series = answer.run.series or ()
    every = max(1, len(series) // SERIES_POINTS)
    blocks = max(1, answer.kv_capacity_blocks * max(1, len(answer.run.replicas)))
    paths = {"time_s": "time_s", "running": "running", "waiting": "waiting", "kv_fraction": "kv_used_blocks"}
    rows = read_rows(series[::every], paths)
    return [{**row, "kv_fraction": row["kv_fraction"] / blocks} for row in rows]


def timeline_chart(steps: Sequence[Mapping[str, Any]], units: Units = STANDARD) -> Chart:
    """Return a chart with one bar for each step, as wide as its duration and as high as its number of tokens.

    Drag to zoom. `steps` are the events of a Chrome trace (`simulator.Timeline`): `ts` and `dur` in microseconds,
    `name` is the kind of step, `args` contains the numbers of requests (`rows`) and tokens.
    """
    figure = new_figure()
    found = group_by(steps, "name")
    steps_by_kind = {kind: found.get(kind, []) for kind in ("prefill", "mixed", "decode")}
    for index, (kind, chosen) in enumerate(steps_by_kind.items()):
        figure.add_bar(
            name=kind,
            x=[units.convert_seconds((step["ts"] + step["dur"] / 2) / 1e6) for step in chosen],
            width=[units.convert_seconds(step["dur"] / 1e6) for step in chosen],
            **read_columns(chosen, y="args.tokens", customdata=itemgetter("args")),
            **bar_style(index),
            text=[units.time_text(step["dur"] / 1e6) for step in chosen],
            textposition="none",
            hovertemplate=f"{kind}: %{{text}}, %{{customdata.rows}} requests, %{{y:,}} tokens, "
            "%{customdata.prefill_tokens:,} of them prefill<extra></extra>",
        )
    apply_layout(
        figure, x=f"time, {units.time}", y="tokens in the step", height=420, bargap=0, dragmode="zoom"
    )
    figure.update_xaxes(rangeslider={"visible": True, "thickness": 0.08})
    counted = [f"{len(chosen):,} {kind}" for kind, chosen in steps_by_kind.items()]
    return Chart(
        name="step_timeline",
        title="Timeline of the steps",
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
