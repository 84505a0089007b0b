"""A plan as one HTML file that needs nothing else: inputs, answer, charts, assumptions, sources and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from capacity.base.html import list_html, table_html
from capacity.report.figures.of_answer import charts_of
from capacity.report.plan import (
    CONDITIONAL,
    arrivals_text,
    conditional_texts,
    cost_text,
    level_text,
    quality_sources,
    quality_text,
    turned_down,
    window_text,
)
from capacity.report.sheet import Sheet, question_of, sources_of
from capacity.report.subject import subject_of

if TYPE_CHECKING:
    from capacity.planning.records import Plan, Ranked


def plan_html(plan: Plan, files: Sequence[tuple[str, str]] = (), command: str | None = None) -> str:
    """The report; `files` are (title, text) to show as they are: launch command, manifest, benchmark."""
    best = plan.best
    verdict = (
        f"<p><strong>{escape(best.candidate.label)}</strong>{_price(best)}.</p>"
        if best
        else "<p><strong>Nothing in the space meets the SLO.</strong></p>" + _misses(plan)
    )
    below = f"<p>{escape(CONDITIONAL)}:</p>{list_html(conditional_texts(plan))}" if plan.conditional else ""
    asked = [("To ask again", command)] if command else []
    return Sheet(
        question=question_of("plan"),
        subject=subject_of(plan),
        answer=verdict + _ranked(plan) + below,
        charts=charts_of(plan),
        more=(
            ("The question", _facts(plan)),
            ("Turned down", table_html(("engines", "why", "for one"), turned_down(plan))),
        ),
        assumptions=_assumptions(plan),
        sources=sources_of(plan),
        asked=[*files, *asked],
    ).html()


def _price(best: Ranked) -> str:
    if best.cost is None:
        return f", {best.num_gpus} GPUs"
    return f", ${best.cost.usd_per_hour:,.2f} an hour, ${best.cost.usd_per_month:,.0f} a month of 730 hours"


def _facts(plan: Plan) -> str:
    rows = [
        ("traffic", f"{plan.workload}: {plan.requests:,} requests, {arrivals_text(plan)}"),
        ("mean lengths", f"{plan.input_tokens:,.0f} tokens in, {plan.output_tokens:,.0f} out"),
        ("service levels", ", ".join(plan.slos)),
        ("SLO window", window_text(plan)),
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
