"""Charts of a plan: the ranked deployments, the Pareto fronts, and the service levels over time."""

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from string import ascii_lowercase
from typing import Any, NamedTuple

from capacity.base.quantity import Quantity
from capacity.planning.evaluation.slo_evaluation import WindowLevels
from capacity.planning.records import Plan, Point
from capacity.report.display import phrase
from capacity.report.figures.chart import NEUTRAL, Chart, apply_layout, colour, new_figure, symbol
from capacity.report.figures.drawing import whiskers
from capacity.report.plan import level_name, level_text, share_of_limit, window_rows
from capacity.report.subject import describe_answer
from capacity.report.views.units import USD_2, group_by, name_units, read_columns, read_rows, value_at

MAX_RATIO_SHOWN = 3.0  # times the limit; higher values are drawn here
# width and height of the smallest plot, on a phone: labels that fit there fit everywhere
PLOT_PX = 290, 330
MARK_PX, LETTER_PX, LINE_PX = 16, 8, 14
POSITIONS = {  # plotly's names: steps from the mark to the label's centre, to the right and up
    "top center": (0, 1),
    "bottom center": (0, -1),
    "middle right": (1, 0),
    "middle left": (-1, 0),
    "top right": (1, 1),
    "top left": (-1, 1),
    "bottom right": (1, -1),
    "bottom left": (-1, -1),
}
SPEED_HOVER = "%{x:,.1f} tokens/s per user, %{y:,.0f} per GPU<extra></extra>"


def windows_chart(windows: Sequence[WindowLevels], *, subject: str) -> Chart:
    """Return the chart of each service level over time as a share of its limit; the hover text shows the request rate.

    Each point is the worst window of a period (`plan.window_rows`).
    """
    rows = window_rows(windows)
    figure = new_figure()
    for index, level in enumerate(rows[0].levels):
        figure.add_scatter(
            name=level.slo,
            **read_columns(rows, x="start", y=f"levels.{index}.ratio", customdata="requests_per_s"),
            mode="lines+markers",
            line={"color": colour(index)},
            marker={"symbol": symbol(index)},
            hovertemplate="%{x}: %{y:.0%} of the limit at %{customdata:,.2f} requests/s<extra></extra>",
        )
    figure.add_hline(y=1.0, line={"color": NEUTRAL, "dash": "dash"})
    apply_layout(figure, x="time of the traffic", y="level / limit", height=360)
    figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    worst = max(row.highest_ratio for row in rows)
    return Chart(
        name="slo_over_time",
        title="Service levels over time",
        alt=f"Worst window of each of {len(rows)} periods; the highest level is at {worst:.0%} of its limit.",
        figure=figure,
        subject=subject,
        rows=tuple(
            {
                "from": row.start,
                "requests/s": row.requests_per_s,
                **{level_name(level): level_text(level) for level in row.levels},
                "judged": row.judged,
            }
            for row in rows
        ),
    )


def speed_chart(plan: Plan) -> Chart:
    """Return the chart of tokens/s per user against tokens/s per GPU for the Pareto-optimal simulated deployments.

    Points are labelled with rank or letter; the legend explains the labels. Filled: meets the SLO. Star: the best by
    the objective, which may not be Pareto-optimal. Faint: the other ranked deployments. If both speeds were simulated,
    a whisker extends from the speed with step times at the plan's confidence to the speed with predicted step times.
    """
    points = [point for point in plan.speed_front if point.tokens_per_s_per_user is not None]
    places = [(point.tokens_per_s_per_user or 0.0, point.tokens_per_s_per_gpu) for point in points]
    predicted, ranked = _predicted_speeds(plan), _ranked_places(plan)
    drawn, others = read_columns(places, x="0", y="1"), read_columns(ranked, x="speed.value", y="per_gpu")
    x_range = _padded_range([*drawn["x"], *others["x"], *predicted.values()])
    y_range = _padded_range([*drawn["y"], *others["y"]])
    figure = new_figure()
    line = {"color": NEUTRAL, "dash": "dot", "width": 1}
    joined = read_columns(sorted(places), x="0", y="1")
    figure.add_scatter(**joined, mode="lines", line=line, showlegend=False, hoverinfo="skip")
    _draw_ranked(figure, plan, ranked)
    marks = _point_marks(plan, points)
    sides = label_places(places, marks, x_range=x_range, y_range=y_range)
    _draw_front(figure, points, marks, sides, predicted)
    apply_layout(
        figure, x="output tokens/s per user", y="output tokens/s per GPU", height=460 + 22 * len(points)
    )
    figure.update_xaxes(range=x_range)
    figure.update_yaxes(range=y_range)
    winner = phrase("Best by {}: {.label}. ", plan.objective, plan.best)
    return Chart(
        name="pareto",
        title="Speed per user against throughput per GPU",
        alt=f"{winner}{len(points)} Pareto-optimal simulated deployments; {sum(each.met for each in points)} "
        f"of them meet the SLO. {whisker_caption(plan)}",
        figure=figure,
        subject=describe_answer(plan),
        rows=tuple(
            {
                "mark": mark,
                "deployment": point.label,
                "tokens/s per user": point.tokens_per_s_per_user,
                "predicted": predicted.get(point.label),
                "tokens/s per GPU": point.tokens_per_s_per_gpu,
                "GPUs": point.num_gpus,
                name_units("$/h"): USD_2.convert(point.usd_per_hour),
                "meets the SLO": point.met,
            }
            for mark, point in zip(marks, points, strict=True)
        ),
    )


def _predicted_speeds(plan: Plan) -> dict[str, float]:
    """Return a dict from deployment label to tokens/s per user with predicted step times."""
    return {
        each.label: speed
        for each in plan.ranked
        if each.predicted is not None and (speed := each.predicted.tokens_per_s_per_user) is not None
    }


class RankedPlace(NamedTuple):
    """A ranked deployment with its tokens/s per user and per GPU; `text`: rank and label."""

    label: str
    speed: Quantity
    per_gpu: float
    text: str


def _ranked_places(plan: Plan) -> list[RankedPlace]:
    """Return the place of each ranked deployment whose speed is known."""
    predicted = _predicted_speeds(plan)
    return [
        RankedPlace(
            each.label,
            _extend_interval(speed, predicted.get(each.label)),
            each.tokens_per_s_per_gpu,
            f"{rank}: {each.label}",
        )
        for rank, each in enumerate(plan.ranked, start=1)
        if (speed := each.trial.tokens_per_s_per_user) is not None
    ]


def _extend_interval(speed: float, predicted: float | None) -> Quantity:
    """Return `speed` with an interval that extends to `predicted` (the speed with predicted step times), if given."""
    ends = () if predicted is None else (speed, predicted)
    return Quantity(value=speed, low=min(ends, default=None), high=max(ends, default=None))


def _draw_ranked(figure: Any, plan: Plan, ranked: Sequence[RankedPlace]) -> None:
    """Draw the best deployment as a star with a legend entry, and the other deployments that meet the SLO faintly."""
    rest = ranked[1:]
    if rest:
        figure.add_scatter(
            **read_columns(rest, x="speed.value", y="per_gpu", text="text"),
            mode="markers",
            name="others that meet the SLO",
            opacity=0.45,
            marker={"color": NEUTRAL, "symbol": "circle-open", "size": 8},
            error_x=whiskers(rest, "speed"),
            hovertemplate=f"%{{text}}<br>{SPEED_HOVER}",
        )
    for best in ranked[:1]:
        if best.label != value_at(plan, "best.label"):
            continue
        figure.add_scatter(
            **read_columns([best], x="speed.value", y="per_gpu"),
            mode="markers",
            name=f"1: {short_label(best.label)}, best by {plan.objective}",
            marker={"symbol": "star", "size": 18, "color": colour(1), "line": {"width": 1, "color": NEUTRAL}},
            error_x=whiskers([best.speed], shade=colour(1)),
            cliponaxis=False,
            hovertemplate=f"{best.label}<br>{SPEED_HOVER}",
        )


def _draw_front(
    figure: Any,
    points: Sequence[Point],
    marks: Sequence[str],
    sides: Sequence[str | None],
    predicted: Mapping[str, float],
) -> None:
    """Draw the Pareto-optimal deployments, each with its rank or letter at the side in `sides` (None: hidden)."""
    gpus = list(dict.fromkeys(point.gpu for point in points))
    for mark, point, side in zip(marks, points, sides, strict=True):
        index, speed = gpus.index(point.gpu), point.tokens_per_s_per_user or 0.0
        figure.add_scatter(
            x=[speed],
            y=[point.tokens_per_s_per_gpu],
            mode="markers+text",
            textposition=side or "top center",
            name=f"{mark}: {short_label(point.label)}{'' if point.met else ', misses the SLO'}",
            marker={
                "color": colour(index) if point.met else "rgba(0,0,0,0)",
                "symbol": symbol(index),
                "size": 13,
                "line": {"width": 2, "color": colour(index)},
            },
            text=[mark if side else ""],
            customdata=[point.label],
            error_x=whiskers([_extend_interval(speed, predicted.get(point.label))], shade=colour(index)),
            cliponaxis=False,
            hovertemplate=f"%{{customdata}}<br>{SPEED_HOVER}",
        )


def whisker_caption(plan: Plan) -> str:
    """Return the caption that explains the whiskers of the speed chart."""
    if not any(answer.predicted for answer in plan.ranked):
        return ""
    return (
        f"Marks show speeds with step times at {plan.confidence:.0%} confidence; whiskers reach to the predicted "
        "speeds. Deployments that miss the SLO or rank low may have no whisker, because they were not simulated with "
        "both kinds of step times."
    )


def front_chart(plan: Plan) -> Chart:
    """Return the Pareto front of price (or GPUs) against the worst service level as a share of its limit."""
    priced = all(point.usd_per_hour is not None for point in plan.cost_front)
    money = name_units("$ per hour") if priced else "GPUs"
    price = USD_2.convert if priced else float
    path = "usd_per_hour" if priced else "num_gpus"
    points = [
        (each, price(value_at(each, path)), min(each.worst_ratio, MAX_RATIO_SHOWN), _worst_level(each))
        for each in plan.cost_front
    ]
    figure = new_figure()
    for index, (gpu, chosen) in enumerate(group_by(points, "0.gpu").items()):
        figure.add_scatter(
            **read_columns(
                chosen, x="1", y="2", text="{0[0].label}: {0[1]:,.4g}, {0[0].worst_ratio:.2f}".format
            ),
            error_y=whiskers(chosen, "3", shade=colour(index)),
            mode="markers",
            name=gpu,
            marker={"color": colour(index), "symbol": symbol(index), "size": 13},
            hovertemplate="%{text}<extra></extra>",
        )
    figure.add_hline(y=1.0, line={"color": NEUTRAL, "dash": "dash", "width": 2}, annotation={"text": "limit"})
    apply_layout(figure, x=money, y="worst service level / limit", height=400)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    return Chart(
        name="price_front",
        title="Price against the worst service level",
        alt=f"{len(points)} Pareto-optimal deployments, drawn at a ratio of at most {MAX_RATIO_SHOWN:g}.",
        figure=figure,
        rows=tuple(
            read_rows(points, {"deployment": "0.label", money: "1", "worst level / limit": "0.worst_ratio"})
        ),
        subject=describe_answer(plan),
    )


def _worst_level(point: Point) -> Quantity | None:
    """Return the highest ratio of a service level to its limit, with its interval; None if too high for the chart."""
    level = max(point.levels, key=attrgetter("ratio"), default=None)
    return None if level is None or point.worst_ratio > MAX_RATIO_SHOWN else share_of_limit(level)


def short_label(label: str) -> str:
    """Return a deployment's label without the memory sizes of GPUs: `3 x h200 TP1 fp8`."""
    return re.sub(r"-(sxm|pcie|nvl)?-?\d+gb", "", label)


def _point_marks(plan: Plan, points: Sequence[Point]) -> list[str]:
    """Return the label of each point: its rank, or a letter if it is not ranked."""
    ranks = {answer.label: str(number) for number, answer in enumerate(plan.ranked, start=1)}
    letters = iter(ascii_lowercase * len(points))
    return [ranks.get(point.label) or next(letters) for point in points]


def _padded_range(values: Sequence[float]) -> tuple[float, float]:
    """Return a range with room at its ends for marks and labels."""
    if not values:
        return (0.0, 1.0)
    room = 0.12 * (max(values) - min(values)) or 0.25 * max(values) or 1.0
    return (max(0.0, min(values) - room), max(values) + room)


class _Box(NamedTuple):
    x: float  # of its centre
    y: float
    wide: float
    high: float

    def overlaps(self, other: "_Box") -> bool:
        apart = abs(self.x - other.x), abs(self.y - other.y)
        return apart[0] < (self.wide + other.wide) / 2 and apart[1] < (self.high + other.high) / 2


def label_places(
    points: Sequence[tuple[float, float]],
    labels: Sequence[str],
    *,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> list[str | None]:
    """Return a plotly `textposition` per point that avoids markers and other labels; None if no position is free."""
    spots = [
        (PLOT_PX[0] * _fraction_of_range(x, x_range), PLOT_PX[1] * _fraction_of_range(y, y_range))
        for x, y in points
    ]
    marks = [_Box(x, y, MARK_PX, MARK_PX) for x, y in spots]
    taken: list[_Box] = []
    places: list[str | None] = []
    for number, ((x, y), label) in enumerate(zip(spots, labels, strict=True)):
        wide = LETTER_PX * len(label)
        others = [*taken, *marks[:number], *marks[number + 1 :]]
        boxes = {
            position: _Box(x + aside * (MARK_PX + wide) / 2, y + up * (MARK_PX + LINE_PX) / 2, wide, LINE_PX)
            for position, (aside, up) in POSITIONS.items()
        }
        free = [position for position, box in boxes.items() if not any(map(box.overlaps, others))]
        taken += [boxes[position] for position in free[:1]]
        places.append(free[0] if free else None)
    return places


def _fraction_of_range(value: float, of: tuple[float, float]) -> float:
    return (value - of[0]) / (of[1] - of[0]) if of[1] > of[0] else 0.5
