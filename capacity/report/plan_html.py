"""A plan as one HTML file that needs nothing else: inputs, answer, charts, assumptions, sources and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from capacity.base.html import list_html, page_html, table_html
from capacity.report.curve import day_text, highest_texts
from capacity.report.plan import (
    arrivals_text,
    cost_text,
    level_text,
    quality_sources,
    quality_text,
    turned_down,
)
from capacity.report.svg_scatter import scatter

if TYPE_CHECKING:
    from capacity.planning.curve import Curve
    from capacity.planning.records import Plan, Point, Ranked

VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.45; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: .3rem .7rem; border-bottom: 1px solid #8885; }
th { text-align: left; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; padding: .8rem; background: #8882; } svg { max-width: 100%; height: auto; }
svg text { fill: currentColor; font-size: 12px; } .axis { stroke: currentColor; stroke-width: 1; }
"""


def plan_html(plan: Plan, files: Sequence[tuple[str, str]] = ()) -> str:
    """The report; `files` are (title, text) to show as they are: launch command, manifest, benchmark."""
    best = plan.best
    verdict = (
        f"<p><strong>{escape(best.candidate.label)}</strong>{_price(best)}.</p>"
        if best
        else "<p><strong>Nothing in the space meets the SLO.</strong></p>" + _misses(plan)
    )
    parts = [
        f"<h1>{escape(plan.model)}: what to rent</h1>",
        _facts(plan),
        "<h2>Answer</h2>",
        verdict,
        _ranked(plan),
        "<h2>Charts</h2>",
        _speed_chart(plan.speed_front),
        _cost_chart(plan.cost_front),
        "<h2>Turned down</h2>",
        table_html(("engines", "why", "for one"), turned_down(plan)),
        "<h2>Assumptions and sources</h2>",
        list_html(_assumptions(plan)),
        *(f"<h2>{escape(title)}</h2><pre>{escape(text)}</pre>" for title, text in files),
    ]
    return page_html(f"{plan.model} plan", "".join(parts), style=STYLE, head=VIEWPORT)


def curve_html(curve: Curve) -> str:
    """Latency against load with the line of each service level, in one file."""
    charts = []
    for place, slo in enumerate(curve.slos):
        level = curve.points[0].levels[place]
        if level.value_s is None:
            continue
        values = [
            (slo, f"{p.request_rate_per_s:,.3g}/s", p.request_rate_per_s, p.levels[place].value_s)
            for p in curve.points
        ]
        shown = [
            (group, label, x, min(y, 4 * level.limit_s)) for group, label, x, y in values if y is not None
        ]
        charts.append(
            scatter(shown, title=f"{slo} against load", axes=("requests/s", "seconds"), line_y=level.limit_s)
        )
    speed = [("output tokens/s", "", p.request_rate_per_s, p.output_tokens_per_s) for p in curve.points]
    charts.append(
        scatter(speed, title="Throughput against load", axes=("requests/s offered", "output tokens/s"))
    )
    body = (
        f"<h1>{escape(curve.deployment)}</h1>"
        f"<p>{escape(curve.workload)}; values above four times a limit are drawn there.</p>"
        f"{list_html(_curve_facts(curve))}{''.join(charts)}{_day_table(curve)}{list_html(curve.warnings)}"
    )
    return page_html("Load", body, style=STYLE, head=VIEWPORT)


def _curve_facts(curve: Curve) -> tuple[str, ...]:
    """The knee, the highest rate with what it leaves open, and the users that this is."""
    facts = [f"knee (throughput over latency is greatest): {curve.knee_per_s:,.3g} requests/s"]
    if highest := curve.highest:
        rate, band, confident = highest_texts(highest)
        facts.append(
            f"highest rate within the SLO: {rate} requests/s as predicted "
            f"({band} over the 90 % band of the step model's error), "
            f"{confident} with {highest.confidence:.0%} confidence"
        )
        if highest.sampling_low is not None and highest.sampling_high is not None:
            facts.append(
                f"another draw of the traffic: {highest.sampling_low:,.3g} to {highest.sampling_high:,.3g} requests/s "
                f"(90 % interval over {highest.replications} draws)"
            )
    if curve.users is not None:
        facts.append(f"users: {curve.users:,.0f} of {curve.requests_per_user_hour:g} requests an hour each")
    return tuple(facts)


def _day_table(curve: Curve) -> str:
    """Replicas by the hour, autoscaled against fixed."""
    day = curve.day
    if day is None:
        return ""
    rows = [(hour.hour, f"{hour.request_rate_per_s:,.2f}", hour.replicas) for hour in day.hours]
    table = table_html(("hour", "requests/s", "replicas"), rows, scope="")
    return f"<h2>Replicas by the hour</h2><p>{day_text(day)}</p>{table}"


def _price(best: Ranked) -> str:
    if best.cost is None:
        return f", {best.num_gpus} GPUs"
    return f", ${best.cost.usd_per_hour:,.2f} an hour, ${best.cost.usd_per_month:,.0f} a month of 730 hours"


def _facts(plan: Plan) -> str:
    rows = [
        ("traffic", f"{plan.workload}: {plan.requests:,} requests, {arrivals_text(plan)}"),
        ("mean lengths", f"{plan.input_tokens:,.0f} tokens in, {plan.output_tokens:,.0f} out"),
        ("service levels", ", ".join(plan.slos)),
        ("objective", f"least {plan.objective}"),
        ("confidence asked for", f"{plan.confidence:.0%} of the step model's error"),
        ("search", _search_text(plan)),
        ("first answer, and last", _clock_text(plan)),
    ]
    return table_html(None, rows)


def _search_text(plan: Plan) -> str:
    counts = plan.counts
    return f"{counts.simulated:,} of {counts.points:,} deployments simulated; {plan.proof}"


def _clock_text(plan: Plan) -> str:
    first = "none" if plan.first_answer_s is None else f"{plan.first_answer_s:,.1f} s"
    return f"{first}, {plan.elapsed_s:,.1f} s"


def _ranked(plan: Plan) -> str:
    if not plan.ranked:
        return ""
    slos = [level.slo for level in plan.ranked[0].trial.levels]
    heads = (
        "deployment",
        "GPUs",
        "$/h",
        *(f"{slo} at {plan.confidence:.0%}" for slo in slos),
        "confidence",
        "quality loss",
    )
    rows = []
    for answer in plan.ranked:
        price = cost_text(answer, "usd_per_hour", ",.2f")
        levels = (level_text(level) for level in answer.trial.levels)
        rows.append(
            (
                answer.candidate.label,
                answer.num_gpus,
                price,
                *levels,
                f"{answer.confidence:.0%}",
                quality_text(answer),
            )
        )
    return table_html(heads, rows) + "<p>In brackets: 90 % interval of sampling.</p>"


def _misses(plan: Plan) -> str:
    rows = [(m.slo, m.limit, m.best, f"{m.factor:.2f}", m.candidate) for m in plan.misses]
    return table_html(("part", "limit", "best found", "times the limit", "on"), rows)


def _assumptions(plan: Plan) -> list[str]:
    quality = quality_sources(plan.ranked)
    return [
        *(f"price of {price}" for price in plan.prices),
        *(f"quality: {what}; source: {source}" for what, source in quality.items()),
        *(f"not searched: {text}" for text in plan.not_searched),
        *plan.warnings,
    ]


def _speed_chart(points: Sequence[Point]) -> str:
    values = [
        (p.gpu, p.label, float(p.tokens_per_s_per_user), p.tokens_per_s_per_gpu)
        for p in points
        if p.tokens_per_s_per_user is not None
    ]
    return scatter(
        values,
        title="Speed for a user against use of a GPU",
        axes=("output tokens/s per user", "output tokens/s per GPU"),
    )


def _cost_chart(points: Sequence[Point]) -> str:
    values = [
        (
            p.gpu,
            p.label,
            p.usd_per_hour if p.usd_per_hour is not None else float(p.num_gpus),
            min(p.worst_ratio, 3.0),
        )
        for p in points
    ]
    return scatter(
        values,
        title="Price against the worst service level",
        axes=("$ per hour", "value over limit"),
        line_y=1.0,
    )
