"""The view of `cascade`: every tier of a cascade, its savings over the large model alone, and its break-even rates."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from capacity.base.quantity import Quantity
from capacity.planning.cascades.cascade_answer import CascadeAnswer, CascadeRun, CascadeTotals, RateBill
from capacity.report.display import STANDARD, Units, join_phrases, phrase, text_and_interval
from capacity.report.views import units
from capacity.report.views.units import Unit
from capacity.report.views.view import Bars, Block, Column, Curves, Fact, Stack, Table, View

MONTH_S = 730 * 3600
PER_1K = Unit(4, 1e3, follows="money")
TIER_COLUMN = Column("tier", "{0.tier}: {0.model}".format)
ANSWERED_COLUMNS = (
    TIER_COLUMN,
    Column("on", "place"),
    Column("share of requests", "share", units.PERCENT),
    Column("engines", "engines", units.COUNT),
    Column("GPUs", "billed_gpus", units.COUNT),
    Column("busy", "utilization", units.PERCENT_0),
)
BILLED_COLUMNS = (
    TIER_COLUMN,
    Column("$ per 1k requests of the tier", "usd_per_request", PER_1K),
    Column("$ a month", "usd_per_month", units.USD_0),
    Column("mean TTFT, {time}", "mean_ttft_s", units.MS_1),
    Column("mean E2E, {time}", "mean_e2e_s", units.MS_1),
)


def _rate_texts(rate: Quantity, _: Units) -> tuple[str, str]:
    return ("any", "") if rate.value >= 1 else text_and_interval(rate, 100, 1, "%")


RATE = Unit(scale=100, after="%", none="never", show=_rate_texts)
TIMES = (
    ("mean TTFT", "mean_ttft_s", units.LATENCY),
    ("p95 TTFT", "p95_ttft_s", units.LATENCY),
    ("mean E2E", "mean_e2e_s", units.LATENCY),
    ("p95 E2E", "p95_e2e_s", units.LATENCY),
)  # latencies of one side
COMPARED_FIGURES = (
    ("billed GPUs", "billed_gpus", units.COUNT),
    ("$ a month, whole engines", "usd_per_month", units.USD_0),
    ("$ per 1k requests, whole engines", "usd_per_request", PER_1K),
    ("$ per 1k requests, at scale", "usd_per_request_at_scale", PER_1K),
    *TIMES,
)
FACTS = (
    ("$ a month", "usd_per_month", units.usd(0)),
    ("$ per 1k requests", "usd_per_request", units.USD_PER_1K),
    ("Mean TTFT", "mean_ttft_s", units.LATENCY),
    ("Mean E2E", "mean_e2e_s", units.LATENCY),
    ("p95 E2E", "p95_e2e_s", units.LATENCY),
    ("GPUs", "billed_gpus", units.COUNT),
)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The escalation rate or cache hit rate at which a cascade costs as much as the large model alone.

    `rate`: name of the rate. `many`: its break-even value with many engines; `here`: the same with a whole number of
    engines at this load. `pays`: the cascade is cheaper "up to" or "from" this value. `yours`: the current rate.
    """

    rate: str
    pays: str
    yours: float | None
    many: Quantity | None
    here: float | None


def cascade_facts(answer: CascadeAnswer, shown_in: Units = STANDARD) -> list[Fact]:
    """Return the cost and latency of the cascade compared with the large model alone, and the break-even rates."""
    saved, ours, alone = answer.saved_fraction, answer.cascade, answer.alone
    how = "more expensive" if saved < 0 else "cheaper"
    facts = [Fact("Saved", saved, units.PERCENT_0, f"{how} than {answer.model} alone")]
    for label, unit, value, theirs in _known_on_both_sides(FACTS, ours, alone):
        note = f"alone {unit.texts(theirs, shown_in)[0]}, {_change_text(value, theirs)}"
        facts.append(Fact(label, value, unit, note))
    for rate in _break_even_rows(answer):
        note = f"{rate.rate}; with whole engines {RATE.texts(rate.here)[0]}; your rate is {rate.yours:.1%}"
        facts.append(Fact(f"Pays {rate.pays}", rate.many, RATE, note))
    return facts


def cascade_view(answer: CascadeAnswer) -> View:
    """Return the view of `cascade`."""
    cache = "a semantic cache" * (answer.cache_hit_rate is not None)
    first = join_phrases(cache, answer.small, separator=" and ")
    title = (
        f"[bold]{first} in front of {answer.model}[/bold]: {answer.requests_per_s:,.4g} requests/s of "
        f"{answer.input_len:,} tokens in, {answer.output_len:,} out"
    )
    return View(title, _blocks(answer))


def _blocks(answer: CascadeAnswer) -> Iterator[Block]:
    yield _bill_chart(answer)
    yield _latency_chart(answer)
    yield escalation_chart(answer)
    yield Table("Where requests are answered", answer.tiers, ANSWERED_COLUMNS)
    yield Table("Cost and latency of each tier", answer.tiers, BILLED_COLUMNS)
    title = "Cascade compared with the large model alone (90 % intervals)"
    yield _comparison_table(title, answer.cascade, answer.alone, ("cascade", "alone"))
    if (run := answer.together) is not None:
        title = "Simulated as one deployment, compared with the sum of the tiers' times"
        yield _comparison_table(title, run, answer.cascade, ("simulated", "sum of tiers"))
        yield (
            f"{run.completed:,} of {run.requests:,} requests answered, {run.escalated:,} by the large model; "
            f"{run.unseen_tokens:,} tokens of the small model discarded{phrase('; the run is {}', run.verdict)}"
        )
    rates = [
        Column("", "{0.rate}, pays {0.pays}".format),
        Column("at scale", "many", RATE),
        Column("whole engines", "here", RATE),
        Column("yours", "yours", units.PERCENT),
    ]
    yield Table("Break-even", _break_even_rows(answer), rates)
    bills = [
        Column("escalated", "escalation_rate", units.PERCENT_0),
        Column("$ per 1k, at scale", "usd_per_request_at_scale", PER_1K),
        Column(
            "% of alone", partial(_share_of_alone, answer.alone, "usd_per_request_at_scale"), units.PERCENT_0
        ),
        Column("$ a month, whole engines", "usd_per_month", units.USD_0),
        Column("% of alone", partial(_share_of_alone, answer.alone, "usd_per_month"), units.PERCENT_0),
    ]
    yield Table("By escalation rate", answer.rates, bills)


def _share_of_alone(alone: CascadeTotals, field: str, row: RateBill) -> float | None:
    whole = getattr(alone, field).value
    return getattr(row, field).value / whole if whole else None


def _comparison_table(
    title: str, ours: CascadeTotals | CascadeRun, theirs: CascadeTotals, names: tuple[str, str]
) -> Table:
    """Return a table of the metrics of the cascade (`ours`) and of the large model alone, with the relative change."""
    rows = [
        (figure, unit.text_with_interval(value), unit.text_with_interval(other), _change_text(value, other))
        for figure, unit, value, other in _known_on_both_sides(COMPARED_FIGURES, ours, theirs)
    ]
    heads = enumerate((*names, "change"), start=1)
    return Table(title, rows, [Column("", "0"), *(Column(name, str(i), units.TEXT) for i, name in heads)])


def _known_on_both_sides(
    figures: Iterable[tuple[str, str, Unit]], ours: CascadeTotals | CascadeRun, theirs: CascadeTotals
) -> Iterator[tuple[str, Unit, Any, Any]]:
    """Yield label, unit and both values of each metric that both sides have; the latency of an API is unknown."""
    for label, field, unit in figures:
        value, other = (getattr(side, field, None) for side in (ours, theirs))
        if value is not None and other is not None:
            yield label, unit, value, other


def _change_text(ours: Quantity | int, theirs: Quantity | int) -> str:
    """Return the change from `theirs` to `ours` as text: `-54%`, `x 13` from a factor of 2, empty if `theirs` is 0."""
    value, base = (side if isinstance(side, int) else side.value for side in (ours, theirs))
    ratio = value / base if base else 1.0
    return f"x {ratio:,.3g}" if ratio >= 2 else f"{ratio - 1:+.0%}" if base else ""


def _break_even_rows(answer: CascadeAnswer) -> list[BreakEven]:
    even = answer.break_even
    escalated = answer.escalation_rate, even.escalation_rate_at_scale, even.escalation_rate_here
    hits = answer.cache_hit_rate, even.cache_hit_rate_at_scale, even.cache_hit_rate_here
    rates = BreakEven("escalation rate", "up to", *escalated), BreakEven("cache hit rate", "from", *hits)
    return [rate for rate in rates if rate.yours is not None]


def _bill_chart(answer: CascadeAnswer) -> Stack:
    """Return the chart of monthly cost by tier; the total has an interval because engine speeds are predicted."""
    ours, alone = answer.cascade.usd_per_month, answer.alone.usd_per_month
    ours_text, alone_text = (units.usd(0).texts(bill)[0] for bill in (ours, alone))
    return Stack(
        name="cascade_bill",
        title="Monthly cost by tier",
        alt=f"{ours_text} a month with the cascade, {alone_text} with {answer.model} alone.",
        data={f"{tier.tier}: {tier.model}": {"cascade": tier.usd_per_month} for tier in answer.tiers}
        | {f"alone: {answer.model}": {"large model alone": alone}},
        unit=units.USD_0,
        labels="side",
        axis="$ a month, whole engines",
        wholes={"cascade": ours, "large model alone": alone},
    )


def _latency_chart(answer: CascadeAnswer) -> Bars:
    """Return the chart of known latencies: the cascade, its tiers simulated together, and the large model alone."""
    sides = {
        "cascade": answer.cascade,
        "simulated together": answer.together,
        "large model alone": answer.alone,
    }
    data = {
        side: {name: time for name, field, _ in TIMES if (time := getattr(whole, field)) is not None}
        for side, whole in sides.items()
        if whole is not None
    }
    words = (
        f"{side} " + ", ".join(f"{name} {units.LATENCY.texts(time)[0]}" for name, time in times.items())
        for side, times in data.items()
        if times
    )
    return Bars(
        name="cascade_latency",
        title="Latency compared with the large model alone",
        alt="; ".join(words) or "No latency is known.",
        data=data,
        unit=units.MS_1,
        labels="latency",
        axis="latency, {time}",
    )


def escalation_chart(answer: CascadeAnswer) -> Curves:
    """Return the chart of $ per 1,000 requests by escalation rate: at target utilisation, and with whole engines."""
    alone, rates = answer.alone, answer.rates
    escalated = [row.escalation_rate for row in rates]
    here = 1 / MONTH_S / answer.requests_per_s
    even = answer.break_even.escalation_rate_at_scale
    pays = phrase("up to {.value:.0%} escalated", even) or "at no escalation rate"
    return Curves(
        name="cascade_over_escalation",
        title="$ per 1k requests by escalation rate",
        alt=f"At scale, {answer.small} in front of {answer.model} is cheaper {pays}.",
        data={
            "cascade, at scale": {row.escalation_rate: row.usd_per_request_at_scale for row in rates},
            "cascade, whole engines": {row.escalation_rate: row.usd_per_month.scale(here) for row in rates},
            "alone, at scale": dict.fromkeys(escalated, alone.usd_per_request_at_scale.value),
            "alone, whole engines": dict.fromkeys(escalated, alone.usd_per_request.value),
        },
        unit=PER_1K,
        labels="escalated",
        axis="$ per 1k requests",
        shares=True,
    )
