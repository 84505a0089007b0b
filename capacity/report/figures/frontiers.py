"""The frontier: output tokens/s per GPU against tokens/s for a user, a line for each deployment over concurrency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from capacity.report.figures.chart import NEUTRAL, Chart, colour, digits, layout, symbol
from capacity.report.figures.loads import faint, with_interval
from capacity.report.frontier import line_name
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.answers.frontier import Frontier, FrontierLine
    from capacity.answers.load_point import LoadPoint
    from capacity.answers.records import Quantity

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
COLOURS = "Cividis"  # of prices: one scale that colour-blind readers order alike


def frontier_chart(frontier: Frontier, *, tpot_limit_s: float | None = None) -> Chart:
    """Lines over concurrency with bands from the slow to the fast end of both intervals, and the limit on TPOT.

    A marker's colour is its $ per 1M output tokens; `customdata` of a marker is the line's and the point's number.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    drawn = [(n, line, _known(line)) for n, line in enumerate(frontier.lines)]
    drawn = [(n, line, known) for n, line, known in drawn if known]
    prices = [_price(p) for _, _, known in drawn for _, p, _, _ in known]
    priced = [price for price in prices if price is not None]
    span = (math.log10(min(priced)), math.log10(max(priced))) if priced else None
    for index, (_, line, known) in enumerate(drawn):
        _band(figure, known, faint(colour(index)), line_name(line))
    _envelope(figure, frontier)
    for index, (number, line, known) in enumerate(drawn):
        _line(figure, index, number, line, known, span)
    if span is not None:
        _price_bar(figure, span)
    layout(figure, x="tokens/s for a user (1/TPOT)", y="output tokens/s per GPU", height=560)
    if tpot_limit_s is not None and drawn:
        limit = 1 / tpot_limit_s
        figure.add_vline(x=limit, line={"color": NEUTRAL, "dash": "dash", "width": 2})
        figure.add_annotation(
            x=limit,
            y=1,
            yref="paper",
            yanchor="top",
            xanchor="left",
            xshift=3,
            showarrow=False,
            text=f"TPOT ≤ {1e3 * tpot_limit_s:,.4g} ms →",
        )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    return Chart(
        name="frontier",
        title=f"{frontier.model}: use of a GPU against speed for a user",
        alt=_words(frontier, tpot_limit_s),
        figure=figure,
        subject=subject_of(frontier),
        rows=tuple(_row(line, p, speed, rate) for _, line, known in drawn for _, p, speed, rate in known),
    )


Known = list[tuple[int, "LoadPoint", "Quantity", "Quantity"]]


def _known(line: FrontierLine) -> Known:
    """Points with both coordinates: number, point, tokens/s for a user, tokens/s per GPU."""
    return [
        (number, point, point.tpot_s.inverse(1.0), point.output_tokens_per_s_per_gpu)
        for number, point in enumerate(line.points)
        if point.tpot_s is not None and point.output_tokens_per_s_per_gpu is not None
    ]


def _band(figure: Any, known: Known, fill: str, name: str) -> None:
    ends = [(s, r) for _, _, s, r in known if None not in (s.low, s.high, r.low, r.high)]
    if len(ends) < 2:
        return
    slow = [(s.low, r.low) for s, r in ends]
    fast = [(s.high, r.high) for s, r in reversed(ends)]
    figure.add_scatter(
        x=[x for x, _ in (*slow, *fast)],
        y=[y for _, y in (*slow, *fast)],
        fill="toself",
        fillcolor=fill,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        legendgroup=name,
    )


def _envelope(figure: Any, frontier: Frontier) -> None:
    """Through the points that no other beats in both: with one line alone it would be that line."""
    best = [frontier.lines[number].points[place] for number, place in frontier.undominated()]
    if sum(1 for line in frontier.lines if line.points) < 2:
        return
    known = [
        (point.tpot_s.inverse(1.0).value, point.output_tokens_per_s_per_gpu.value)
        for point in best
        if point.tpot_s is not None and point.output_tokens_per_s_per_gpu is not None
    ]
    known.sort()
    figure.add_scatter(
        x=[x for x, _ in known],
        y=[y for _, y in known],
        mode="lines",
        name="the best of all",
        line={"color": NEUTRAL, "dash": "dot", "width": 5},
        hoverinfo="skip",
    )


def _line(
    figure: Any,
    index: int,
    number: int,
    line: FrontierLine,
    known: Known,
    span: tuple[float, float] | None,
) -> None:
    name = line_name(line)
    marker: dict[str, object] = {
        "symbol": symbol(index),
        "size": 10,
        "color": colour(index),
        "line": {"width": 1.5, "color": colour(index)},
    }
    prices = [price for _, point, _, _ in known if (price := _price(point)) is not None]
    if span is not None and len(prices) == len(known):
        logarithms = [math.log10(price) for price in prices]
        marker |= {"color": logarithms, "colorscale": COLOURS, "cmin": span[0], "cmax": span[1]}
    figure.add_scatter(
        x=[speed.value for _, _, speed, _ in known],
        y=[rate.value for _, _, _, rate in known],
        mode="lines+markers",
        name=name,
        legendgroup=name,
        line={"color": colour(index), "dash": DASHES[index // 6 % len(DASHES)], "width": 2},
        marker=marker,
        unselected={"marker": {"opacity": 1.0}},  # a click is no choice among them
        customdata=[(number, point_number) for point_number, _, _, _ in known],
        text=[_hover(name, point, speed, rate) for _, point, speed, rate in known],
        hovertemplate="%{text}<extra></extra>",
    )


def _price_bar(figure: Any, span: tuple[float, float]) -> None:
    """The scale of prices, by their logarithm, as a mark that is not seen."""
    steps = [span[0] + share * (span[1] - span[0]) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    ticks = {"tickvals": steps, "ticktext": [f"${10**step:,.3g}" for step in steps]}
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        showlegend=False,
        hoverinfo="skip",
        marker={
            "color": [span[0]],
            "colorscale": COLOURS,
            "cmin": span[0],
            "cmax": span[1],
            "showscale": True,
            "colorbar": {"title": {"text": "$ per 1M<br>output"}, "thickness": 12, **ticks},
        },
    )


def _price(point: LoadPoint) -> float | None:
    quantity = point.usd_per_million_output_tokens
    return None if quantity is None else quantity.value


def _hover(name: str, point: LoadPoint, speed: Quantity, rate: Quantity) -> str:
    price = _price(point)
    lines = [
        f"<b>{name}</b>, {point.load:,.0f} in flight",
        f"{with_interval(speed)} tokens/s for a user",
        f"{with_interval(rate)} tokens/s per GPU",
        *([] if price is None else [f"${digits(price)} per 1M output tokens"]),
    ]
    return "<br>".join(lines)


def _row(line: FrontierLine, point: LoadPoint, speed: Quantity, rate: Quantity) -> dict[str, object]:
    return {
        "deployment": line_name(line),
        "in flight": int(point.load),
        "tokens/s for a user": speed.value,
        "user low": speed.low,
        "user high": speed.high,
        "tokens/s per GPU": rate.value,
        "GPU low": rate.low,
        "GPU high": rate.high,
        "$ per 1M output": _price(point),
    }


def _words(frontier: Frontier, tpot_limit_s: float | None) -> str:
    """The best deployment within the limit, or how many there are."""
    count = sum(1 for line in frontier.lines if line.points)
    words = f"{count} deployments of {frontier.model} over concurrency"
    if tpot_limit_s is None:
        return f"{words}."
    within = [(line, best) for line in frontier.lines if (best := line.best(tpot_limit_s)) is not None]
    limit = f"a TPOT of {1e3 * tpot_limit_s:,.4g} ms"
    if not within:
        return f"{words}; none is within {limit}."
    line, best = max(within, key=lambda pair: _rate(pair[1]))
    return (
        f"{words}; most tokens/s per GPU within {limit}: {line_name(line)} with {best.load:,.0f} in flight, "
        f"{digits(_rate(best))}."
    )


def _rate(point: LoadPoint) -> float:
    quantity = point.output_tokens_per_s_per_gpu
    return 0.0 if quantity is None else quantity.value
