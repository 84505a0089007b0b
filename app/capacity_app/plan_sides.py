"""A plan as a side of A | B: what it rents, at which price, and how far within its service levels."""

from __future__ import annotations

from capacity.answers.records import Quantity
from capacity.planning.records import Plan, Ranked
from capacity.report.display import text_and_interval
from capacity.report.plan import level_name, level_text
from capacity_app import parts

PAGE = "plan"


def figures_of_merit(plan: Plan) -> list[parts.Kpi]:
    """The winner, its price and its distance from the limits; what is in the way where there is no winner."""
    best = plan.best
    if best is None:
        ways = "; ".join(f"{miss.slo}: {miss.best} at best" for miss in plan.misses)
        return [parts.Kpi("To rent", "nothing", ways or "meets the service levels")]
    return [
        parts.Kpi("To rent", best.candidate.label, f"{best.confidence:.0%} sure"),
        parts.exact("GPUs", f"{best.num_gpus:,}", "", best.num_gpus),
        *_price(best),
        _headroom(best),
        *(_level(place, best, plan.confidence) for place in range(len(best.trial.levels))),
        parts.exact(
            "per GPU", f"{best.tokens_per_s_per_gpu:,.0f}", "output tokens/s", best.tokens_per_s_per_gpu
        ),
    ]


def _price(best: Ranked) -> list[parts.Kpi]:
    cost = best.cost
    if cost is None:
        return []
    at = f"at {cost.requests_per_s:,.2f} requests/s"
    output = cost.usd_per_million_output_tokens
    return [
        parts.exact("Per hour", f"${cost.usd_per_hour:,.2f}", cost.tier, cost.usd_per_hour),
        parts.exact("$ a month", f"${cost.usd_per_month:,.0f}", "busy or idle", cost.usd_per_month),
        parts.exact("$ per 1M output", f"${output:,.3f}", at, output),
    ]


def _headroom(best: Ranked) -> parts.Kpi:
    """How much of the tightest limit is used, and what is left of it."""
    level = max(best.trial.levels, key=lambda each: each.ratio)
    used = Quantity(value=level.ratio)
    if level.value_s and level.low_s is not None and level.high_s is not None:
        used = Quantity(value=level.ratio, low=level.low_s / level.limit_s, high=level.high_s / level.limit_s)
    value, within = text_and_interval(used, 100, 0, " %")
    left = f"headroom {100 * (1 - level.ratio):,.0f} %, {level_name(level)}"
    return parts.Kpi("Of the limit", value, "; ".join(filter(None, (within, left))), used)


def _level(place: int, best: Ranked, confidence: float) -> parts.Kpi:
    """A service level: its expected value, its value at the confidence that was asked for, and its limit."""
    level = best.trial.levels[place]
    expected = level if best.predicted is None else best.predicted.levels[place]
    value, _, within = level_text(expected).partition(" (")
    sure = (
        ""
        if best.predicted is None
        else f"at {confidence:.0%} confidence {level_text(level).partition(' (')[0]}"
    )
    at = "expected" if best.predicted is not None else f"at {confidence:.0%} confidence"
    limit = f"limit {1e3 * level.limit_s:,.4g} ms"
    number = None
    if expected.value_s is not None:
        number = Quantity(value=expected.value_s, low=expected.low_s, high=expected.high_s)
    return parts.Kpi(
        f"{level_name(level)}, {at}",
        value,
        "; ".join(filter(None, (within.rstrip(")"), sure, limit))),
        number,
    )
