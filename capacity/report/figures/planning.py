"""A plan as pictures and tables: the ranked deployments, the fronts, and what was turned down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from capacity.planning.records import KINDS
from capacity.report.figures.chart import NEUTRAL, Chart, colour, layout, symbol
from capacity.report.plan import level_text, quality_text
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.planning.records import Plan, Ranked


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
        "$/month": None if cost is None else cost.usd_per_month,
        "$/1M output": None if cost is None else cost.usd_per_million_output_tokens,
    }
    row |= {level.slo: level_text(level) for level in answer.trial.levels}
    return row | {
        "of the limit": answer.trial.ratio,
        "confidence": answer.confidence,
        "quality loss": quality_text(answer),
        "J/token": answer.joules_per_output_token,
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


def speed_chart(plan: Plan) -> Chart:
    """Speed for a user against use of a GPU: what was simulated and is beaten in neither, by name. Filled: meets the
    SLO. A star: what to rent, which is best by the objective and may be beaten here; faint: the rest of the ranking."""
    import plotly.graph_objects as go

    points = [point for point in plan.speed_front if point.tokens_per_s_per_user is not None]
    figure = go.Figure()
    for index, gpu in enumerate(dict.fromkeys(point.gpu for point in points)):
        for met in (True, False):
            chosen = [point for point in points if point.gpu == gpu and point.met is met]
            if not chosen:
                continue
            figure.add_scatter(
                x=[point.tokens_per_s_per_user for point in chosen],
                y=[point.tokens_per_s_per_gpu for point in chosen],
                mode="markers+text",
                textposition="top center",
                name=gpu if met else f"{gpu}, misses the SLO",
                marker={
                    "color": colour(index) if met else "rgba(0,0,0,0)",
                    "symbol": symbol(index),
                    "size": 13,
                    "line": {"width": 2, "color": colour(index)},
                },
                text=[short_label(point.label) for point in chosen],
                customdata=[point.label for point in chosen],
                cliponaxis=False,
                hovertemplate="%{customdata}<br>%{x:,.1f} tokens/s a user, %{y:,.0f} a GPU<extra></extra>",
            )
    front = sorted((p.tokens_per_s_per_user or 0.0, p.tokens_per_s_per_gpu) for p in points)
    figure.add_scatter(
        x=[x for x, _ in front],
        y=[y for _, y in front],
        mode="lines",
        line={"color": NEUTRAL, "dash": "dot", "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )
    _ranked_marks(figure, plan)
    layout(figure, x="output tokens/s per user", y="output tokens/s per GPU", height=480)
    figure.update_xaxes(range=_with_room([x for trace in figure.data for x in trace.x if x is not None]))
    meeting = sum(point.met for point in points)
    return Chart(
        name="pareto",
        title="Speed for a user against use of a GPU",
        alt=f"{_winner_words(plan)}{len(points)} simulated deployments that none beats in both; {meeting} of them meet "
        "the service levels.",
        figure=figure,
        subject=subject_of(plan),
        rows=tuple(
            {
                "deployment": point.label,
                "tokens/s per user": point.tokens_per_s_per_user,
                "tokens/s per GPU": point.tokens_per_s_per_gpu,
                "GPUs": point.num_gpus,
                "$/h": point.usd_per_hour,
                "meets the SLO": point.met,
            }
            for point in points
        ),
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


def short_label(label: str) -> str:
    """`3 x h200 TP1 fp8` of a whole name: GPUs without their memory."""
    return re.sub(r"-(sxm|pcie|nvl)?-?\d+gb", "", label)


def _ranked_marks(figure: Any, plan: Plan) -> None:
    """What to rent, with a star and its name, and faintly what else meets the service levels."""
    places = [
        (answer.candidate.label, answer.trial.tokens_per_s_per_user, answer.tokens_per_s_per_gpu)
        for answer in plan.ranked
    ]
    known = [place for place in places if place[1] is not None]
    rest = known[1:]
    if rest:
        figure.add_scatter(
            x=[x for _, x, _ in rest],
            y=[y for _, _, y in rest],
            mode="markers",
            name="also meets it",
            opacity=0.45,
            marker={"color": NEUTRAL, "symbol": "circle-open", "size": 8},
            text=[label for label, _, _ in rest],
            hovertemplate="%{text}<br>%{x:,.1f} tokens/s a user, %{y:,.0f} a GPU<extra></extra>",
        )
    if known and plan.best is not None and known[0][0] == plan.best.candidate.label:
        label, speed, use = known[0]
        figure.add_scatter(
            x=[speed],
            y=[use],
            mode="markers+text",
            name=f"to rent, by {plan.objective}",
            marker={"symbol": "star", "size": 18, "color": colour(1), "line": {"width": 1, "color": NEUTRAL}},
            text=[f"<b>{short_label(label)}</b>"],
            textposition="bottom center",
            cliponaxis=False,
            hovertemplate=f"{label}<br>%{{x:,.1f}} tokens/s a user, %{{y:,.0f}} a GPU<extra></extra>",
        )


def _with_room(values: Sequence[float]) -> list[float] | None:
    """A range with room at its sides for names."""
    if not values:
        return None
    room = 0.25 * (max(values) - min(values)) or 0.25 * max(values)
    return [max(0.0, min(values) - room), max(values) + room]


def _winner_words(plan: Plan) -> str:
    return "" if plan.best is None else f"To rent, by {plan.objective}: {plan.best.candidate.label}. "
