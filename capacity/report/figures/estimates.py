"""The charts of an estimate that a view cannot declare: the roofline, and the step as a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from capacity.answers.attribution import BOUNDS
from capacity.hardware import load_profile
from capacity.report.display import STANDARD, Units, as_sure, time_and_interval
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, listed, log_axis, symbol
from capacity.report.figures.drawing import add_interval
from capacity.report.subject import subject_of
from capacity.report.views.layout import table_records
from capacity.report.views.units import Unit
from capacity.report.views.view import Column, Table

if TYPE_CHECKING:
    from capacity.answers.records import Estimate, OperatorTime

Phase = Literal["prefill", "decode"]
WHOLE = "whole step"
ROOM = 1.8  # times the step: the words of the last bar fit on a phone too
PHASES: tuple[Phase, ...] = get_args(Phase)
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
    """FLOP/s against FLOPs per HBM byte: both phases and their operators under the GPU's roof, on one GPU."""
    import plotly.graph_objects as go

    ridge = answer.arithmetic_intensity.ridge_flops_per_byte
    points = [point for phase in PHASES for point in _roofline_points(answer, phase)]
    figure = go.Figure()
    intensities = [point.flop_per_byte for point in points]
    low, high = min(0.5, *intensities), max(4 * ridge, *intensities)
    bytes_per_s = load_profile(answer.gpu.name).hbm_bytes_per_s
    roof = [(x, bytes_per_s * min(x, ridge) / TERA) for x in (low, ridge, high)]
    figure.add_scatter(
        x=[x for x, _ in roof],
        y=[y for _, y in roof],
        mode="lines",
        name="roof: HBM, then compute",
        line={"color": NEUTRAL, "width": 2},
        hoverinfo="skip",
    )
    for index, phase in enumerate(PHASES):
        for part, size, opacity in (("operator", 8, 0.8), ("step", 18, 1.0)):
            chosen = [p for p in points if p.phase == phase and p.is_step == (part == "step")]
            figure.add_scatter(
                x=[point.flop_per_byte for point in chosen],
                y=[point.tflop_per_s for point in chosen],
                mode="markers+text" if part == "step" else "markers",
                text=[phase if part == "step" else point.operator for point in chosen],
                textposition="bottom center",
                name=f"{phase} step" if part == "step" else f"{phase} operators",
                marker={"color": colour(index), "symbol": symbol(index), "size": size, "opacity": opacity},
                hovertemplate="%{text}: %{x:,.1f} FLOP/byte, %{y:,.2f} TFLOP/s<extra></extra>",
            )
    figure.add_scatter(
        x=[ridge],
        y=[roof[1][1]],
        mode="markers+text",
        marker={"symbol": "line-ns-open", "size": 16, "color": NEUTRAL},
        text=[f"ridge {ridge:,.0f}"],
        textposition="top left",
        showlegend=False,
        hoverinfo="skip",
    )
    layout(figure, x="FLOP per HBM byte", y="TFLOP/s on one GPU", height=460)
    figure.update_xaxes(**log_axis([*(x for x, _ in roof), *(p.flop_per_byte for p in points)]))
    figure.update_yaxes(**log_axis([*(y for _, y in roof), *(p.tflop_per_s for p in points)]))
    phrases = [
        f"{point.phase} {point.flop_per_byte:,.0f} FLOP/byte at {point.tflop_per_s:,.1f} TFLOP/s"
        for point in points
        if point.is_step
    ]
    return Chart(
        name="roofline",
        title=f"Roofline of one {answer.gpu.name}",
        alt=f"{listed(phrases)}; compute takes over from memory at the ridge of {ridge:,.0f} FLOP/byte.",
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(point.row for point in points),
    )


class _Point(NamedTuple):
    """An operator, or a whole step, on the roofline."""

    phase: Phase
    operator: str
    flop_per_byte: float
    tflop_per_s: float
    bound: str

    @property
    def is_step(self) -> bool:
        return self.operator == "step"

    @property
    def row(self) -> dict[str, object]:
        return dict(zip(("phase", "operator", "FLOP/byte", "TFLOP/s", "bound"), self, strict=True))


def _roofline_points(answer: Estimate, phase: Phase) -> list[_Point]:
    operators: Sequence[OperatorTime] = getattr(answer.breakdown, phase)
    points = [
        _Point(phase, op.name, op.flops / op.bytes, op.flops / op.seconds / TERA, op.bound)
        for op in operators
        if op.flops and op.bytes and op.seconds
    ]
    intensity = getattr(answer.arithmetic_intensity, f"{phase}_flops_per_byte")
    if intensity is not None:
        total_s = sum(op.seconds for op in operators)
        attained = sum(op.flops for op in operators) / total_s / TERA
        bound = getattr(answer.bound, phase)
        points.append(_Point(phase, "step", intensity, attained, bound))
    return points


def step_table(title: str, operators: Sequence[OperatorTime]) -> Table:
    """Return one step by operator, and the whole."""
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
    """One step as a waterfall: operator after operator, coloured and hatched by what bounds it. At its foot the whole
    step with a 90 % interval, which is no surer than the latency that it makes: the TPOT of a decode step, the TTFT of
    a prefill."""
    import plotly.graph_objects as go

    operators: Sequence[OperatorTime] = getattr(answer.breakdown, phase)
    total_s = sum(op.seconds for op in operators)
    whole = as_sure(total_s, answer.tpot_s if phase == "decode" else answer.ttft_s)
    starts = list(accumulate((op.seconds for op in operators), initial=0.0))[:-1]
    figure = go.Figure()
    for index, bound in enumerate(BOUNDS):
        chosen = [(op, start) for op, start in zip(operators, starts, strict=True) if op.bound == bound]
        figure.add_bar(
            name=bound,
            orientation="h",
            y=[op.name for op, _ in chosen],
            x=[units.of_seconds(op.seconds) for op, _ in chosen],
            base=[units.of_seconds(start) for _, start in chosen],
            **bar_style(index),
            text=[f"{units.time_text(op.seconds)} ({op.seconds / total_s:.0%})" for op, _ in chosen],
            textposition="outside",
            hovertemplate="%{y}: %{text}, " + bound + "<extra></extra>",
        )
    add_interval(figure, WHOLE, whole, units.of_seconds(1))
    names = [*(op.name for op in operators), *([WHOLE] if whole.high is not None else [])]
    layout(
        figure, x=f"{units.time} of one {phase} step", y="", height=150 + 28 * len(names), barmode="overlay"
    )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    longest_s = max(total_s * ROOM, 1.05 * (whole.high or 0.0))
    figure.update_xaxes(range=[0, units.of_seconds(longest_s)])
    largest = sorted(operators, key=lambda op: -op.seconds)[:3]
    phrases = listed([f"{op.name} {op.seconds / total_s:.0%}" for op in largest])
    value, within = time_and_interval(whole, units)
    said = f"{value} ({within})" if within else value
    return Chart(
        name=f"{phase}_step",
        title=f"A {phase} step: {value}",
        alt=f"A {phase} step takes {said}; the largest parts are {phrases}.",
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(table_records(step_table("", operators), units)[:-1]),
    )
