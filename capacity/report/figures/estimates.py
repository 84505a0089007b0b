"""An estimate as pictures: the roofline, the step as a waterfall, what bounds it and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from capacity.answers.attribution import BOUNDS, largest_bound
from capacity.hardware import load_profile
from capacity.report.display import STANDARD, Units, as_sure, time_and_interval
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, listed, log_axis, symbol
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.answers.records import Attribution, Estimate, OperatorTime, Quantity

Phase = Literal["prefill", "decode"]
WHOLE = "whole step"
ROOM = 1.8  # times the step: the words of the last bar fit on a phone too
PHASES: tuple[Phase, ...] = get_args(Phase)
GIGA, TERA = 1e9, 1e12


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


def step_chart(
    operators: Sequence[OperatorTime],
    phase: Phase,
    units: Units = STANDARD,
    *,
    like: Quantity | None = None,
    subject: str = "",
) -> Chart:
    """One step as a waterfall: operator after operator, coloured and hatched by what bounds it. At its foot the whole
    step with a 90 % interval, which is no surer than the latency that it is `like`: the TPOT of a decode step, the TTFT
    of a prefill."""
    import plotly.graph_objects as go

    total_s = sum(op.seconds for op in operators)
    whole = as_sure(total_s, like)
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
    layout(
        figure,
        x=f"{units.time} of one {phase} step",
        y="",
        height=150 + 28 * (len(operators) + (whole.high is not None)),
        barmode="overlay",
    )
    names = [op.name for op in reversed(operators)]
    if whole.low is not None and whole.high is not None:
        names.insert(0, WHOLE)
        _whole_step(figure, whole, units)
    figure.update_yaxes(categoryorder="array", categoryarray=names)
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
        subject=subject,
        rows=tuple(
            {
                "operator": op.name,
                units.time: units.of_seconds(op.seconds),
                "share": op.seconds / total_s,
                "GFLOP": op.flops / GIGA,
                "MB": op.bytes / 1e6,
                "bound": op.bound,
            }
            for op in operators
        ),
    )


def _whole_step(figure: Any, whole: Quantity, units: Units) -> None:
    """The step's time with its interval, below its parts."""
    assert whole.low is not None
    assert whole.high is not None
    figure.add_scatter(
        name="90 % interval",
        x=[units.of_seconds(whole.value)],
        y=[WHOLE],
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 14, "color": NEUTRAL},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [units.of_seconds(whole.high - whole.value)],
            "arrayminus": [units.of_seconds(whole.value - whole.low)],
            "color": NEUTRAL,
            "thickness": 2,
        },
        hovertemplate=f"{WHOLE}: {' '.join(time_and_interval(whole, units))}<extra></extra>",
    )


def ttft_chart(
    ttft_parts_s: Mapping[str, float],
    units: Units = STANDARD,
    *,
    ttft_s: Quantity | None = None,
    subject: str = "",
) -> Chart:
    """What a time to first token is made of, in seconds by part: one stacked bar, and the whole's 90 % interval."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (part, seconds) in enumerate(ttft_parts_s.items()):
        figure.add_bar(
            name=part,
            orientation="h",
            y=["TTFT"],
            x=[units.of_seconds(seconds)],
            **bar_style(index),
            hovertemplate=f"{part}: %{{x:,.4g}} {units.time}<extra></extra>",
        )
    if ttft_s is not None and ttft_s.low is not None and ttft_s.high is not None:
        figure.add_scatter(
            name="90 % interval",
            x=[units.of_seconds(ttft_s.value)],
            y=["TTFT"],
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 14, "color": NEUTRAL},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [units.of_seconds(ttft_s.high - ttft_s.value)],
                "arrayminus": [units.of_seconds(ttft_s.value - ttft_s.low)],
                "color": NEUTRAL,
                "thickness": 2,
            },
            hovertemplate=f"TTFT: {' '.join(time_and_interval(ttft_s, units))}<extra></extra>",
        )
    layout(figure, x="", y="", height=220, barmode="stack")
    phrases = [
        f"{part} {units.time_text(seconds, ttft_s)}" for part, seconds in ttft_parts_s.items() if seconds
    ]
    return Chart(
        name="ttft",
        title=f"What the time to first token is made of, mean, {units.time}",
        alt=f"{listed(phrases)}: {units.time_text(sum(ttft_parts_s.values()), ttft_s)} in all.",
        figure=figure,
        subject=subject,
        rows=tuple({"part": part, "seconds": seconds} for part, seconds in ttft_parts_s.items()),
    )


def shares_chart(answer: Attribution) -> Chart:
    """Each phase's step by what bounds it, as bars of 100 %."""
    import plotly.graph_objects as go

    phases = [("prefill", answer.prefill), *([("decode", answer.decode)] if answer.decode else [])]
    figure = go.Figure()
    for index, bound in enumerate(BOUNDS):
        values = [getattr(parts, bound) for _, parts in phases]
        figure.add_bar(
            name=bound,
            orientation="h",
            y=[name for name, _ in phases],
            x=[100 * value for value in values],
            **bar_style(index),
            text=[f"{value:.0%}" if value >= 0.03 else "" for value in values],
            textposition="inside",
            textangle=0,
            insidetextanchor="middle",
            hovertemplate="%{y}: " + bound + " %{x:.1f} %<extra></extra>",
        )
    layout(figure, x="% of the step", y="", height=420, barmode="stack")
    figure.update_yaxes(autorange="reversed")
    phrases = [f"{name} is {largest_bound(parts)}-bound" for name, parts in phases]
    return Chart(
        name="bounds",
        title="What bounds it",
        alt=f"By share of time, {listed(phrases)}.",
        figure=figure,
        subject=subject_of(answer),
        rows=tuple({"phase": name, **{b: getattr(parts, b) for b in BOUNDS}} for name, parts in phases),
    )


def responses_chart(answer: Attribution) -> Chart:
    """What 10 % more of each resource does to TTFT, TPOT and cost per token."""
    import plotly.graph_objects as go

    resources = [f"{response.change:+.0%} {response.resource}" for response in answer.responses]
    figure = go.Figure()
    for index, (name, field) in enumerate(
        (("TTFT", "ttft"), ("TPOT", "tpot"), ("$/token", "cost_per_token"))
    ):
        values = [getattr(response, field) for response in answer.responses]
        if None in values:
            continue
        figure.add_bar(
            name=name,
            orientation="h",
            y=resources,
            x=[100 * value for value in values],
            **bar_style(index),
            text=[f"{value:+z.1%}" for value in values],
            textposition="outside",
            hovertemplate="%{x}: " + name + " %{text}<extra></extra>",
        )
    layout(figure, x="change, %", y="", height=420, barmode="group")
    figure.update_yaxes(autorange="reversed")
    moved = [100 * v for r in answer.responses for v in (r.ttft, r.tpot, r.cost_per_token) if v is not None]
    room = 0.25 * (max(*moved, 0.0) - min(*moved, 0.0)) or 1.0
    figure.update_xaxes(
        zeroline=True, zerolinecolor=NEUTRAL, range=[min(*moved, 0.0) - room, max(*moved, 0.0) + room]
    )
    best = min(
        answer.responses, key=lambda response: response.ttft if response.tpot is None else response.tpot
    )
    metric = "TTFT" if best.tpot is None else "TPOT"
    most = best.ttft if best.tpot is None else best.tpot
    return Chart(
        name="what_would_help",
        title="What would help",
        alt=f"Most for {metric}: {best.change:+.0%} {best.resource} changes it by {most:+z.1%}.",
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(
            {
                "resource": response.resource,
                "change": response.change,
                "TTFT": response.ttft,
                "TPOT": response.tpot,
                "$/token": response.cost_per_token,
            }
            for response in answer.responses
        ),
    )
