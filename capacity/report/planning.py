"""Plans, costs and curves as text: tables for people, JSON and CSV for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from capacity.base.rows import flattened, to_csv
from capacity.report.tables import _facts, _grid, _text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capacity.planning.advice import Advice, AdviceList
    from capacity.planning.billing import Bill, BreakEven, LoadCost
    from capacity.planning.curve import Curve
    from capacity.planning.diff import Diff
    from capacity.planning.records import Plan, Point, Ranked
    from capacity.planning.tornado import Tornado
    from capacity.planning.trial import Level, Trial

SHOWN_REJECTIONS = 6


def render(answer: Any, format: str) -> str:
    """An answer in `format`: table, json or csv (of its rows)."""
    described = answer.to_dict()
    if format == "json":
        return json.dumps(finite(described), indent=2, allow_nan=False)
    if format == "csv":
        rows = described.get("ranked") or described.get("points") or described.get("rows") or [described]
        return to_csv([flattened(row) for row in rows])
    return _text(TABLES[described["schema"].split("/")[1]](answer))


def finite(value: Any) -> Any:
    """The same with null for infinite numbers, which JSON has no word for."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value


def plan_tables(plan: Plan) -> list[RenderableType]:
    """The answer, how sure it is, what stands in the way, and what was turned down."""
    rate = "all at once" if plan.requests_per_s == float("inf") else f"{plan.requests_per_s:,.2f} requests/s"
    head = (
        f"[bold]{plan.model}[/bold], {plan.workload}: {plan.requests:,} requests, {rate}, "
        f"{plan.input_tokens:,.0f} tokens in and {plan.output_tokens:,.0f} out on average\n"
        f"SLO {' and '.join(plan.slos)}, {plan.confidence:.0%} confidence in the step times; least {plan.objective}"
    )
    parts: list[RenderableType] = [head]
    if not plan.proved:
        rest = "better ones may exist" if plan.ranked else "what they would have done is not known"
        parts.append(f"[yellow]not proved:[/yellow] {plan.proof}; {rest}")
    parts.append(_ranked_table(plan) if plan.ranked else _misses_table(plan))
    if plan.ranked:
        parts += [_levels_table(plan.ranked), _quality_table(plan.ranked)]
        parts += [
            _front_table("Fastest per user against most per GPU, of what was simulated", plan.speed_front)
        ]
        parts += [_front_table("Price against margin, of what was simulated", plan.cost_front)]
    parts.append(_rejected_table(plan))
    counts = plan.counts
    parts.append(
        f"{counts.points:,} deployments ({counts.engines:,} engines): {counts.simulated:,} simulated "
        f"({counts.simulated_fraction:.1%}), {plan.proof}; {plan.elapsed_s:.1f} s"
        + (f", first answer after {plan.first_answer_s:.1f} s" if plan.first_answer_s is not None else "")
    )
    parts += [f"price of {price}" for price in plan.prices]
    parts.append(f"not searched: {'; '.join(plan.not_searched)}")
    return [*parts, *(f"[yellow]note:[/yellow] {warning}" for warning in plan.warnings)]


def _ranked_table(plan: Plan) -> Any:
    table = _grid(
        "Deployments that meet the SLO, best first",
        ("deployment", "left"), ("GPUs", "right"), ("$/h", "right"), ("$/month", "right"), ("$/1M out", "right"),
        ("J/token", "right"), ("busiest level", "right"), ("confidence", "right"), ("quality loss", "right"),
    )  # fmt: skip
    for number, answer in enumerate(plan.ranked, start=1):
        cost = answer.cost
        gpus = f"{answer.num_gpus}" + (
            f" of {answer.billed_gpus}" if answer.billed_gpus > answer.num_gpus else ""
        )
        confidence = f"{answer.confidence:.0%}" + ("" if answer.trial.seen == "all" else " (1 replica)")
        table.add_row(
            f"{number}. {answer.candidate.label}",
            gpus,
            "-" if cost is None else f"{cost.usd_per_hour:,.2f}",
            "-" if cost is None else f"{cost.usd_per_month:,.0f}",
            "-" if cost is None else f"{cost.usd_per_million_output_tokens:,.3f}",
            "-" if answer.joules_per_output_token is None else f"{answer.joules_per_output_token:,.1f}",
            f"{answer.trial.ratio:.0%} of limit",
            confidence,
            quality_text(answer),
        )
    return table


def quality_text(answer: Ranked) -> str:
    """The published loss: typical, and at worst."""
    quality = answer.quality
    if quality.worst_loss_fraction is None or quality.typical_loss_fraction is None:
        return "unknown"
    if not quality.worst_loss_fraction:
        return "none"
    return f"{quality.typical_loss_fraction:.1%}, up to {quality.worst_loss_fraction:.1%}"


def level_text(level: Level | None) -> str:
    """A level's value, with its interval where it has one."""
    if level is None:
        return "-"
    if level.value_s is None:
        return f"{level.good_fraction:.2%}"
    interval = (
        ""
        if level.low_s is None or level.high_s is None
        else f" ({level.low_s * 1e3:,.0f} to {level.high_s * 1e3:,.0f})"
    )
    return f"{level.value_s * 1e3:,.0f} ms{interval}"


def _levels_table(ranked: Sequence[Ranked]) -> Any:
    slos = [level.slo for level in ranked[0].trial.levels]
    columns = [(f"{slo}{when}", "right") for slo in slos for when in (", as predicted", ", at confidence")]
    table = _grid(
        "Service levels (90 % interval of sampling)", ("", "left"), *columns, ("tok/s/user", "right")
    )
    for number, answer in enumerate(ranked, start=1):
        cells = []
        for place in range(len(slos)):
            cells += [level_text(_level(answer.predicted, place)), level_text(_level(answer.trial, place))]
        speed = answer.trial.tokens_per_s_per_user
        table.add_row(f"{number}.", *cells, "-" if speed is None else f"{speed:,.1f}")
    return table


def _level(trial: Trial | None, place: int) -> Level | None:
    return None if trial is None else trial.levels[place]


def _quality_table(ranked: Sequence[Ranked]) -> Any:
    sources = {a.quality.what: a.quality.source for a in ranked if a.quality.worst_loss_fraction != 0}
    if not sources:
        return ""
    return _facts(
        "Published quality of the formats", [(what, "", source) for what, source in sources.items()]
    )


def _misses_table(plan: Plan) -> Any:
    table = _grid(
        "[red]Nothing in the space meets the SLO[/red]",
        ("part", "left"), ("limit", "right"), ("best found", "left"), ("times the limit", "right"), ("on", "left"),
    )  # fmt: skip
    for miss in plan.misses:
        factor = "-" if miss.factor == float("inf") else f"{miss.factor:,.2f}"
        table.add_row(miss.slo, miss.limit, miss.best, factor, miss.candidate)
    return table


def _front_table(title: str, points: Sequence[Point]) -> Any:
    table = _grid(
        title, ("", "left"), ("GPUs", "right"), ("$/h", "right"), ("tok/s/user", "right"), ("tok/s/GPU", "right"),
        ("worst level", "right"),
    )  # fmt: skip
    for point in points:
        table.add_row(
            point.label + ("" if point.met else " (misses the SLO)"),
            str(point.num_gpus),
            "-" if point.usd_per_hour is None else f"{point.usd_per_hour:,.2f}",
            "-" if point.tokens_per_s_per_user is None else f"{point.tokens_per_s_per_user:,.1f}",
            f"{point.tokens_per_s_per_gpu:,.0f}",
            f"{max((level.ratio for level in point.levels), default=0):.2f} of limit",
        )
    return table


def _rejected_table(plan: Plan) -> Any:
    from capacity.planning.records import KINDS

    table = _grid("Turned down", ("engines", "right"), ("why", "left"), ("for one", "left"))
    for kind, count in sorted(plan.reasons.items(), key=lambda item: -item[1]):
        example = next(rejection for rejection in plan.rejected if rejection.kind == kind)
        table.add_row(f"{count:,}", KINDS[kind], f"{example.engine}: {example.reason}")
    return table


# cost


def bill_tables(bill: Bill) -> list[RenderableType]:
    """The bill, what it makes of a token at the served and at the full load, and whatever else was asked."""
    whole = (
        ""
        if bill.billed_gpus == bill.num_gpus
        else f"{bill.billed_gpus} in whole instances, {bill.num_gpus} used"
    )
    facts = [
        ("price", f"${bill.usd_per_gpu_hour:,.4g} per GPU-hour", f"{bill.tier}: {bill.source}"),
        ("GPUs", f"{bill.billed_gpus:,}", whole),
        ("hour", f"${bill.usd_per_hour:,.2f}", ""),
        ("month", f"${bill.usd_per_month:,.2f}", "730 h"),
        ("power", f"{bill.watts / 1e3:,.2f} kW", "all in, at full use: an upper bound of what is served"),
    ]
    if bill.co2_g_per_kwh is not None:
        facts.append(("carbon", f"{bill.co2_g_per_kwh:,.4g} g CO2 per kWh", "as given"))
    if bill.utilization is not None:
        facts.append(("utilization", f"{bill.utilization:.1%}", "served over full load"))
    parts: list[RenderableType] = [
        f"[bold]{bill.deployment}[/bold]",
        _facts("Bill", facts),
        _load_table(bill),
    ]
    if against := [found for found in (bill.break_even, *bill.apis) if found is not None]:
        parts.append(_api_table(bill, against))
    if spot := bill.spot:
        rows = [
            ("useful time", f"{spot.useful_fraction:.1%}", "the rest is restarts"),
            ("useful hour", f"${spot.usd_per_useful_hour:,.2f}", ""),
            (
                "same capacity",
                f"{spot.replicas_for_same_capacity} replicas",
                f"${spot.usd_per_hour_for_same_capacity:,.2f} an hour",
            ),
        ]
        parts.append(_facts("On capacity that can be taken away", rows))
    if job := bill.job:
        rows = [
            ("documents", f"{job.documents:,}", f"in {job.deadline_hours:g} h"),
            ("replicas", f"{job.replicas:,}", f"{job.gpus} GPUs, {job.billed_gpus} billed"),
            ("time", f"{job.hours:,.2f} h", f"{job.gpu_hours:,.2f} GPU-hours"),
            ("bill", f"${job.usd:,.2f}", f"${job.usd_per_document:.6f} a document"),
        ]
        parts.append(_facts("Batch job at full load", rows))
    return [*parts, f"rule: {bill.rule}", *(f"[yellow]note:[/yellow] {warning}" for warning in bill.warnings)]


def _api_table(bill: Bill, against: Sequence[BreakEven]) -> Any:
    load = "at full load" if bill.served is None else "at this load"
    table = _grid(
        f"Against an API; these GPUs are ${bill.usd_per_month:,.2f} a month, busy or idle",
        ("API", "left"), ("$ a request", "right"), (f"$ a month {load}", "right"),
        ("cheaper from, requests/s", "right"), ("requests a month", "right"),
    )  # fmt: skip
    for found in against:
        table.add_row(
            found.api,
            f"{found.api_usd_per_request:.6f}",
            f"{found.api_usd_per_month:,.2f}",
            f"{found.requests_per_s:,.3f}" + ("" if found.possible else " (more than these can serve)"),
            f"{found.requests_per_month:,.0f}",
        )
    return table


LOAD_ROWS: tuple[tuple[str, str, str], ...] = (
    ("requests/s", "requests_per_s", ",.3f"),
    ("output tokens/s", "output_tokens_per_s", ",.0f"),
    ("$ per request", "usd_per_request", ".6f"),
    ("$ per 1M input tokens", "usd_per_million_input_tokens", ",.4f"),
    ("$ per 1M output tokens", "usd_per_million_output_tokens", ",.4f"),
    ("$ per 1M tokens, in and out", "usd_per_million_tokens", ",.4f"),
    ("users", "users", ",.0f"),
    ("$ per user-month", "usd_per_user_month", ",.4f"),
    ("J per output token", "joules_per_output_token", ",.3f"),
    ("kWh per 1M tokens", "kwh_per_million_tokens", ",.4f"),
    ("output tokens/s per MW", "output_tokens_per_s_per_megawatt", ",.0f"),
    ("g CO2 per 1M tokens", "co2_g_per_million_tokens", ",.1f"),
)


def _load_table(bill: Bill) -> Any:
    loads: list[LoadCost] = [load for load in (bill.served, bill.full) if load is not None]
    heads = ("as served", "at full load") if bill.served is not None else ("at full load",)
    table = _grid("What it makes of a token", ("", "left"), *((head, "right") for head in heads))
    for title, name, form in LOAD_ROWS:
        values = [getattr(load, name) for load in loads]
        if any(value is not None for value in values):
            table.add_row(title, *("-" if value is None else format(value, form) for value in values))
    return table


# curve


def curve_tables(curve: Curve) -> list[RenderableType]:
    """Latency against rate, the knee, the highest rate, users and the day."""
    slos = [level.slo for level in curve.points[0].levels]
    table = _grid(
        "Load, at step times as predicted",
        ("requests/s", "right"), ("served", "right"), ("out tok/s", "right"), ("mean E2E, s", "right"),
        ("tok/s/user", "right"), ("batch", "right"), *((slo, "right") for slo in slos),
    )  # fmt: skip
    for point in curve.points:
        speed = point.tokens_per_s_per_user
        knee = " knee" if point.request_rate_per_s == curve.knee_per_s else ""
        table.add_row(
            f"{point.request_rate_per_s:,.3g}{knee}",
            f"{point.requests_per_s:,.3g}",
            f"{point.output_tokens_per_s:,.0f}",
            f"{point.mean_e2e_s:,.2f}",
            "-" if speed is None else f"{speed:,.1f}",
            f"{point.mean_batch_size:,.1f}",
            *(f"{level_text(level)}{'' if level.met else ' x'}" for level in point.levels),
        )
    parts: list[RenderableType] = [f"[bold]{curve.deployment}[/bold], {curve.workload}", table]
    if highest := curve.highest:
        band = f"{highest.low:,.3g} to {highest.high:,.3g} over the 90 % band of the step model's error"
        rows = [
            ("as predicted", f"{highest.predicted:,.3g} requests/s", band),
            (f"with {highest.confidence:.0%} confidence", f"{highest.at_confidence:,.3g} requests/s", ""),
        ]
        if highest.sampling_low is not None and highest.sampling_high is not None:
            rows.append(
                (
                    "another draw",
                    f"{highest.sampling_low:,.3g} to {highest.sampling_high:,.3g}",
                    f"90 % interval of the rate as predicted, over {highest.replications} draws of the traffic",
                )
            )
        if curve.users is not None:
            rows.append(
                ("users", f"{curve.users:,.0f}", f"of {curve.requests_per_user_hour:g} requests an hour each")
            )
        parts.append(_facts("Highest rate within the SLO", rows))
    if day := curve.day:
        hours = _grid(
            "Replicas by the hour", ("hour", "right"), ("requests/s", "right"), ("replicas", "right")
        )
        for hour in day.hours:
            hours.add_row(f"{hour.hour}", f"{hour.request_rate_per_s:,.2f}", f"{hour.replicas}")
        parts.append(hours)
        money = (
            ""
            if day.fixed_usd_per_month is None
            else (f"; ${day.autoscaled_usd_per_month:,.0f} against ${day.fixed_usd_per_month:,.0f} a month")
        )
        parts.append(
            f"{day.autoscaled_replica_hours} replica-hours autoscaled, {day.fixed_replica_hours} fixed{money}"
        )
    return [*parts, *(f"[yellow]note:[/yellow] {warning}" for warning in curve.warnings)]


# comparisons


def diff_tables(diff: Diff) -> list[RenderableType]:
    """What differs in the settings, in the latencies, in the bill."""
    table = _grid(
        f"Second less first, over {diff.requests:,} requests (95 % interval of the mean)",
        ("", "left"), ("mean", "right"), ("interval", "right"), ("second sooner for", "right"),
        ("p50", "right"), ("p95", "right"), ("p99", "right"),
    )  # fmt: skip
    for found in diff.differences:
        moves = [
            f"{found.first_percentiles_s[p] * 1e3:,.1f} to {found.second_percentiles_s[p] * 1e3:,.1f} ms"
            for p in ("p50", "p95", "p99")
        ]
        table.add_row(
            found.metric.upper(),
            f"{found.mean_s * 1e3:+,.2f} ms" + ("" if found.significant else " (not told apart)"),
            f"{found.low_s * 1e3:+,.2f} to {found.high_s * 1e3:+,.2f}",
            f"{found.faster_fraction:.0%}",
            *moves,
        )
    rows = [(name, before, f"then {after}") for name, before, after in diff.settings]
    parts: list[RenderableType] = [
        f"[bold]{diff.first}[/bold] then [bold]{diff.second}[/bold], {diff.workload}",
        table,
    ]
    if diff.replicated:
        parts.append(_replicated_table(diff))
    parts.append(_facts("What was changed", rows) if rows else "the two are the same deployment")
    if diff.cost_change is not None:
        before, after = diff.first_outcome.usd_per_hour, diff.second_outcome.usd_per_hour
        parts.append(f"bill: ${before:,.2f} to ${after:,.2f} an hour ({diff.cost_change:+.1%})")
    return [*parts, *(f"[yellow]note:[/yellow] {warning}" for warning in diff.warnings)]


def _replicated_table(diff: Diff) -> Any:
    """Metric by metric over several draws of the traffic, the same for both."""
    table = _grid(
        "Second less first over draws of the traffic, the same for both (95 % interval)",
        ("", "left"), ("first", "right"), ("second", "right"), ("difference", "right"),
        ("interval", "right"), ("with draws of their own", "right"),
    )  # fmt: skip
    for found in diff.replicated:
        if found.metric.split("_")[0] not in ("request", "output", "mean", "p50", "p95", "p99"):
            continue
        change = found.difference
        low, high = change.low, change.high
        table.add_row(
            found.metric,
            f"{found.first:,.2f}",
            f"{found.second:,.2f}",
            f"{change.value:+,.2f}" + ("" if found.significant else " (not told apart)"),
            "-" if low is None or high is None else f"{low:+,.2f} to {high:+,.2f}",
            "-" if found.independent_half is None else f"± {found.independent_half:,.2f}",
        )
    return table


def _moved(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def tornado_tables(tornado: Tornado) -> list[RenderableType]:
    """Each input at -20 % and +20 %, the one that moves most first."""
    swing = f"{tornado.swing:.0%}"
    table = _grid(
        f"Relative change when an input is -{swing} / +{swing}",
        ("input", "left"), ("p95 E2E", "right"), ("p95 TTFT", "right"), ("$ per request", "right"),
        ("at full load", "right"),
    )  # fmt: skip
    for found in tornado.swings:
        pairs = (found.e2e_p95_change, found.ttft_p95_change, found.cost_change, found.full_cost_change)
        table.add_row(found.input, *(f"{_moved(low)} / {_moved(high)}" for low, high in pairs))
    head = f"[bold]{tornado.deployment}[/bold], {tornado.workload}: p95 E2E {tornado.base.e2e_p95_s:,.2f} s"
    left_out = f"not varied: {'; '.join(tornado.not_varied)}"
    return [head, table, *([left_out] if tornado.not_varied else [])]


def advice_tables(answer: AdviceList) -> list[RenderableType]:
    """The checklist, most beneficial first; then what cannot be done here."""
    table = _grid(
        "Changes on the same arrivals, most beneficial first: what p95 and $ become more by (less is better)",
        ("change", "left"), ("TTFT, ms", "right"), ("TPOT, ms", "right"), ("E2E, ms", "right"),
        ("$/h", "right"), ("$/1k full", "right"), ("quality", "left"),
    )  # fmt: skip
    for line in answer.advice:
        if line.effects is None:
            continue
        found = line.effects
        failed = f"\n[red]{line.failed:,} requests fail[/red]" if line.failed else ""
        table.add_row(
            line.change + (f"\n[dim]{line.flags}[/dim]" if line.flags else "") + failed,
            _ms(found.ttft_p95_s, found.ttft_p95_change),
            _ms(found.tpot_p95_s, found.tpot_p95_change),
            _ms(found.e2e_p95_s, found.e2e_p95_change),
            _usd(found.usd_per_hour, ",.2f"),
            _usd(found.usd_per_request_full and 1e3 * found.usd_per_request_full, ",.4f"),
            _loss(line),
        )
    base = answer.base
    full = base.usd_per_request_full
    paid = "" if full is None else f", ${1e3 * full:,.4f} per 1,000 requests at full load"
    head = (
        f"[bold]{answer.deployment}[/bold], {answer.workload}: p95 TTFT {base.ttft_p95_s * 1e3:,.0f} ms, "
        f"p95 E2E {base.e2e_p95_s * 1e3:,.0f} ms{paid}"
    )
    notes = [f"{line.change}: {line.note}" for line in answer.advice if line.note]
    refused = [f"[yellow]not here:[/yellow] {line.change}: {line.refused}" for line in answer.refused]
    return [head, table, *notes, *answer.observations, *refused]


def _ms(seconds: float | None, relative: float | None) -> str:
    if seconds is None:
        return "-"
    return "0" if seconds == 0 else f"{seconds * 1e3:+,.1f} ({_whole(relative)})"


def _whole(relative: float | None) -> str:
    return "-" if relative is None else f"{relative:+.0%}"


def _usd(usd: float | None, form: str) -> str:
    if usd is None:
        return "-"
    return "0" if usd == 0 else f"{usd:+{form}}"


def _loss(line: Advice) -> str:
    if not line.quality_known:
        return "unknown"
    return f"up to -{line.worst_quality_loss:.1%}" if line.worst_quality_loss else "same"


TABLES: dict[str, Any] = {
    "plan": plan_tables,
    "cost": bill_tables,
    "curve": curve_tables,
    "diff": diff_tables,
    "tornado": tornado_tables,
    "advice": advice_tables,
}
