"""What `cost` answers, as tables: the bill, the cost of a token, and the API, spot and batch jobs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capacity.report.display import shown, verdict_text
from capacity.report.layout import Part, crossed, facts, listed, notes
from capacity.report.replicas import replicas_text

if TYPE_CHECKING:
    from capacity.planning.bills.batch_api import IdleJob
    from capacity.planning.bills.billing import BatchJob, Bill, SpotCost
    from capacity.simulator.levels import SloLevel

THOUSAND = 1e3
LOAD_ROWS: tuple[tuple[str, str, str], ...] = (
    ("requests/s", "requests_per_s", ",.3f"),
    ("requests a day", "requests_per_day", ",.0f"),
    ("output tokens/s", "output_tokens_per_s", ",.0f"),
    ("$ per 1k requests", "usd_per_thousand_requests", ",.4f"),
    ("$ per 1M input tokens", "usd_per_million_input_tokens", ",.4f"),
    ("$ per 1M output tokens", "usd_per_million_output_tokens", ",.4f"),
    ("$ per 1M tokens, in and out", "usd_per_million_tokens", ",.4f"),
    ("GPU time on input", "prefill_share", ".1%"),
    ("users", "users", ",.0f"),
    ("$ per user-month", "usd_per_user_month", ",.4f"),
    ("provisioned J per output token", "joules_per_output_token", ",.3f"),
    ("provisioned kWh per 1M output tokens", "kwh_per_million_output_tokens", ",.4f"),
    ("output tokens/s per provisioned MW", "output_tokens_per_s_per_megawatt", ",.0f"),
    ("g CO2 per 1M tokens, in and out", "co2_g_per_million_tokens", ",.1f"),
)  # heading, field of a `LoadCost`, format


def bill_tables(bill: Bill) -> list[Part]:
    """The bill, what it makes of a token at the served and at the full load, and whatever else was asked for."""
    return [
        "\n".join((f"[bold]{bill.deployment}[/bold]", *_verdict(bill))),
        _bill_facts(bill),
        _load_table(bill),
        *_api_table(bill),
        *_spot_facts(bill.spot),
        *_job_facts(bill.job),
        *_batch_api_table(bill),
        *_idle_facts(bill.idle),
        f"rule: {bill.rule}",
        *notes(bill.warnings),
    ]


def _verdict(bill: Bill) -> Iterator[str]:
    """Whether the load is served, within which levels, and how many replicas would serve it."""
    if bill.verdict is None:
        return
    window = "" if bill.slo_window is None else f" in the worst window, {bill.slo_window.text}"
    missed = "".join(f"; {miss_text(level)}{window}" for level in bill.levels if not level.met)
    yield verdict_text(bill.verdict, f"{bill.verdict_reason}{missed}")
    if bill.needed is not None:
        yield f"needed: {replicas_text(bill.needed)}"


def miss_text(level: SloLevel) -> str:
    """Return an unmet service level with the value that the run shows."""
    seen = f"{level.attained_fraction:.1%} of requests within it"
    return f"{level.slo} is unmet ({seen if level.value_ms is None else f'{level.value_ms:,.0f} ms'})"


def _bill_facts(bill: Bill) -> Part:
    whole = f"{bill.billed_gpus} in whole instances, {bill.num_gpus} used"
    rows = [
        ("price", f"${bill.usd_per_gpu_hour:,.2f} per GPU-hour", f"{bill.tier}: {bill.source}"),
        ("GPUs", f"{bill.billed_gpus:,}", "" if bill.billed_gpus == bill.num_gpus else whole),
        ("hour", f"${bill.usd_per_hour:,.2f}", ""),
        ("day", f"${bill.usd_per_day:,.2f}", "24 h, busy or idle"),
        ("month", f"${bill.usd_per_month:,.2f}", "730 h"),
        (
            "provisioned power",
            f"{bill.watts / 1e3:,.2f} kW",
            "GPU, host and cooling at full use; drawn power is lower",
        ),
    ]
    if bill.co2_g_per_kwh is not None:
        rows.append(("carbon", f"{bill.co2_g_per_kwh:,.4g} g CO2 per kWh", "as given"))
    if bill.utilization is not None:
        rows.append(("utilization", f"{bill.utilization:.1%}", "served over full load"))
    return facts("Bill", rows)


def _load_table(bill: Bill) -> Part:
    loads = [bill.full] if bill.served in (None, bill.full) else [bill.served, bill.full]
    rows = ((title, [getattr(load, name) for load in loads], form) for title, name, form in LOAD_ROWS)
    return crossed(
        "What it makes of a token",
        ("as served", "at full load")[-len(loads) :],
        (
            (title, [shown(value, form) for value in values])
            for title, values, form in rows
            if any(value is not None for value in values)
        ),
    )


def _api_table(bill: Bill) -> list[Part]:
    against = [api for api in (bill.break_even, *bill.apis) if api is not None]
    if not against:
        return []
    offered = bill.offered_requests_per_s if bill.verdict == "overloaded" else None
    load = "at full load" if bill.served is None else "at this load"
    whose, own = "these GPUs are", against[0].own_usd_per_month
    if offered is not None:
        load = f"at the offered {offered:,.4g} requests/s"
        whose = (
            "these GPUs do not serve the load, at" if own == bill.usd_per_month else "the replicas needed are"
        )
    table = listed(
        f"Against an API; {whose} ${own:,.2f} a month, busy or idle",
        against,
        ("API", "left", lambda api: api.api),
        ("$ a request", "right", lambda api: f"{api.api_usd_per_request:.6f}"),
        (f"$ a month {load}", "right", lambda api: f"{api.api_usd_per_month:,.2f}"),
        (
            "cheaper from, requests/s",
            "right",
            lambda api: (
                f"{api.requests_per_s:,.3f}" + ("" if api.possible else " (more than these can serve)")
            ),
        ),
        ("requests a month", "right", lambda api: f"{api.requests_per_month:,.0f}"),
    )
    return [table]


def _spot_facts(spot: SpotCost | None) -> list[Part]:
    if spot is None:
        return []
    same = f"{spot.replicas_for_same_capacity} replicas"
    rows = [
        ("useful time", f"{spot.useful_fraction:.1%}", "the rest is restarts"),
        ("useful hour", f"${spot.usd_per_useful_hour:,.2f}", ""),
        ("same capacity", same, f"${spot.usd_per_hour_for_same_capacity:,.2f} an hour"),
    ]
    return [facts("On capacity that can be taken away", rows)]


def _job_facts(job: BatchJob | None) -> list[Part]:
    if job is None:
        return []
    rows = [
        ("documents", f"{job.documents:,}", f"in {job.deadline_hours:g} h"),
        ("replicas", f"{job.replicas:,}", f"{job.gpus} GPUs, {job.billed_gpus} billed"),
        ("time", f"{job.hours:,.2f} h", f"{job.gpu_hours:,.2f} GPU-hours"),
        ("bill", f"${job.usd:,.2f}", f"${job.usd_per_document:.6f} a document"),
    ]
    return [facts("Batch job at full load", rows)]


def _batch_api_table(bill: Bill) -> list[Part]:
    if not bill.batch_apis or bill.job is None:
        return []
    own = bill.batch_apis[0].own_usd_per_document
    rented = f"${own.value * THOUSAND:.4g}"
    if own.low is not None and own.high is not None:
        rented += f" ({own.low * THOUSAND:.3g} to {own.high * THOUSAND:.3g})"
    table = listed(
        f"By a batch API; GPUs rented for the job are {rented} per 1k documents at full load",
        bill.batch_apis,
        ("API", "left", lambda cost: cost.api),
        ("discount", "left", lambda cost: cost.discount),
        ("of the price", "right", lambda cost: f"{cost.multiple:.0%}"),
        ("within", "right", lambda cost: f"{cost.window_hours:g} h" + ("" if cost.in_time else ", too late")),
        ("$", "right", lambda cost: f"{cost.usd:,.2f}"),
        ("$ per 1k", "right", lambda cost: f"{cost.usd_per_document * THOUSAND:,.4g}"),
        ("rented pays from", "right", lambda cost: _from(cost.break_even_utilization)),
    )
    sources = {cost.discount: cost.discount_source for cost in bill.batch_apis}
    return [table, *(f"{name}: {source}" for name, source in sources.items())]


def _from(utilization: float | None) -> str:
    return "never" if utilization is None else f"{utilization:.0%} busy"


def _idle_facts(idle: IdleJob | None) -> list[Part]:
    if idle is None:
        return []
    rows = [
        ("idle hours", f"{idle.hours_per_day:g} a day", f"{idle.hours:,.2f} h of work"),
        ("done after", f"{idle.days:,.2f} days", "in time" if idle.in_time else "too late"),
        ("energy", f"{idle.kwh:,.1f} kWh", "all that it adds"),
        ("hours of the bill", f"${idle.usd_paid_anyway:,.2f}", "paid for in any case"),
    ]
    return [facts("In the idle hours of these GPUs", rows)]
