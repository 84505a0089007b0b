"""Charts of an estimate that a view cannot declare: the roofline, and one step as a waterfall."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, Literal, get_args

from capacity.answers.attribution import BOUNDS
from capacity.answers.records import Estimate, OperatorTime
from capacity.hardware import load_profile
from capacity.report.display import STANDARD, Units, phrase, time_and_interval, with_relative_interval
from capacity.report.figures.chart import (
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
from capacity.report.figures.drawing import add_interval
from capacity.report.subject import describe_answer
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit, group_by, read_columns
from capacity.report.views.view import Column, Table

Phase = Literal["prefill", "decode"]
WHOLE_STEP = "whole step"
AXIS_ROOM = 1.8  # axis length / step, so that the label of the last bar fits on a phone
PHASES: tuple[Phase, ...] = get_args(Phase)
INTENSITY_UNIT, RATE_UNIT = "FLOP/byte", "TFLOP/s"
TERA = 1e12
OPERATOR_COLUMNS = (
    Column("operator", "name"),
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
    intensities = read_columns(points, x=INTENSITY_UNIT)["x"]
    ends = (min(0.5, *intensities), ridge, max(4 * ridge, *intensities))
    bytes_per_s = load_profile(answer.gpu.name).hbm_bytes_per_s
    roof = [{INTENSITY_UNIT: x, RATE_UNIT: bytes_per_s * min(x, ridge) / TERA} for x in ends]
    line = {"color": NEUTRAL, "width": 2}
    _add_points(
        figure, roof, "lines", name="roofline: limit by HBM, then by compute", line=line, hoverinfo="skip"
    )
    phrases = []
    for index, phase in enumerate(PHASES):
        look = {"color": colour(index), "symbol": symbol(index)}
        steps = [row for row in rows[phase] if row["operator"] == "step"]
        others = [row for row in rows[phase] if row["operator"] != "step"]
        small, large = {**look, "size": 8, "opacity": 0.8}, {**look, "size": 18}
        _add_points(figure, others, "markers", name=f"{phase} operators", marker=small)
        _add_points(figure, steps, "markers+text", name=f"{phase} step", text=[phase], marker=large)
        phrases += [
            f"{phase} {row[INTENSITY_UNIT]:,.0f} FLOP/byte at {row[RATE_UNIT]:,.1f} TFLOP/s" for row in steps
        ]
    at_ridge = {"symbol": "line-ns-open", "size": 16, "color": NEUTRAL}
    said = {"text": [f"ridge {ridge:,.0f}"], "textposition": "top left", "hoverinfo": "skip"}
    _add_points(figure, roof[1:2], "markers+text", marker=at_ridge, showlegend=False, **said)
    apply_layout(figure, x="FLOP per HBM byte", y="TFLOP/s on one GPU", height=460)
    drawn = read_columns([*roof, *points], x=INTENSITY_UNIT, y=RATE_UNIT)
    figure.update_xaxes(**log_axis(drawn["x"]))
    figure.update_yaxes(**log_axis(drawn["y"]))
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
    shown = {"mode": mode, "textposition": "bottom center", "hovertemplate": hover}
    points = read_columns(rows, x=INTENSITY_UNIT, y=RATE_UNIT, text="operator")
    figure.add_scatter(**points | shown | look)


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
        attained = sum(op.flops for op in operators) / _step_seconds(operators) / TERA
        points.append(("step", intensity, attained, getattr(answer.bound, phase)))
    names = ("phase", "operator", INTENSITY_UNIT, RATE_UNIT, "bound")
    return [dict(zip(names, (phase, *point), strict=True)) for point in points]


def step_table(title: str, operators: Sequence[OperatorTime]) -> Table:
    """Return a table of one step with a row for each operator and the total."""
    total_s = _step_seconds(operators)
    rows = [{**asdict(op), "share": op.seconds / total_s} for op in operators]
    whole = {"name": "[bold]step[/bold]", "seconds": total_s, "bound": ""}
    return Table(title, [*rows, whole], OPERATOR_COLUMNS)


def _step_seconds(operators: Sequence[OperatorTime]) -> float:
    return sum(op.seconds for op in operators)


def step_chart(answer: Estimate, phase: Phase, units: Units = STANDARD) -> Chart:
    """Return the waterfall chart of one step, with a bar for each operator, coloured and hatched by bottleneck.

    The last bar is the whole step with the relative 90 % interval of its latency: TPOT for a decode step, TTFT for a
    prefill step.
    """
    operators: Sequence[OperatorTime] = getattr(answer.breakdown, phase)
    total_s = _step_seconds(operators)
    whole = with_relative_interval(total_s, answer.tpot_s if phase == "decode" else answer.ttft_s)
    starts = accumulate((op.seconds for op in operators), initial=0.0)
    bars = [
        (
            op,
            units.convert_seconds(op.seconds),
            units.convert_seconds(start),
            f"{units.time_text(op.seconds)} ({op.seconds / total_s:.0%})",
        )
        for op, start in zip(operators, starts, strict=False)
    ]
    bars_by_bound = group_by(bars, "0.bound")
    figure = new_figure()
    for index, bound in enumerate(BOUNDS):
        figure.add_bar(
            name=bound,
            orientation="h",
            **read_columns(bars_by_bound.get(bound, []), y="0.name", x="1", base="2", text="3"),
            **bar_style(index),
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
    said = value + phrase(" ({})", within)
    return Chart(
        name=f"{phase}_step",
        title=f"A {phase} step: {value}",
        alt=f"A {phase} step takes {said}; the largest parts are {phrases}.",
        figure=figure,
        subject=describe_answer(answer),
        rows=tuple(table_records(step_table("", operators), units)[:-1]),
    )
