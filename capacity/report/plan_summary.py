"""The summary of `plan` on one screen: what to rent, how to launch it, savings, alternatives, and rejections.

`capacity.report.plan.plan_blocks` has all other results (`--detail`).
"""

from collections.abc import Iterator
from operator import attrgetter

from capacity.base.money import money_text
from capacity.planning.records import Plan, Ranked
from capacity.planning.search.plan_notes import UPPER_BOUND
from capacity.report.display import phrase
from capacity.report.plan import (
    CONDITIONAL_HEADING,
    DRAWN_JOULES,
    conditional_texts,
    confidence_text,
    describe_saving,
    launch_lines,
    level_lines,
    level_name,
    level_text,
    level_value,
    missed_levels,
    plan_blocks,
    quality_text,
    question_text,
    rejection_rows,
    search_text,
    share_of_limit,
    unproved_note,
)
from capacity.report.views.drawn_energy import drawn_facts
from capacity.report.views.units import COUNT, PERCENT_0, TEXT, USD_2, WORDS, Unit, dollars
from capacity.report.views.view import Block, Column, Fact, Table, View, list_with_heading


def gpus_text(answer: Ranked) -> str:
    """Return the number of GPUs in use, and of billed GPUs if more are billed."""
    whole = f" of {answer.billed_gpus}" if answer.billed_gpus > answer.num_gpus else ""
    return f"{answer.num_gpus}{whole}"


ALTERNATIVES = 5
REASONS = 4  # kinds of rejection shown
REASON_LENGTH = 88
ALTERNATIVE_COLUMNS = (
    Column("deployment", "label"),
    Column("GPUs", gpus_text, TEXT),
    Column("$/h", "cost.usd_per_hour", USD_2),
    Column("% of limit", "trial.ratio", PERCENT_0),
    Column("quality loss", quality_text, TEXT),
)
DRAWN_OBJECTIVES = ("energy", "carbon")
ENERGY_COLUMNS = (*ALTERNATIVE_COLUMNS[:3], DRAWN_JOULES, *ALTERNATIVE_COLUMNS[3:])
LIMIT_PERCENT, LEVEL = Unit(0, 100, " %"), Unit(0, 1e3, " ms")


def plan_view(plan: Plan) -> View:
    """Return the view of `plan`."""
    lengths = f", {plan.input_tokens:,.0f} tokens in and {plan.output_tokens:,.0f} out on average"
    brief = "--detail shows all service levels, trade-offs, reasons and sources"
    main = [Fact("best", "no deployment meets the SLO", first="best")]
    if plan.best is not None:
        main = [
            Fact(column.heading, column.value_of(plan.best), column.unit, first=column.heading)
            for column in (ALTERNATIVE_COLUMNS[0], *ALTERNATIVE_COLUMNS[2:4])
        ]
    title, blocks = question_text(plan, lengths), plan_blocks(plan)
    return View(title, blocks, screen=_summary_blocks(plan), brief=brief, main=main)


def _summary_blocks(plan: Plan) -> Iterator[Block]:
    yield from unproved_note(plan)
    if plan.best is None:
        yield from missed_levels(plan)
    else:
        yield from _best_lines(plan, plan.best)
        yield from launch_lines(plan.best)
        others = plan.ranked[1 : 1 + ALTERNATIVES]
        columns = ENERGY_COLUMNS if plan.objective in DRAWN_OBJECTIVES else ALTERNATIVE_COLUMNS
        yield Table("Alternatives: best deployments with other GPUs and formats", others, columns)
    yield from list_with_heading(f"\n{CONDITIONAL_HEADING}:", conditional_texts(plan))
    for count, why, example in rejection_rows(plan)[:REASONS]:
        text = f"{count:,} rejected: {why}"
        full = f"{text} (example: {example})"
        yield full if len(full) <= REASON_LENGTH else text
    yield search_text(plan)
    gpu = f"{plan.best.pool.gpu}:" if plan.best else "-"
    yield from [f"price of {text}" for text in plan.prices if text.startswith(gpu)][:1]


def _best_lines(plan: Plan, best: Ranked) -> Iterator[str]:
    cost = f"{gpus_text(best)} GPUs"
    if bill := best.cost:
        output = f"{money_text(bill.usd_per_million_output_tokens, ',.3f')} per 1M output tokens"
        cost = (
            f"{money_text(bill.usd_per_hour)}/h, {money_text(bill.usd_per_month, ',.0f')} a month, {output}"
        )
    verb = "Use" if is_owned(best) else "Rent"
    yield f"\n[bold]{verb} {best.label}[/bold]: {cost}"
    yield phrase("  worst window: {.text}", best.trial.window)
    yield from level_lines(best.trial, best.predicted, plan.confidence)
    drawn = drawn_facts(best.drawn)
    for fact in drawn if plan.objective in DRAWN_OBJECTIVES else drawn[:1]:
        value, note = fact.texts()
        yield f"  {fact.label.strip()}: {value} ({note})"
    yield f"  meets the SLO up to {confidence_text(best)} confidence; quality loss: {quality_text(best)}"
    yield from (f"  {text}" for text in _saving_texts(plan, best))
    if any(note.startswith(UPPER_BOUND) for note in plan.warnings):
        yield "  sized for the highest request rate of these users; the notes state how to plan for fewer GPUs"


def is_owned(best: Ranked) -> bool:
    """Return whether the price of a deployment is the cost of GPUs that the user owns."""
    return best.cost is not None and best.cost.tier == "owned"


def _saving_texts(plan: Plan, best: Ranked) -> Iterator[str]:
    """Yield a line on the second deployment if it costs the same, and one on the saving over the next costlier one."""
    if plan.objective == "latency" or not best.objective or len(plan.ranked) < 2:
        return
    following = next((other for other in plan.ranked if other.objective > best.objective), None)
    second, place = plan.ranked[1], "the next"
    costs, larger = ("costs", "more expensive") if plan.objective == "cost" else ("needs", "larger")
    if second.objective == best.objective:
        yield f"{costs} the same: {second.label}"
        place = f"the next {larger}"
    if following is not None:
        more, share = describe_saving(plan.objective, best.objective, following.objective)
        yield f"saves {more} ({share:.0%}) compared with {place}: {following.label}"


def plan_facts(plan: Plan) -> Iterator[Fact]:
    """Return the best deployment, its price and SLO headroom; if none meets the SLO, the missed limits."""
    best = plan.best
    if best is None:
        missed_levels = "; ".join(f"{miss.slo}: {miss.best} at best" for miss in plan.misses)
        yield Fact("To rent", "none", WORDS, missed_levels or "no deployment meets the SLO")
        return
    yield Fact(
        "To use" if is_owned(best) else "To rent", best.label, WORDS, f"{best.confidence:.0%} confidence"
    )
    yield Fact("GPUs", best.num_gpus)
    if cost := best.cost:
        at = f"at {cost.requests_per_s:,.2f} requests/s"
        yield Fact("Per hour", cost.usd_per_hour, dollars(2), cost.tier)
        yield Fact("$ a month", cost.usd_per_month, dollars(0), "busy or idle")
        yield Fact("$ per 1M output", cost.usd_per_million_output_tokens, dollars(3), at)
    tightest = max(best.trial.levels, key=attrgetter("ratio"))
    left = f"headroom {100 * (1 - tightest.ratio):,.0f} %, {level_name(tightest)}"
    yield Fact("Of the limit", share_of_limit(tightest), LIMIT_PERCENT, left)
    sure = f"at {plan.confidence:.0%} confidence"
    for place, level in enumerate(best.trial.levels):
        limit = f"limit {1e3 * level.limit_s:,.4g} ms"
        if best.predicted is None:
            yield Fact(f"{level_name(level)}, {sure}", level_value(level), LEVEL, limit)
        else:
            expected = level_value(best.predicted.levels[place])
            held = level_text(level).partition(" (")[0]
            yield Fact(f"{level_name(level)}, expected", expected, LEVEL, f"{sure} {held}; {limit}")
    yield Fact("per GPU", best.tokens_per_s_per_gpu, COUNT, "output tokens/s")
