"""A plan as pictures and tables: the ranked deployments, the fronts, and what was turned down."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from capacity.planning.records import KINDS
from capacity.report.figures.chart import NEUTRAL, Chart, colour, layout, symbol
from capacity.report.figures.label_places import label_places
from capacity.report.plan import level_name, level_text, quality_text, window_rows
from capacity.report.subject import subject_of
from capacity.workload.windows import clock_text

if TYPE_CHECKING:
    from capacity.planning.evaluation.slo_evaluation import WindowLevels
    from capacity.planning.records import Plan, Point, Ranked


WORST_SHOWN = 3.0  # times a limit


def ranked_rows(plan: Plan) -> list[dict[str, object]]:
    """The deployments that meet the service levels, best first."""
    return [_ranked_row(number, answer) for number, answer in enumerate(plan.ranked, start=1)]


def _ranked_row(number: int, answer: Ranked) -> dict[str, object]:
    cost = answer.cost
    row: dict[str, object] = {
        "": number,
        "deployment": answer.candidate.label,
        "GPUs": answer.num_gpus,
        "$/h": None if cost is None else cost.usd_per_hour,
        "of the limit": answer.trial.ratio,
        "confidence": answer.confidence,
        "$/month": None if cost is None else cost.usd_per_month,
        "$/1M output": None if cost is None else cost.usd_per_million_output_tokens,
    }
    row |= {level_name(level): level_text(level) for level in answer.trial.levels}
    return row | {
        "quality loss": quality_text(answer),
        "provisioned J/output token": answer.joules_per_output_token,
    }


def rejected_rows(plan: Plan) -> list[dict[str, object]]:
    """Every candidate that is no answer, with its reason."""
    return [
        {
            "GPU": rejection.pool.gpu,
            "TP": rejection.pool.tensor_parallel_size,
            "weights": rejection.pool.quantization or "as published",
            "KV cache": rejection.pool.kv_cache_dtype,
            "replicas": rejection.replicas,
            "kind": KINDS[rejection.kind],
            "reason": rejection.reason,
        }
        for rejection in plan.rejected
    ]


def miss_rows(plan: Plan) -> list[dict[str, object]]:
    """What stands in the way where nothing meets the service levels."""
    return [
        {
            "part": m.slo,
            "limit": m.limit,
            "best found": m.best,
            "times the limit": m.factor,
            "on": m.candidate,
        }
        for m in plan.misses
    ]


def windows_chart(windows: Sequence[WindowLevels], *, subject: str) -> Chart:
    """Each service level as a share of its limit over time, the worst window of each hour, with the request rate."""
    import plotly.graph_objects as go

    rows = window_rows(windows)
    starts = [clock_text(start_s) for start_s, _, _, _ in rows]
    figure = go.Figure()
    for index, level in enumerate(rows[0][2]):
        figure.add_scatter(
            name=level.slo,
            x=starts,
            y=[levels[index].ratio for _, _, levels, _ in rows],
            customdata=[rate for _, rate, _, _ in rows],
            mode="lines+markers",
            line={"color": colour(index)},
            marker={"symbol": symbol(index)},
            hovertemplate="%{x}: %{y:.0%} of the limit at %{customdata:,.2f} requests/s<extra></extra>",
        )
    figure.add_hline(y=1.0, line={"color": NEUTRAL, "dash": "dash"})
    layout(figure, x="time of the traffic", y="share of the limit", height=360)
    figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    worst = max(level.ratio for _, _, levels, _ in rows for level in levels)
    return Chart(
        name="slo_over_time",
        title="Service levels over time",
        alt=f"The worst window of each of {len(rows)} stretches of time; the highest is at {worst:.0%} of its limit.",
        figure=figure,
        subject=subject,
        rows=tuple(
            {
                "from": start,
                "requests/s": rate,
                **{level_name(level): level_text(level) for level in levels},
                "judged": judged,
            }
            for start, (_, rate, levels, judged) in zip(starts, rows, strict=True)
        ),
    )


def speed_chart(plan: Plan) -> Chart:
    """Speed for a user against use of a GPU: what was simulated and is beaten in neither, by its number in the ranking,
    or a letter, and by name in the legend.

    Filled: meets the SLO. A star: what to rent, which is best by the objective and may be beaten here; faint: the rest
    of the ranking. Whiskers go from step times that hold at the confidence, where the mark is, to predicted ones, of
    what was simulated with both.
    """
    import plotly.graph_objects as go

    points = [point for point in plan.speed_front if point.tokens_per_s_per_user is not None]
    places = [(point.tokens_per_s_per_user or 0.0, point.tokens_per_s_per_gpu) for point in points]
    likely = _as_predicted(plan)
    everywhere = [*places, *_ranked_places(plan)]
    x_range = _with_room([x for x, _ in everywhere] + [x for x, _ in likely.values()])
    y_range = _with_room([y for _, y in everywhere])
    figure = go.Figure()
    figure.add_scatter(
        x=[x for x, _ in sorted(places)],
        y=[y for _, y in sorted(places)],
        mode="lines",
        line={"color": NEUTRAL, "dash": "dot", "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )
    _ranked_marks(figure, plan, likely)
    gpus = list(dict.fromkeys(point.gpu for point in points))
    marks = _marks(plan, points)
    sides = label_places(places, marks, x_range=x_range, y_range=y_range)
    for mark, point, (x, y), side in zip(marks, points, places, sides, strict=True):
        index = gpus.index(point.gpu)
        figure.add_scatter(
            x=[x],
            y=[y],
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
            error_x=_whisker([x], [likely.get(point.label)], colour(index)),
            cliponaxis=False,
            hovertemplate="%{customdata}<br>%{x:,.1f} tokens/s a user, %{y:,.0f} a GPU<extra></extra>",
        )
    layout(figure, x="output tokens/s per user", y="output tokens/s per GPU", height=460 + 22 * len(points))
    figure.update_xaxes(range=x_range)
    figure.update_yaxes(range=y_range)
    meeting = sum(point.met for point in points)
    return Chart(
        name="pareto",
        title="Speed for a user against use of a GPU",
        alt=f"{_winner_words(plan)}{len(points)} simulated deployments that none beats in both; {meeting} of them meet "
        f"the service levels. {whisker_words(plan)}",
        figure=figure,
        subject=subject_of(plan),
        rows=tuple(
            {
                "mark": mark,
                "deployment": point.label,
                "tokens/s per user": point.tokens_per_s_per_user,
                "as predicted": None if (place := likely.get(point.label)) is None else place[0],
                "tokens/s per GPU": point.tokens_per_s_per_gpu,
                "GPUs": point.num_gpus,
                "$/h": point.usd_per_hour,
                "meets the SLO": point.met,
            }
            for mark, point in zip(marks, points, strict=True)
        ),
    )


def whisker_words(plan: Plan) -> str:
    """What whiskers of the chart of speeds are, and why some marks have none."""
    if not any(answer.predicted for answer in plan.ranked):
        return ""
    return (
        f"Marks stand where step times are that hold with {plan.confidence:.0%} confidence; a whisker reaches to where "
        "they are as predicted. What misses the service levels, and the end of a long ranking, was not simulated with "
        "both and has none."
    )


def front_chart(plan: Plan) -> Chart:
    """Price (or GPUs) against the worst service level as a share of its limit: what none beats in both."""
    import plotly.graph_objects as go

    priced = all(point.usd_per_hour is not None for point in plan.cost_front)
    money = "$ per hour" if priced else "GPUs"
    points = [
        (p, float(p.num_gpus if p.usd_per_hour is None or not priced else p.usd_per_hour))
        for p in plan.cost_front
    ]
    figure = go.Figure()
    for index, gpu in enumerate(dict.fromkeys(point.gpu for point, _ in points)):
        chosen = [(point, price) for point, price in points if point.gpu == gpu]
        figure.add_scatter(
            x=[price for _, price in chosen],
            y=[min(point.worst_ratio, WORST_SHOWN) for point, _ in chosen],
            error_y=_sampling([point for point, _ in chosen], colour(index)),
            mode="markers",
            name=gpu,
            marker={"color": colour(index), "symbol": symbol(index), "size": 13},
            text=[f"{point.label}: {price:,.4g}, {point.worst_ratio:.2f}" for point, price in chosen],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.add_hline(y=1.0, line={"color": NEUTRAL, "dash": "dash", "width": 2}, annotation={"text": "limit"})
    layout(figure, x=money, y="worst service level / limit", height=400)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    return Chart(
        name="price_front",
        title="Price against the worst service level",
        alt=f"{len(points)} deployments that none beats in both; what is above {WORST_SHOWN:g} stands there.",
        figure=figure,
        rows=tuple(
            {"deployment": point.label, money: price, "worst level / limit": point.worst_ratio}
            for point, price in points
        ),
        subject=subject_of(plan),
    )


def _sampling(points: Sequence[Point], hue: str) -> dict[str, object]:
    """The 90 % interval of each point's worst level by the traffic's chance, where it was asked for."""
    ends = []
    for point in points:
        level = max(point.levels, key=lambda each: each.ratio, default=None)
        known = level is not None and level.low_s is not None and level.high_s is not None
        if level is None or not known or point.worst_ratio > WORST_SHOWN:
            ends.append((0.0, 0.0))
            continue
        low, high = (level.low_s or 0.0) / level.limit_s, (level.high_s or 0.0) / level.limit_s
        ends.append((max(level.ratio - low, 0.0), max(high - level.ratio, 0.0)))
    return {
        "type": "data",
        "symmetric": False,
        "array": [high for _, high in ends],
        "arrayminus": [low for low, _ in ends],
        "color": hue,
        "thickness": 1.5,
    }


def short_label(label: str) -> str:
    """`3 x h200 TP1 fp8` of a whole name: GPUs without their memory."""
    return re.sub(r"-(sxm|pcie|nvl)?-?\d+gb", "", label)


def _marks(plan: Plan, points: Sequence[Point]) -> list[str]:
    """What each point is called: by its number in the ranking, or by a letter where it has none."""
    ranks = {answer.candidate.label: str(number) for number, answer in enumerate(plan.ranked, start=1)}
    letters = iter(ascii_lowercase * len(points))
    return [ranks.get(point.label) or next(letters) for point in points]


def _ranked_places(plan: Plan) -> list[tuple[float, float]]:
    """Where the ranking stands, of those whose answers have a speed."""
    return [
        (answer.trial.tokens_per_s_per_user, answer.tokens_per_s_per_gpu)
        for answer in plan.ranked
        if answer.trial.tokens_per_s_per_user is not None
    ]


def _as_predicted(plan: Plan) -> dict[str, tuple[float, float]]:
    """By label, where it stands with step times as predicted."""
    return {
        answer.candidate.label: (speed, answer.predicted.output_tokens_per_s / answer.num_gpus)
        for answer in plan.ranked
        if answer.predicted is not None and (speed := answer.predicted.tokens_per_s_per_user) is not None
    }


def _whisker(
    speeds: Sequence[float], likely: Sequence[tuple[float, float] | None], hue: str
) -> dict[str, object]:
    """From each mark to where it stands with step times as predicted."""
    off = [0.0 if place is None else place[0] - x for x, place in zip(speeds, likely, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(each, 0.0) for each in off],
        "arrayminus": [max(-each, 0.0) for each in off],
        "color": hue,
        "thickness": 1.5,
    }


def _ranked_marks(figure: Any, plan: Plan, likely: Mapping[str, tuple[float, float]]) -> None:
    """What to rent, as a star that the legend names, and faintly what else meets the service levels."""
    known = [
        (answer.candidate.label, answer.trial.tokens_per_s_per_user, answer.tokens_per_s_per_gpu)
        for answer in plan.ranked
        if answer.trial.tokens_per_s_per_user is not None
    ]
    rest = known[1:]
    if rest:
        figure.add_scatter(
            x=[x for _, x, _ in rest],
            y=[y for _, _, y in rest],
            mode="markers",
            name="also meets it",
            opacity=0.45,
            marker={"color": NEUTRAL, "symbol": "circle-open", "size": 8},
            error_x=_whisker([x for _, x, _ in rest], [likely.get(label) for label, _, _ in rest], NEUTRAL),
            text=[f"{number}: {label}" for number, (label, _, _) in enumerate(rest, start=2)],
            hovertemplate="%{text}<br>%{x:,.1f} tokens/s a user, %{y:,.0f} a GPU<extra></extra>",
        )
    if known and plan.best is not None and known[0][0] == plan.best.candidate.label:
        label, speed, use = known[0]
        figure.add_scatter(
            x=[speed],
            y=[use],
            mode="markers",
            name=f"1: {short_label(label)}, to rent by {plan.objective}",
            marker={"symbol": "star", "size": 18, "color": colour(1), "line": {"width": 1, "color": NEUTRAL}},
            error_x=_whisker([speed], [likely.get(label)], colour(1)),
            cliponaxis=False,
            hovertemplate=f"{label}<br>%{{x:,.1f}} tokens/s a user, %{{y:,.0f}} a GPU<extra></extra>",
        )


def _with_room(values: Sequence[float]) -> tuple[float, float]:
    """A range with room at its sides for marks and numbers."""
    if not values:
        return (0.0, 1.0)
    room = 0.12 * (max(values) - min(values)) or 0.25 * max(values) or 1.0
    return (max(0.0, min(values) - room), max(values) + room)


def _winner_words(plan: Plan) -> str:
    return "" if plan.best is None else f"To rent, by {plan.objective}: {plan.best.candidate.label}. "
