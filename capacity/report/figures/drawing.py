"""The charts that views declare, drawn: bars, panels of bars and curves, with whiskers over intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from capacity.answers.records import Quantity
from capacity.report.display import STANDARD, Units, last_place, number_text, rounded
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, colour, layout, log_axis, symbol
from capacity.report.layout import tokens
from capacity.report.subject import subject_of
from capacity.report.views.units import name_units
from capacity.report.views.view import Bars, Curves, Drawing, Panels, View

Numbers = Mapping[str, Mapping[Any, Quantity | None]]
SMALLEST_TEXT = 11  # px; bars too short for it have none


def draw_charts(view: View, answer: Any) -> list[Chart]:
    """Return the charts of an answer's view."""
    drawn = (draw_chart(block, answer) for block in view.blocks if isinstance(block, Drawing))
    return [chart for chart in drawn if chart.rows]


def draw_chart(drawing: Drawing, answer: Any = None, units: Units = STANDARD) -> Chart:
    """Return a chart, of an answer that names model and GPUs; without rows where there is no data."""
    scale = drawing.unit.scale_in(units)
    numbers = {
        name: {label: _scaled(value, scale) for label, value in row.items()}
        for name, row in drawing.data.items()
    }
    labels = list(dict.fromkeys(label for row in numbers.values() for label in row))
    x, y = (name_units(text, units) for text in (drawing.labels, drawing.axis))
    figure = DRAW[type(drawing)](numbers, labels, x, y, drawing.log)
    if drawing.shares:
        figure.update_xaxes(type="linear", tickformat=".0%", tickvals=None, ticktext=None)
    reference, words = drawing.reference
    if reference is not None:
        add_line = figure.add_vline if isinstance(drawing, Bars) else figure.add_hline
        line = {"color": NEUTRAL, "dash": "dash", "width": 2}
        add_line(reference, line=line, annotation_text=words, annotation_position="bottom left")
    return Chart(
        name=drawing.name,
        title=drawing.title,
        alt=drawing.alt,
        figure=figure,
        subject=subject_of(answer),
        rows=tuple(drawing.rows or ({x: label, **_row(numbers, label)} for label in labels)),
    )


def _scaled(value: Any, scale: float) -> Quantity | None:
    if value is None:
        return None
    return (value if isinstance(value, Quantity) else Quantity(value=value)).scaled(scale)


def _row(numbers: Numbers, label: Any) -> dict[str, object]:
    """The values of a label, with the ends of their intervals where there are any."""
    found = {name: row.get(label) for name, row in numbers.items()}
    cells: dict[str, object] = {name: each and rounded(each.value, each) for name, each in found.items()}
    for name, each in found.items():
        for end in ("low", "high"):
            if each is not None and (value := getattr(each, end)) is not None:
                cells[f"{name}, {end}"] = rounded(value, each)
    return cells


def _draw_bars(numbers: Numbers, labels: Sequence[Any], _x: str, y: str, log: bool) -> Any:
    import plotly.graph_objects as go

    figure, origin = go.Figure(), float(log)
    values = [each.value for row in numbers.values() for each in row.values() if each]
    for index, (name, row) in enumerate(numbers.items()):
        bars = [row.get(label) for label in labels]
        figure.add_bar(
            name=name,
            y=labels,
            x=[None if each is None else each.value - origin for each in bars],
            base=[origin] * len(labels) if log else None,
            orientation="h",
            showlegend=len(numbers) > 1,
            **_bar(index, bars, "none" if log else "inside", "x"),
        )
        figure.data[-1].hovertemplate = f"{name}: %{{text}}<extra>%{{y}}</extra>"
    figure.update_yaxes(autorange="reversed")
    layout(figure, x=y, y="", height=150 + max(40, 18 * len(numbers)) * len(labels), barmode="group")
    figure.update_layout(uniformtext={"minsize": SMALLEST_TEXT, "mode": "hide"})
    # the widest whiskers are of the longest bars, and go on
    spanned = log_axis([0.5, origin, *values]) if log else {"range": [0, 1.2 * max(values, default=1.0)]}
    figure.update_xaxes(**spanned)
    return figure


def _draw_panels(numbers: Numbers, labels: Sequence[Any], x: str, _y: str, _log: bool) -> Any:
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=len(numbers), cols=1, shared_xaxes=True, vertical_spacing=0.08)
    layout(figure, x="", y="", height=220 * len(numbers) + 60)
    for index, (name, row) in enumerate(numbers.items()):
        bars = [row.get(label) for label in labels]
        figure.add_bar(
            name=name,
            x=[str(label) for label in labels],
            y=[each and each.value for each in bars],
            hovertemplate=f"%{{x}} {x}: %{{text}}<extra>{name}</extra>",
            showlegend=False,
            row=index + 1,
            col=1,
            **_bar(index, bars, "inside", "y"),
        )
        figure.update_yaxes(title_text=name, rangemode="tozero", row=index + 1, col=1)
    figure.update_xaxes(title_text=x, type="category", row=len(numbers), col=1)
    return figure


def _draw_curves(numbers: Numbers, labels: Sequence[Any], x: str, y: str, log: bool) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, row) in enumerate(numbers.items()):
        points = list(row.values())
        figure.add_scatter(
            name=name,
            x=list(row),
            y=[each and each.value for each in points],
            mode="lines+markers",
            line={"color": colour(index), "width": 2.5},
            marker={"symbol": symbol(index), "size": 9},
            error_y=_whiskers(points, colour(index)),
            text=[text_of(each) for each in points],
            hovertemplate=f"{name}, {x} %{{x:,}}: %{{text}}<extra></extra>",
        )
    layout(figure, x=x, y=y, height=400)
    ticks = [tokens(label) for label in labels]
    figure.update_xaxes(type="log", tickvals=labels, ticktext=ticks)
    if log:
        ends = (
            (each.low, each.value, each.high) for row in numbers.values() for each in row.values() if each
        )
        figure.update_yaxes(**log_axis([end for each in ends for end in each if end]))
    else:
        figure.update_yaxes(rangemode="tozero")
    return figure


DRAW: Mapping[type, Callable[[Numbers, Sequence[Any], str, str, bool], Any]] = {
    Bars: _draw_bars,
    Panels: _draw_panels,
    Curves: _draw_curves,
}


def _bar(index: int, values: Sequence[Quantity | None], place: str, axis: str) -> dict[str, object]:
    """Text and whiskers of bars; the text at the foot of a bar, because the whisker is at its head."""
    return {
        "text": [text_of(each) for each in values],
        "textposition": place,
        "insidetextanchor": "start",
        "textangle": 0,
        f"error_{axis}": _whiskers(values, NEUTRAL),
        **bar_style(index),
    }


def text_of(number: Quantity | None) -> str:
    """With the digits that its interval leaves, or three; "-" for None."""
    if number is None:
        return "-"
    if last_place(number) is None:
        return f"{rounded(number.value):,.12g}"
    return number_text(number.value, number)


def _whiskers(values: Sequence[Quantity | None], shade: str) -> Mapping[str, object]:
    """From the low to the high end of each; none where nothing is known."""
    known = [
        (0.0, 0.0)
        if each is None or each.low is None or each.high is None
        else (each.value - each.low, each.high - each.value)
        for each in values
    ]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high for _, high in known],
        "arrayminus": [low for low, _ in known],
        "color": shade,
        "visible": any(map(any, known)),
    }
