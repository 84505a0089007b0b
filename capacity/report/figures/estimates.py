"""Charts of an estimate that a view cannot declare: the roofline, and one step as a waterfall."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, get_args

from capacity.answers.attribution import BOUNDS
from capacity.answers.records import Estimate, OperatorTime
from capacity.hardware import load_profile
from capacity.report.display import STANDARD, Units, time_and_interval, with_relative_interval
from capacity.report.figures.chart import (
    NEUTRAL,
    Chart,
    apply_layout,
    bar_style,
    colour,
    coordinates,
    listed,
    log_axis,
    new_figure,
    symbol,
)
from capacity.report.figures.drawing import add_interval
from capacity.report.subject import describe_answer
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit
from capacity.report.views.view import Column, Table

Phase = Literal["prefill", "decode"]
WHOLE_STEP = "whole step"
AXIS_ROOM = 1.8  # axis length / step, so that the label of the last bar fits on a phone
PHASES: tuple[Phase, ...] = get_args(Phase)
INTENSITY_UNIT, RATE_UNIT = "FLOP/byte", "TFLOP/s"
TERA = 1e12
OPERATOR_COLUMNS = (
    Column("operator", "operator"),
    Column("{time}", "seconds", Unit(3, follows="time")),
    Column("share", "share", Unit(0, 100, "%", none="")),
    Column("GFLOP", "flops", Unit(1, 1e-9, none="")),
    Column("MB", "bytes", Unit(1, 1e-6, none="")),
    Column("bound", "bound"),
)


def roofline_chart(answer: Estimate) -> Chart:
    """Return the roofline chart of one GPU: FLOP/s against FLOP per HBM byte of prefill and decode operators."""
    ridge = answer.arithmetic_intensity.ridge_flops_per_byte
    rows = {phase: _roofline_rows(answer, phase) for phase in PHASES}
    points = [row for phase in PHASES for row in rows[phase]]
    figure = new_figure()
    intensities = [row[INTENSITY_UNIT] for row in points]
    ends = (min(0.5, *intensities), ridge, max(4 * ridge, *intensities))
    bytes_per_s = load_profile(answer.gpu.name).hbm_bytes_per_s
    roof = [{INTENSITY_UNIT: x, RATE_UNIT: bytes_per_s * min(x, ridge) / TERA} for x in ends]
    line = {"color": NEUTRAL, "width": 2}
    _add_points(
        figure, roof, "lines", name="roofline: limit by HBM, then by compute", line=line, hoverinfo="skip"
    )
    for index, phase in enumerate(PHASES):
        look = {"color": colour(index), "symbol": symbol(index)}
        steps = [row for row in rows[phase] if row["operator"] == "step"]
        others = [row for row in rows[phase] if row["operator"] != "step"]
        names, small = [row["operator"] for row in others], {**look, "size": 8, "opacity": 0.8}
        _add_points(figure, others, "markers", name=f"{phase} operators", text=names, marker=small)
        large = {**look, "size": 18}
        _add_points(figure, steps, "markers+text", name=f"{phase} step", text=[phase], marker=large)
    at_ridge = {"symbol": "line-ns-open", "size": 16, "color": NEUTRAL}
    said = {"text": [f"ridge {ridge:,.0f}"], "textposition": "top left", "hoverinfo": "skip"}
    _add_points(figure, roof[1:2], "markers+text", marker=at_ridge, showlegend=False, **said)
    apply_layout(figure, x="FLOP per HBM byte", y="TFLOP/s on one GPU", height=460)
    figure.update_xaxes(**log_axis([row[INTENSITY_UNIT] for row in (*roof, *points)]))
    figure.update_yaxes(**log_axis([row[RATE_UNIT] for row in (*roof, *points)]))
    phrases = [
        f"{row['phase']} {row[INTENSITY_UNIT]:,.0f} FLOP/byte at {row[RATE_UNIT]:,.1f} TFLOP/s"
        for row in points
        if row["operator"] == "step"
    ]
    return Chart(
        name="roofline",
        title=f"Roofline of one {answer.gpu.name}",
        alt=f"{listed(phrases)}; the ridge between memory and compute bound is at {ridge:,.0f} FLOP/byte.",
        figure=figure,
        subject=describe_answer(answer),
        rows=tuple(points),
    )


def _add_points(figure: Any, rows: Sequence[Mapping[str, Any]], mode: str, **look: Any) -> None:
    hover = "%{text}: %{x:,.1f} FLOP/byte, %{y:,.2f} TFLOP/s<extra></extra>"
    shown = {"mode": mode, "textposition": "bottom center", "hovertemplate": hover} | look
    figure.add_scatter(**coordinates((row[INTENSITY_UNIT], row[RATE_UNIT]) for row in rows), **shown)


def _roofline_rows(answer: Estimate, phase: Phase) -> list[Mapping[str, Any]]:
    """Return the points of the roofline chart: each operator of a step, and the whole step."""
    operators: Sequence[OperatorTime] = getattr(answer.breakdown, phase)
    points = [
        (op.name, op.flops / op.bytes, op.flops / op.seconds / TERA, op.bound)
        for op in operators
        if op.flops and op.bytes and op.seconds
    ]
    intensity = getattr(answer.arithmetic_intensity, f"{phase}_flops_per_byte")
    if intensity is not None:
        total_s = sum(op.seconds for op in operators)
        attained = sum(op.flops for op in operators) / total_s / TERA
        points.append(("step", intensity, attained, getattr(answer.bound, phase)))
    names = ("phase", "operator", INTENSITY_UNIT, RATE_UNIT, "bound")
    return [dict(zip(names, (phase, *point), strict=True)) for point in points]


def step_table(title: str, operators: Sequence[OperatorTime]) -> Table:
    """Return a table of one step with a row for each operator and the total."""
    total_s = sum(op.seconds for op in operators)
    rows = [
        {
            "operator": op.name,
            "seconds": op.seconds,
            "share": op.seconds / total_s,
            "flops": op.flops,
            "bytes": op.bytes,
            "bound": op.bound,
        }
        for op in operators
    ]
    whole = {"operator": "[bold]step[/bold]", "seconds": total_s, "bound": ""}
    return Table(title, [*rows, whole], OPERATOR_COLUMNS)


def step_chart(answer: Estimate, phase: Phase, units: Units = STANDARD) -> Chart:
    """Return the waterfall chart of one step, with a bar for each operator, coloured and hatched by bottleneck.

    The last bar is the whole step with the relative 90 % interval of its latency: TPOT for a decode step, TTFT for a
    prefill step.
    """
    operators: Sequence[OperatorTime] = getattr(answer.breakdown, phase)
    total_s = sum(op.seconds for op in operators)
    whole = with_relative_interval(total_s, answer.tpot_s if phase == "decode" else answer.ttft_s)
    starts = list(accumulate((op.seconds for op in operators), initial=0.0))[:-1]
    figure = new_figure()
    for index, bound in enumerate(BOUNDS):
        chosen = [(op, start) for op, start in zip(operators, starts, strict=True) if op.bound == bound]
        figure.add_bar(
            name=bound,
            orientation="h",
            y=[op.name for op, _ in chosen],
            x=[units.convert_seconds(op.seconds) for op, _ in chosen],
            base=[units.convert_seconds(start) for _, start in chosen],
            **bar_style(index),
            text=[f"{units.time_text(op.seconds)} ({op.seconds / total_s:.0%})" for op, _ in chosen],
            textposition="outside",
            hovertemplate="%{y}: %{text}, " + bound + "<extra></extra>",
        )
    add_interval(figure, WHOLE_STEP, whole, units.convert_seconds(1))
    names = [*(op.name for op in operators), *([WHOLE_STEP] if whole.high is not None else [])]
    apply_layout(
        figure, x=f"{units.time} of one {phase} step", y="", height=150 + 28 * len(names), barmode="overlay"
    )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    longest_s = max(total_s * AXIS_ROOM, 1.05 * (whole.high or 0.0))
    figure.update_xaxes(range=[0, units.convert_seconds(longest_s)])
    largest = sorted(operators, key=lambda op: -op.seconds)[:3]
    phrases = listed([f"{op.name} {op.seconds / total_s:.0%}" for op in largest])
    value, within = time_and_interval(whole, units)
    said = f"{value} ({within})" if within else value
    return Chart(
        name=f"{phase}_step",
        title=f"A {phase} step: {value}",
        alt=f"A {phase} step takes {said}; the largest parts are {phrases}.",
        figure=figure,
        subject=describe_answer(answer),
        rows=tuple(table_records(step_table("", operators), units)[:-1]),
    )
