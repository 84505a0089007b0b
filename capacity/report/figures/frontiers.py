"""The frontier: output tokens/s per GPU against tokens/s per user, as a chart and a table of its points."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from capacity.answers.frontier import Frontier, FrontierLine
from capacity.answers.load_point import LoadPoint
from capacity.answers.published_runs import measured_runs
from capacity.answers.records import Quantity
from capacity.base.money import convert_amounts
from capacity.report.display import phrase
from capacity.report.figures.chart import DASHES, NEUTRAL, Chart, apply_layout, colour, new_figure, symbol
from capacity.report.figures.drawing import text_with_interval
from capacity.report.figures.loads import translucent_colour
from capacity.report.subject import describe_answer
from capacity.report.views import units
from capacity.report.views.layout import table_records
from capacity.report.views.units import group_by, read_columns, value_at
from capacity.report.views.view import Column, Table

MARK = "*"
COLOURS = "Cividis"  # scale of prices, readable for colour-blind users


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One load of one deployment. `numbers`: index of the deployment and of its load.

    `best`: whether the point is Pareto-optimal in tokens/s per user and tokens/s per GPU.
    """

    numbers: tuple[int, int]
    line: FrontierLine
    point: LoadPoint
    best: bool

    @property
    def mark(self) -> str:
        """Return the mark of a Pareto-optimal point; empty for the others."""
        return MARK * self.best

    @property
    def tokens_per_s_of_a_user(self) -> Quantity | None:
        """Return the decode speed of one user: 1 / TPOT."""
        return None if self.point.tpot_s is None else self.point.tpot_s.inverse(1.0)


def frontier_points(answer: Frontier) -> list[FrontierPoint]:
    """Return all points, grouped by deployment."""
    front = answer.pareto_points()
    return [
        FrontierPoint((number, place), line, point, (number, place) in front)
        for number, line in enumerate(answer.lines)
        for place, point in enumerate(line.points)
    ]


def best_points(answer: Frontier, tpot_s: float) -> list[FrontierPoint]:
    """Return the best point of each deployment within the TPOT limit (s), the most tokens/s per GPU first."""
    found = {id(place.point): place for place in frontier_points(answer)}
    return [found[id(point)] for _, point in answer.best(tpot_s)]


def points_table(title: str, rows: Sequence[FrontierPoint]) -> Table:
    """Return a table of points with speed per user, throughput per GPU, and price."""
    columns = [
        Column("deployment", "line.label"),
        Column("in flight", "point.load", units.COUNT),
        Column("tokens/s per user", "tokens_per_s_of_a_user", units.RATE),
        Column("tokens/s per GPU", "point.output_tokens_per_s_per_gpu", units.RATE),
        Column("$/1M out", "point.usd_per_million_output_tokens", units.USD_PER_MILLION),
        Column("", "mark", units.TEXT),
    ]
    return Table(title, rows, columns)


class PlottedPoint(NamedTuple):
    """A point of the frontier with its speed per user, its rate per GPU, and its price in $ per 1M output tokens."""

    place: FrontierPoint
    speed: Quantity
    rate: Quantity
    price: float | None

    @property
    def hover_text(self) -> str:
        """Return the text that appears when the pointer is over the point."""
        lines = [
            f"<b>{self.place.line.label}</b>, {self.place.point.load:,.0f} in flight",
            f"{text_with_interval(self.speed)} tokens/s per user",
            f"{text_with_interval(self.rate)} tokens/s per GPU",
        ]
        price = self.price and units.usd(significant=4).texts(self.price)[0]
        return "<br>".join(lines) + phrase("<br>{} per 1M output tokens", price)


def frontier_chart(answer: Frontier, *, tpot_limit_s: float | None = None) -> Chart:
    """Return the frontier chart: a line per deployment, a point per load, interval bands, and the TPOT limit.

    Published runs of the model on these GPUs are dots, with their lengths in the hover text.

    The band of a deployment lies between the lower and the upper interval bounds of its points in both coordinates.
    The colour of a marker shows its $ per 1M output tokens; its `customdata` is the index of line and point.
    """
    figure, points = new_figure(), _known_points(answer)
    lines = list(group_by(points, "place.numbers.0").values())
    prices = _price_logarithms(points)
    scale = {"colorscale": COLOURS, "cmin": min(prices), "cmax": max(prices)} if prices else {}
    for index, line in enumerate(lines):
        _draw_band(figure, line, translucent_colour(colour(index)))
    if len(lines) > 1:
        _draw_front(figure, points)
    for index, line in enumerate(lines):
        _draw_line(figure, index, line, scale)
    measured = list(measured_runs(answer.model, {line.gpu for line in answer.lines}))
    if measured:
        figure.add_scatter(
            **read_columns(measured, x="tokens_per_s_per_user", y="tokens_per_s_per_gpu", text="text"),
            mode="markers",
            name="published runs, measured",
            marker={"symbol": "star", "size": 11, "color": NEUTRAL},
            hovertemplate="measured: %{text}<extra></extra>",
        )
    if scale:
        _draw_prices(figure, scale)
    apply_layout(figure, x="tokens/s per user (1/TPOT)", y="output tokens/s per GPU", height=560)
    if tpot_limit_s is not None and points:
        figure.add_vline(
            x=1 / tpot_limit_s,
            line={"color": NEUTRAL, "dash": "dash", "width": 2},
            annotation_text=f"TPOT ≤ {1e3 * tpot_limit_s:,.4g} ms →",
            annotation_position="top right",
        )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    return Chart(
        name="frontier",
        title=f"{answer.model}: throughput per GPU against speed per user",
        alt=_caption(answer, tpot_limit_s),
        figure=figure,
        subject=describe_answer(answer),
        rows=tuple(table_records(points_table("", [each.place for each in points]))),
    )


def _price_logarithms(points: Sequence[PlottedPoint]) -> list[float]:
    """Return the decimal logarithms of the prices that are known."""
    return [math.log10(each.price) for each in points if each.price is not None]


def _known_points(answer: Frontier) -> list[PlottedPoint]:
    found = []
    for place in frontier_points(answer):
        speed, rate = place.tokens_per_s_of_a_user, place.point.output_tokens_per_s_per_gpu
        if speed is not None and rate is not None:
            price = value_at(place, "point.usd_per_million_output_tokens.value")
            found.append(PlottedPoint(place, speed, rate, price))
    return found


def _draw_band(figure: Any, line: Sequence[PlottedPoint], fill: str) -> None:
    ends = [(s.interval, r.interval) for _, s, r, _ in line if s.interval and r.interval]
    low, high = read_columns(ends, x="0.0", y="1.0"), read_columns(ends[::-1], x="0.1", y="1.1")
    if len(ends) > 1:
        figure.add_scatter(
            x=low["x"] + high["x"],
            y=low["y"] + high["y"],
            fill="toself",
            fillcolor=fill,
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            legendgroup=line[0].place.line.label,
        )


def _draw_front(figure: Any, points: Sequence[PlottedPoint]) -> None:
    """Draw the Pareto front of the points of all deployments as a dotted line."""
    best = sorted((each.speed.value, each.rate.value) for each in points if each.place.best)
    figure.add_scatter(
        **read_columns(best, x="0", y="1"),
        mode="lines",
        name="Pareto front",
        line={"color": NEUTRAL, "dash": "dot", "width": 5},
        hoverinfo="skip",
    )


def _draw_line(figure: Any, index: int, line: Sequence[PlottedPoint], scale: Mapping[str, Any]) -> None:
    shade, name = colour(index), line[0].place.line.label
    prices = _price_logarithms(line)
    colours = {"color": shade} if len(prices) < len(line) else {"color": prices, **scale}
    figure.add_scatter(
        **read_columns(line, x="speed.value", y="rate.value", customdata="place.numbers", text="hover_text"),
        mode="lines+markers",
        name=name,
        legendgroup=name,
        line={"color": shade, "dash": DASHES[index // 6 % len(DASHES)], "width": 2},
        marker={"symbol": symbol(index), "size": 10, "line": {"width": 1.5, "color": shade}, **colours},
        unselected={"marker": {"opacity": 1.0}},  # a click does not fade the other points
        hovertemplate="%{text}<extra></extra>",
    )


def _draw_prices(figure: Any, scale: Mapping[str, Any]) -> None:
    """Draw the colour bar of the logarithmic prices, which plotly attaches to an invisible marker."""
    low, high = scale["cmin"], scale["cmax"]
    steps = [low + share * (high - low) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    ticks = {"tickvals": steps, "ticktext": [units.usd(significant=3).texts(10**step)[0] for step in steps]}
    bar = {"title": {"text": convert_amounts("$ per 1M<br>output")}, "thickness": 12, **ticks}
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        showlegend=False,
        hoverinfo="skip",
        marker={"color": [low], "showscale": True, "colorbar": bar, **scale},
    )


def _caption(answer: Frontier, tpot_limit_s: float | None) -> str:
    """Return the caption: the number of deployments, and if a TPOT limit is given, the best deployment within it."""
    count = sum(1 for line in answer.lines if line.points)
    words = f"{count} deployments of {answer.model} at rising concurrency"
    if tpot_limit_s is None:
        return f"{words}."
    limit = f"a TPOT of {1e3 * tpot_limit_s:,.4g} ms"
    best = answer.best(tpot_limit_s)
    if not best:
        return f"{words}; none is within {limit}."
    line, point = best[0]
    rate = point.output_tokens_per_s_per_gpu
    return (
        f"{words}; most tokens/s per GPU within {limit}: {line.label} with {point.load:,.0f} in flight, "
        f"{text_with_interval(rate)}."
    )
