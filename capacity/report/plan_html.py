"""A plan as one HTML file that needs nothing else: inputs, answer, charts, assumptions, sources and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from capacity.report.planning import level_text, quality_text

if TYPE_CHECKING:
    from capacity.planning.curve import Curve
    from capacity.planning.records import Plan, Point

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # Okabe and Ito, 2008
MARKS = ("circle", "square", "diamond", "triangle")
WIDTH, HEIGHT, MARGIN = 640, 360, 56

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
        _table(("engines", "why", "for one"), _reasons(plan)),
        "<h2>Assumptions and sources</h2>",
        _list(_assumptions(plan)),
        *(f"<h2>{escape(title)}</h2><pre>{escape(text)}</pre>" for title, text in files),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(plan.model)} plan</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


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
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Load</title><style>{STYLE}</style></head><body><h1>{escape(curve.deployment)}</h1>"
        f"<p>{escape(curve.workload)}; values above four times a limit are drawn there.</p>"
        f"{_list(_curve_facts(curve))}{''.join(charts)}{_day_table(curve)}{_list(curve.warnings)}</body></html>\n"
    )


def _curve_facts(curve: Curve) -> tuple[str, ...]:
    """The knee, the highest rate with what it leaves open, and the users that this is."""
    facts = [f"knee (throughput over latency is greatest): {curve.knee_per_s:,.3g} requests/s"]
    if found := curve.highest:
        facts.append(
            f"highest rate within the SLO: {found.predicted:,.3g} requests/s as predicted "
            f"({found.low:,.3g} to {found.high:,.3g} over the 90 % band of the step model's error), "
            f"{found.at_confidence:,.3g} with {found.confidence:.0%} confidence"
        )
        if found.sampling_low is not None and found.sampling_high is not None:
            facts.append(
                f"another draw of the traffic: {found.sampling_low:,.3g} to {found.sampling_high:,.3g} requests/s "
                f"(90 % interval over {found.replications} draws)"
            )
    if curve.users is not None:
        facts.append(f"users: {curve.users:,.0f} of {curve.requests_per_user_hour:g} requests an hour each")
    return tuple(facts)


def _day_table(curve: Curve) -> str:
    """Replicas by the hour, autoscaled against fixed."""
    day = curve.day
    if day is None:
        return ""
    rows = "".join(
        f"<tr><td>{hour.hour}</td><td>{hour.request_rate_per_s:,.2f}</td><td>{hour.replicas}</td></tr>"
        for hour in day.hours
    )
    money = (
        ""
        if day.fixed_usd_per_month is None or day.autoscaled_usd_per_month is None
        else f"; ${day.autoscaled_usd_per_month:,.0f} against ${day.fixed_usd_per_month:,.0f} a month"
    )
    return (
        f"<h2>Replicas by the hour</h2><p>{day.autoscaled_replica_hours} replica-hours autoscaled, "
        f"{day.fixed_replica_hours} fixed{money}</p><table><tr><th>hour</th><th>requests/s</th><th>replicas</th></tr>"
        f"{rows}</table>"
    )


def _price(best: Any) -> str:
    if best.cost is None:
        return f", {best.num_gpus} GPUs"
    return f", ${best.cost.usd_per_hour:,.2f} an hour, ${best.cost.usd_per_month:,.0f} a month of 730 hours"


def _facts(plan: Plan) -> str:
    rows = [
        ("traffic", f"{plan.workload}: {plan.requests:,} requests, {plan.requests_per_s:,.2f} a second"),
        ("mean lengths", f"{plan.input_tokens:,.0f} tokens in, {plan.output_tokens:,.0f} out"),
        ("service levels", ", ".join(plan.slos)),
        ("objective", f"least {plan.objective}"),
        ("confidence asked for", f"{plan.confidence:.0%} of the step model's error"),
        ("search", _search_text(plan)),
        ("first answer, and last", _clock_text(plan)),
    ]
    return _table(None, rows)


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
        price = "-" if answer.cost is None else f"{answer.cost.usd_per_hour:,.2f}"
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
    return _table(heads, rows) + "<p>In brackets: 90 % interval of sampling.</p>"


def _misses(plan: Plan) -> str:
    rows = [(m.slo, m.limit, m.best, f"{m.factor:.2f}", m.candidate) for m in plan.misses]
    return _table(("part", "limit", "best found", "times the limit", "on"), rows)


def _reasons(plan: Plan) -> list[tuple[object, ...]]:
    from capacity.planning.records import KINDS

    rows: list[tuple[object, ...]] = []
    for kind, count in sorted(plan.reasons.items(), key=lambda item: -item[1]):
        example = next(rejection for rejection in plan.rejected if rejection.kind == kind)
        rows.append(
            (
                count,
                KINDS[kind],
                f"{example.engine}: {example.reason}",
            )
        )
    return rows


def _assumptions(plan: Plan) -> list[str]:
    quality = {a.quality.what: a.quality.source for a in plan.ranked if a.quality.worst_loss_fraction != 0}
    return [
        *(f"price of {price}" for price in plan.prices),
        *(f"quality: {what}; source: {source}" for what, source in quality.items()),
        *(f"not searched: {text}" for text in plan.not_searched),
        *plan.warnings,
    ]


def _table(heads: Sequence[str] | None, rows: Sequence[Sequence[object]]) -> str:
    head = (
        ""
        if heads is None
        else "<tr>" + "".join(f'<th scope="col">{escape(h)}</th>' for h in heads) + "</tr>"
    )
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>{head}{body}</table>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


# charts


def _speed_chart(points: Sequence[Point]) -> str:
    found = [
        (p, p.tokens_per_s_per_user, p.tokens_per_s_per_gpu)
        for p in points
        if p.tokens_per_s_per_user is not None
    ]
    return scatter(
        [(p.gpu, p.label, float(x), y) for p, x, y in found if x is not None],
        title="Speed for a user against use of a GPU",
        axes=("output tokens/s per user", "output tokens/s per GPU"),
    )


def _cost_chart(points: Sequence[Point]) -> str:
    values = [
        (p.gpu, p.label, p.usd_per_hour if p.usd_per_hour is not None else float(p.num_gpus), _ratio(p))
        for p in points
    ]
    return scatter(
        values,
        title="Price against the worst service level",
        axes=("$ per hour", "value over limit"),
        line_y=1.0,
    )


def _ratio(point: Point) -> float:
    return min(max((level.ratio for level in point.levels), default=0.0), 3.0)


def scatter(
    points: Sequence[tuple[str, str, float, float]],
    *,
    title: str,
    axes: tuple[str, str],
    line_y: float | None = None,
) -> str:
    """An SVG of (group, label, x, y): groups differ in colour and shape, labels show on hover."""
    if not points:
        return ""
    groups = list(dict.fromkeys(group for group, _, _, _ in points))
    most_x = max(x for _, _, x, _ in points) * 1.08 or 1.0
    most_y = max([y for _, _, _, y in points] + ([line_y] if line_y else [])) * 1.1 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        left = MARGIN + x / most_x * (WIDTH - 2 * MARGIN)
        return round(left, 1), round(HEIGHT - MARGIN - y / most_y * (HEIGHT - 2 * MARGIN), 1)

    marks = [
        f"<g><title>{escape(label)}: {x:,.4g}, {y:,.4g}</title>{_mark(groups.index(group), *place(x, y))}</g>"
        for group, label, x, y in points
    ]
    if line_y is not None:
        (x0, y0), (x1, _) = place(0, line_y), place(most_x, line_y)
        marks.append(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y0}" class="axis" stroke-dasharray="4"/>')
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: {len(points)} points">{_axes(axes, most_x, most_y, place)}{"".join(marks)}'
        f"{_legend(groups)}</svg></figure>"
    )


def _axes(axes: tuple[str, str], most_x: float, most_y: float, place: Any) -> str:
    (x0, y0), (x1, _), (_, y1) = place(0, 0), place(most_x, 0), place(0, most_y)
    lines = [
        f'<line class="axis" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y0}"/>',
        f'<line class="axis" x1="{x0}" y1="{y0}" x2="{x0}" y2="{y1}"/>',
        f'<text x="{(x0 + x1) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(axes[0])}</text>',
        f'<text x="14" y="{MARGIN - 20}">{escape(axes[1])}</text>',
    ]
    for value in _ticks(most_x):
        x, _ = place(value, 0)
        lines.append(f'<text x="{x}" y="{y0 + 16}" text-anchor="middle">{value:,.6g}</text>')
    for value in _ticks(most_y):
        _, y = place(0, value)
        lines.append(f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{value:,.6g}</text>')
    return "".join(lines)


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to `most`, three to six of them above 0."""
    ten = 10 ** math.floor(math.log10(most))
    step = next(step for step in (ten / 5, ten / 2, ten, 2 * ten) if most / step < 7)
    return [step * count for count in range(int(most / step) + 1)]


def _mark(number: int, x: float, y: float) -> str:
    colour = COLOURS[number % len(COLOURS)]
    match MARKS[number % len(MARKS)]:
        case "circle":
            return f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>'
        case "square":
            return f'<rect x="{x - 5}" y="{y - 5}" width="10" height="10" fill="{colour}"/>'
        case "diamond":
            return f'<path d="M{x} {y - 7}l7 7l-7 7l-7-7z" fill="{colour}"/>'
        case _:
            return f'<path d="M{x} {y - 7}l7 12h-14z" fill="{colour}"/>'


def _legend(groups: Sequence[str]) -> str:
    return "".join(
        f'{_mark(n, WIDTH - 170, 20 + 18 * n)}<text x="{WIDTH - 158}" y="{24 + 18 * n}">{escape(group)}</text>'
        for n, group in enumerate(groups)
    )
