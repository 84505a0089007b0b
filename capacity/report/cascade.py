"""What a cascade saves and costs, as tables: each place that requests reach, the whole, and where it breaks even."""

from __future__ import annotations

from collections.abc import Iterator

from capacity.answers.records import Quantity
from capacity.planning.cascades.cascade_answer import CascadeAnswer, Tier, Whole
from capacity.report.display import STANDARD, text_and_interval
from capacity.report.layout import Part, facts, grid, listed, notes

THOUSAND = 1e3
WHOLE_ROWS: tuple[tuple[str, str], ...] = (
    ("mean TTFT", "mean_ttft_s"),
    ("p95 TTFT", "p95_ttft_s"),
    ("mean E2E", "mean_e2e_s"),
    ("p95 E2E", "p95_e2e_s"),
)  # heading, field of a `Whole`


def cascade_tables(answer: CascadeAnswer) -> list[Part]:
    """The places, the cascade beside its large model alone, the break-even, and the bill by escalation rate."""
    cache = None if answer.cache_hit_rate is None else "a semantic cache"
    before = " and ".join(part for part in (cache, answer.small) if part is not None)
    headline = (
        f"[bold]{before} before {answer.model}[/bold]: {answer.requests_per_s:,.4g} requests/s of "
        f"{answer.input_len:,} tokens in, {answer.output_len:,} out"
    )
    parts: list[Part] = [headline, _tiers(answer), _beside(answer), *_together(answer), _break_even(answer)]
    if answer.rates:
        parts.append(_rates(answer))
    return [*parts, *notes(answer.warnings)]


def _tiers(answer: CascadeAnswer) -> Part:
    return listed(
        "Where requests are answered",
        answer.tiers,
        ("", "left", lambda tier: f"{tier.tier}: {tier.model}"),
        ("on", "left", lambda tier: tier.place),
        ("of all", "right", lambda tier: f"{tier.share:.1%}"),
        ("engines", "right", lambda tier: "-" if tier.engines is None else f"{tier.engines:,}"),
        ("busy", "right", lambda tier: "-" if tier.utilization is None else f"{tier.utilization:.0%}"),
        ("$ per 1k that reach it", "right", _per_thousand),
        ("$ a month", "right", lambda tier: f"{tier.usd_per_month.value:,.0f}"),
        ("mean E2E", "right", lambda tier: _time(tier.mean_e2e_s)),
    )


def _per_thousand(tier: Tier) -> str:
    return "-" if tier.usd_per_request is None else _usd(tier.usd_per_request.value)


def _usd(usd_per_request: float) -> str:
    return f"{usd_per_request * THOUSAND:,.4g}"


def _time(quantity: Quantity | None) -> str:
    return "-" if quantity is None else STANDARD.time_text(quantity.value, quantity)


def _beside(answer: CascadeAnswer) -> Part:
    table = grid(
        "The cascade beside the large model alone, with 90 % intervals",
        ("", "left"),
        ("cascade", "right"),
        ("", "left"),
        ("alone", "right"),
        ("", "left"),
        ("", "right"),
    )
    both = (answer.cascade, answer.alone)
    table.add_row("GPUs paid for", f"{both[0].billed_gpus:,}", "", f"{both[1].billed_gpus:,}", "", "")
    for name, field, scale, digits in (
        ("$ a month, whole engines", "usd_per_month", 1.0, 0),
        ("$ per 1k requests, the same", "usd_per_request", THOUSAND, 4),
        ("$ per 1k, engines many", "usd_per_request_at_scale", THOUSAND, 4),
    ):
        quantities = [getattr(whole, field) for whole in both]
        texts = [text for each in quantities for text in _money(each.scaled(scale), digits)]
        table.add_row(name, *texts, change_text(*quantities))
    for name, field in WHOLE_ROWS:
        quantities = [getattr(whole, field) for whole in both]
        if None not in quantities:
            table.add_row(name, *_times(both, field), change_text(*quantities))
    return table


def _together(answer: CascadeAnswer) -> Iterator[Part]:
    """What one run of the whole has for the times that were added up."""
    run = answer.together
    if run is None:
        return
    table = grid(
        "Simulated as one deployment, beside the tiers' times added up",
        ("", "left"),
        ("together", "right"),
        ("", "left"),
        ("added up", "right"),
        ("", "right"),
    )
    for name, field in WHOLE_ROWS:
        own: Quantity = getattr(run, field)
        added: Quantity | None = getattr(answer.cascade, field)
        beside = (
            ("-", "") if added is None else (STANDARD.time_text(added.value, added), change_text(own, added))
        )
        table.add_row(name, STANDARD.time_text(own.value, own), STANDARD.time_interval(own), *beside)
    yield table
    yield (
        f"{run.completed:,} of {run.requests:,} requests answered, {run.escalated:,} by the large model; "
        f"{run.unseen_tokens:,} tokens of the small one thrown away"
        + ("" if run.verdict is None else f"; the run is {run.verdict}")
    )


def _money(quantity: Quantity, digits: int) -> tuple[str, str]:
    value = f"{quantity.value:,.{digits}f}" if digits == 0 else f"{quantity.value:,.4g}"
    if quantity.low is None or quantity.high is None or quantity.low == quantity.high:
        return value, ""
    ends = (f"{end:,.{digits}f}" if digits == 0 else f"{end:,.3g}" for end in (quantity.low, quantity.high))
    return value, " to ".join(ends)


def _times(both: tuple[Whole, Whole], field: str) -> Iterator[str]:
    for whole in both:
        quantity: Quantity = getattr(whole, field)
        yield STANDARD.time_text(quantity.value, quantity)
        yield "" if quantity.low == quantity.high else STANDARD.time_interval(quantity)


def change_text(ours: Quantity, theirs: Quantity) -> str:
    """How far ours is from theirs: `-54 %`, or of twice and more `x 13`."""
    if not theirs.value:
        return ""
    ratio = ours.value / theirs.value
    return f"x {ratio:,.3g}" if ratio >= 2 else f"{ratio - 1:+.0%}"


def _break_even(answer: CascadeAnswer) -> Part:
    even, rows = answer.break_even, []
    if answer.escalation_rate is not None:
        rows += [
            ("escalation rate, engines many", share_text(even.escalation_rate_at_scale), "pays up to it"),
            (
                "the same, whole engines here",
                rate_text(even.escalation_rate_here),
                f"yours is {answer.escalation_rate:.1%}",
            ),
        ]
    if answer.cache_hit_rate is not None:
        rows += [
            ("cache hit rate, engines many", share_text(even.cache_hit_rate_at_scale), "pays from it"),
            (
                "the same, whole engines here",
                rate_text(even.cache_hit_rate_here),
                f"yours is {answer.cache_hit_rate:.1%}",
            ),
        ]
    return facts("Break-even", rows)


def share_text(quantity: Quantity | None) -> str:
    """A break-even rate with its interval."""
    if quantity is None or quantity.value >= 1:
        return "at no rate" if quantity is None else "any"
    value, interval = text_and_interval(quantity, 100, 1, " %")
    return f"{value} ({interval})" if interval and quantity.low != quantity.high else f"{value}"


def rate_text(rate: float | None) -> str:
    """A break-even rate of whole engines, which is exact."""
    if rate is None or rate >= 1:
        return "at no rate" if rate is None else "any"
    return f"{rate:.1%}"


def _rates(answer: CascadeAnswer) -> Part:
    alone = answer.alone
    return listed(
        "By escalation rate",
        answer.rates,
        ("escalated", "right", lambda row: f"{row.escalation_rate:.0%}"),
        ("$ per 1k, engines many", "right", lambda row: _usd(row.usd_per_request_at_scale.value)),
        ("of alone", "right", lambda row: _of(row.usd_per_request_at_scale, alone.usd_per_request_at_scale)),
        ("$ a month here", "right", lambda row: f"{row.usd_per_month.value:,.0f}"),
        ("of alone", "right", lambda row: _of(row.usd_per_month, alone.usd_per_month)),
    )


def _of(part: Quantity, whole: Quantity) -> str:
    return f"{part.value / whole.value:.0%}" if whole.value else "-"
