"""Charts of predicted against measured times."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from capacity.report.display import Units
from capacity.report.figures.chart import NEUTRAL, apply_layout, colour, log_axis, new_figure, symbol
from capacity.report.views.units import read_columns


class Compared(NamedTuple):
    """A measured time and the prediction for it, in seconds."""

    label: str
    measured_s: float
    predicted_s: float


def parity_figure(groups: Mapping[str, Sequence[Compared]], shown_in: Units) -> Any:
    """Return a figure of predicted against measured times by group, with a line on which exact predictions lie."""
    figure = new_figure()
    for index, (name, points) in enumerate(groups.items()):
        figure.add_scatter(
            name=name,
            x=[shown_in.convert_seconds(point.measured_s) for point in points],
            y=[shown_in.convert_seconds(point.predicted_s) for point in points],
            mode="markers",
            marker={"symbol": symbol(index), "color": colour(index), "size": 8, "opacity": 0.8},
            **read_columns(points, text="label"),
            hovertemplate=f"%{{text}}: measured %{{x:.3g}}, predicted %{{y:.3g}} {shown_in.time}<extra></extra>",
        )
    measured = [float(x) for trace in figure.data for x in trace.x]
    ends = [min(measured), max(measured)] if measured else []
    figure.add_scatter(
        name="exact", x=ends, y=ends, mode="lines", line={"color": NEUTRAL, "width": 2}, hoverinfo="skip"
    )
    apply_layout(figure, x=f"measured, {shown_in.time}", y=f"predicted, {shown_in.time}", height=480)
    numbers = [float(number) for trace in figure.data for axis in (trace.x, trace.y) for number in axis]
    figure.update_xaxes(**log_axis(numbers))
    figure.update_yaxes(**log_axis(numbers))
    return figure
