"""A fleet as pictures: what each threshold would cost, how near the pools are to their limits, replicas by the hour."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from capacity.answers.records import Quantity
from capacity.report.figures.chart import NEUTRAL, Chart, bar_style, layout
from capacity.report.figures.loads import whiskers, with_interval
from capacity.report.fleet import ONE_POOL, engines_text, layout_text, thresholds_text
from capacity.report.plan import level_text
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.planning.fleets.fleet_records import FleetPlan, FleetPool, Layout


def threshold_text(found: Layout) -> str:
    """`1,344 tokens`, `1,024 and 4,096 tokens`, or `one pool`."""
    return thresholds_text(found, between=" and ", unit=" tokens")


def layouts_chart(plan: FleetPlan) -> Chart:
    """What each threshold would cost, its pools upon each other, and the line of one pool for all.

    Bars are $ an hour, or GPUs where that is what is least.
    """
    import plotly.graph_objects as go

    found = [each for each in plan.layouts if each.pools]
    priced = plan.objective == "cost" and all(each.usd_per_hour is not None for each in found)
    label = "$ an hour" if priced else "GPUs"
    figure = go.Figure()
    most = max((len(each.pools) for each in found), default=0)
    for place in range(most):
        here = [each for each in found if place < len(each.pools)]
        pools = [each.pools[place] for each in here]
        values = [(pool.usd_per_hour if priced else pool.num_gpus) or 0.0 for pool in pools]
        figure.add_bar(
            y=[threshold_text(each) for each in here],
            x=values,
            orientation="h",
            name=(
                "pool for all, or for the shortest" if place == 0 else f"pool {place + 1}, for longer ones"
            ),
            hovertext=[
                f"{engines_text(pool)}: {value:,.4g}" for pool, value in zip(pools, values, strict=True)
            ],
            hovertemplate="%{y}: %{hovertext}<extra></extra>",
            **bar_style(place),
        )
    one = plan.one_pool
    if one is not None and one.objective is not None:
        figure.add_vline(
            x=one.objective,
            line={"color": NEUTRAL, "dash": "dash", "width": 2},
            annotation_text=ONE_POOL,
        )
    layout(figure, x=label, y="threshold", height=150 + 34 * max(len(found), 1), barmode="stack")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(rangemode="tozero")
    best = plan.best
    words = "nothing meets the service levels"
    if best is not None:
        words = f"the least is {threshold_text(best)}: {layout_text(best)}"
    return Chart(
        name="fleet_layouts",
        title=f"{label[0].upper()}{label[1:]} by threshold",
        alt=f"{len(plan.layouts)} layouts were tried; {words}.",
        figure=figure,
        subject=subject_of(plan),
        rows=tuple(layout_rows(plan)) if found else (),
    )


def layout_rows(plan: FleetPlan) -> list[dict[str, object]]:
    """Every layout that was tried, as a table shows it."""
    best, one = plan.best, plan.one_pool
    base = None if one is None else one.objective
    return [
        {
            "threshold": threshold_text(each),
            "best": each is best,
            "engines": layout_text(each) if each.pools else None,
            "short requests, %": None
            if len(each.pools) < 2
            else float(f"{100 * each.pools[0].request_share:.3g}"),
            "GPUs": each.num_gpus if each.pools else None,
            "$/h": None if each.usd_per_hour is None else round(each.usd_per_hour, 4),
            "to one pool, %": None
            if each.objective is None or not base
            else round(100 * (each.objective / base - 1), 1),
            "why not": None if each.pools else each.reason or each.outcome,
        }
        for each in plan.layouts
    ]


def pool_rows(best: Layout) -> list[dict[str, object]]:
    """The pools to rent, as a table shows them."""
    return [
        {
            "pool": pool.label,
            "engines": engines_text(pool),
            "in reserve": pool.spare_replicas,
            "requests, %": float(f"{100 * pool.request_share:.3g}"),
            "requests/s": float(f"{pool.requests_per_s:.4g}"),
            "tokens in": round(pool.input_tokens),
            "out": round(pool.output_tokens),
            "$/h": None if pool.usd_per_hour is None else round(pool.usd_per_hour, 4),
            **{level.slo: level_text(level) for level in pool.levels},
        }
        for pool in best.pools
    ]


def levels_chart(best: Layout, *, subject: str = "") -> Chart:
    """How near each pool is to the limits of its requests, with the 90 % interval of the traffic's chance."""
    import plotly.graph_objects as go

    rows = [(_level_name(pool, level.slo), level) for pool in best.pools for level in pool.levels]
    values = [
        Quantity(
            value=level.ratio,
            low=None if level.low_s is None else level.low_s / level.limit_s,
            high=None if level.high_s is None else level.high_s / level.limit_s,
        )
        for _, level in rows
    ]
    figure = go.Figure()
    figure.add_bar(
        y=[name for name, _ in rows],
        x=[100 * value.value for value in values],
        orientation="h",
        error_x=whiskers(values, 100),
        text=[with_interval(value, 100) for value in values],
        textposition="none",
        hovertemplate="%{y}: %{text} %<extra></extra>",
        showlegend=False,
        **bar_style(0),
    )
    figure.add_vline(x=100, line={"color": NEUTRAL, "dash": "dash", "width": 2}, annotation_text="limit")
    layout(figure, x="% of the limit", y="", height=150 + 34 * max(len(rows), 1))
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(rangemode="tozero")
    return Chart(
        name="fleet_levels",
        title="How near each pool is to its limits",
        alt="; ".join(f"{name} {level_text(level)}" for name, level in rows) or "No limits of its own.",
        figure=figure,
        subject=subject,
        rows=tuple(
            {
                "pool and level": name,
                "% of the limit": 100 * value.value,
                "low": None if value.low is None else 100 * value.low,
                "high": None if value.high is None else 100 * value.high,
            }
            for (name, _), value in zip(rows, values, strict=True)
        ),
    )


def _level_name(pool: FleetPool, slo: str) -> str:
    return f"{pool.label}, {slo}"


def fleet_day_chart(plan: FleetPlan) -> Chart:
    """Replicas of each pool by the hour of a day, upon each other, reserve included; without a day, without rows."""
    import plotly.graph_objects as go

    pools = () if plan.best is None else plan.best.pools
    hours = () if plan.day is None else plan.day.hours
    names = [f"{hour.hour}" for hour in hours]
    figure = go.Figure()
    for place, pool in enumerate(pools):
        figure.add_bar(
            x=names,
            y=[hour.replicas[place] for hour in hours],
            name=f"{pool.label}: {pool.pool.gpu}",
            hovertemplate="%{x} h: %{y} replicas<extra>%{fullData.name}</extra>",
            **bar_style(place),
        )
    layout(figure, x="hour of the day", y="replicas", height=330, barmode="stack")
    figure.update_xaxes(type="category")
    most = max((sum(hour.replicas) for hour in hours), default=0)
    step = math.ceil(most / 6) or 1
    figure.update_yaxes(rangemode="tozero", tickvals=list(range(0, most + step, step)))
    day = plan.day
    words = "No bill of a day was asked for."
    if day is not None and day.scaled_usd_per_day is not None and day.fixed_usd_per_day is not None:
        words = (
            f"${day.scaled_usd_per_day:,.2f} a day with replicas that follow the hour, ${day.fixed_usd_per_day:,.2f} "
            "with those of the peak around the clock."
        )
    return Chart(
        name="fleet_day",
        title="Replicas by the hour of a day",
        alt=words,
        figure=figure,
        subject=subject_of(plan),
        rows=tuple(
            {
                "hour": hour.hour,
                "requests/s": float(f"{hour.request_rate_per_s:.4g}"),
                **{pool.label: hour.replicas[place] for place, pool in enumerate(pools)},
                "$/h": hour.usd_per_hour,
            }
            for hour in hours
        ),
    )
