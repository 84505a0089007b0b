"""What `simulate` answers, as tables: what was served, latencies with their intervals, and the service levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capacity.answers.records import Quantity
from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.report.display import bill_rows, last_place, number_text, text_and_interval, verdict_text
from capacity.report.layout import Part, crossed, facts, grid, notes
from capacity.report.pool_runs import pool_tables
from capacity.simulator.distribution import flattened_latencies

if TYPE_CHECKING:
    from rich.table import Table

    from capacity.answers.records import Simulation
    from capacity.simulator.intervals import Interval
    from capacity.simulator.levels import Goodput, SloLevel

PERCENTILES = ("p50", "p90", "p95", "p99")
STATISTICS = ("mean", *PERCENTILES)
MANY_REQUESTS = 1_000  # whose p99, were they independent, would have both ends
NOTABLE = 0.005  # of a rate: less is nothing to remark on
LEAST_SHARE = 5e-4  # of busy time: what bounds less of it, and no step mostly, is left out
Fact = tuple[str, str, str]
Values = Mapping[str, Any]  # the answer as JSON values


def simulation_summary(answer: Simulation) -> list[Part]:
    """What was served, latencies, and the service levels."""
    hint = "--detail has where the time goes, what bounds the steps, and each percentile's interval"
    return [*simulation_sheet(answer), hint]


def simulation_sheet(answer: Simulation) -> list[Part]:
    """The same for a page, whose charts have the rest."""
    return [*_what_was_served(answer), *_by_group(answer)]


def simulation_tables(answer: Simulation) -> list[Part]:
    """The whole answer, most important first."""
    return [
        *_what_was_served(answer),
        *_error(answer.as_found_ms, "of a server with unknown settings and client"),
        *_time_parts(answer),
        *_step_bounds(answer),
        *_steady_part(answer),
        *_by_group(answer),
    ]


def _by_group(answer: Simulation) -> list[Part]:
    """Priorities, replications, the service levels and notes."""
    return [
        *_priorities(answer),
        *_replications(answer),
        *_goodput(answer.goodput),
        *_service_levels(answer),
        *notes(answer.warnings),
    ]


def _what_was_served(answer: Simulation) -> list[Part]:
    """The verdict, what was served, and latencies."""
    values = answer.to_dict()
    gpus = _at_start(values.get("replicas") or ()) or f"{answer.gpu.count} x {answer.gpu.name}"
    models = " + ".join(dict.fromkeys(pool.model for pool in answer.pools)) or answer.model.name
    headline = f"[bold]{models}[/bold] on [bold]{gpus}[/bold], {answer.engine}, {answer.workload}"
    ended = [] if values["status"] == "complete" else [f"[red]{values['status']}:[/red] {values['reason']}"]
    latency = _by_latency("Latency, ms", STATISTICS, lambda key: latency_text(answer, key, values.get(key)))
    return [
        headline,
        *ended,
        *([] if answer.verdict is None else [verdict_text(answer.verdict.verdict, answer.verdict.reason)]),
        facts("Served", _served_rows(answer, values)),
        *pool_tables(answer),
        latency,
        *_error(answer.predicted_ms, "by the simulator's error against real servers"),
    ]


def _priorities(answer: Simulation) -> list[Part]:
    """Latencies of each class of requests, where there are several."""
    if not answer.priorities:
        return []
    names = [f"{statistic}_{key}_ms" for key in REQUEST_METRICS for statistic in ("mean", "p95")]
    heads = (head for key in REQUEST_METRICS for head in (METRICS[key].label, "p95"))
    columns = ("requests", "failed", "preempted", *heads)
    rows = (
        (
            f"priority {each.priority}",
            (
                f"{each.requests:,}",
                f"{each.requests - each.completed:,}",
                f"{each.preemptions:,}",
                *(latency_text(answer, name, flattened_latencies(each.latencies_ms)[name]) for name in names),
            ),
        )
        for each in answer.priorities
    )
    return [crossed("By priority, ms", columns, rows)]


def _by_latency(title: str, statistics: Sequence[str], cell: Callable[[str], str]) -> Table:
    """A row for each latency, a column for each statistic: `cell` of names as in `p99_ttft_ms`."""
    rows = (
        (metric.label, (cell(f"{name}_{key}_ms") for name in statistics)) for key, metric in METRICS.items()
    )
    return crossed(title, statistics, rows)


def prediction_of(answer: Simulation, name: str) -> Quantity | None:
    """The prediction that says how sure a latency is, `name` as in `p99_ttft_ms`: its own, or that of its mean. Gaps
    between tokens are as sure as TPOT."""
    statistic, _, metric = name.replace("_itl_", "_tpot_").partition("_")
    known = answer.predicted_ms
    return known.get(f"{statistic}_{metric}") or known.get(f"mean_{metric}")


def latency_text(answer: Simulation, name: str, value_ms: float | None) -> str:
    """A latency of a run with the digits that its prediction leaves.

    All percentiles of a latency end at one digit, so that rounding never makes a higher one the smaller.
    """
    if value_ms is None:
        return "-"
    statistic, _, rest = name.partition("_")
    row = PERCENTILES if statistic in PERCENTILES else (statistic,)
    known = [each for each in (prediction_of(answer, f"{one}_{rest}") for one in row) if each is not None]
    places = {place: each for each in known if (place := last_place(each)) is not None}
    return number_text(value_ms, places[min(places)] if places else None)


# what was served


def _served_rows(answer: Simulation, values: Values) -> list[Fact]:
    rows = [
        ("requests", f"{values['completed']:,}", f"{values['failed']:,} failed"),
        ("duration", f"{values['duration']:,.1f} s", "simulated"),
        ("requests/s", f"{values['request_throughput']:,.2f}", drained_text(answer, values)),
        ("output tokens/s", f"{values['output_throughput']:,.0f}", ""),
        ("steps", f"{values['steps']:,}", f"mean batch {values['mean_batch_size']:.1f}"),
        ("KV use", f"{values['kv_utilization_mean']:.0%}", f"peak {values['kv_utilization_peak']:.0%}"),
        ("preemptions", f"{values['preemptions']:,}", ""),
        ("prefix cache hits", _hits(values["prefix_cache_hit_fraction"]), "of prompt tokens"),
        *_tier_rows(answer),
        *_cost_rows(answer),
    ]
    if (goodput := values["request_goodput"]) is not None:
        rows.insert(4, ("goodput", f"{goodput:,.2f}", "requests/s that meet the SLO"))
    if ranks := values["data_parallel_requests"]:
        spread = f"in lock-step; {min(ranks):,} to {max(ranks):,} requests each"
        rows.append(("data-parallel ranks", str(len(ranks)), spread))
    return [*rows, *_replica_rows(values)] if values.get("replicas") else rows


def drained_text(answer: Simulation, values: Values) -> str:
    """What a rate over the whole run leaves out, where its draining makes it less than what comes and is served."""
    verdict = answer.verdict
    offered = None if verdict is None else verdict.offered_requests_per_s
    if verdict is None or offered is None or values["failed"]:
        return ""
    kept_up = verdict.is_stable or (verdict.load_fraction is not None and verdict.load_fraction < 1)
    if not kept_up or values["request_throughput"] > offered * (1 - NOTABLE):
        return ""
    return f"over the whole run, its draining included; {offered:,.2f} come and are served"


def _cost_rows(answer: Simulation) -> list[Fact]:
    """What the deployment costs at the load that the run shows, without its filling and draining."""
    cost = answer.cost
    if cost is None:
        return []
    at = "at full load," if is_at_full_load(answer) else "at"
    load = f"{at} {cost.requests_per_s:,.2f} requests/s, the run's filling and draining left out"
    return [
        *bill_rows(cost),
        ("  1M input tokens", f"${cost.usd_per_million_input_tokens:,.3f}", load),
        ("  1M output tokens", f"${cost.usd_per_million_output_tokens:,.3f}", "by share of GPU time"),
        ("  1k requests", f"${1e3 * cost.usd_per_request:,.4f}", ""),
    ]


def is_at_full_load(answer: Simulation) -> bool:
    """Whether more requests arrive than are served, so that prices are those of full load."""
    cost, verdict = answer.cost, answer.verdict
    if cost is None or verdict is None or verdict.verdict != "overloaded":
        return False
    return cost.requests_per_s == verdict.capacity_requests_per_s


def _hits(fraction: float | None) -> str:
    return "off" if fraction is None else f"{fraction:.1%}"


def _tier_rows(answer: Simulation) -> list[Fact]:
    """Where KV went that left the GPU, and what came back."""
    prompts = max(1, int(answer.run.records.prompt_tokens.sum()))
    return [
        (
            f"{tier.name} hits" if tier.name != "swap" else "swapped back",
            _hits(tier.hit_tokens / prompts) if tier.name != "swap" else f"{tier.loaded:,} blocks",
            f"{tier.loaded_bytes / 1e9:,.1f} GB in, {tier.stored_bytes / 1e9:,.1f} GB out, per GPU",
        )
        for tier in answer.run.kv_tiers
    ]


def _at_start(replicas: Sequence[Values]) -> str:
    """What stands at the start of the run, where that is more than one engine: 2 replicas of 4 x h100."""
    counts = Counter((each["role"], each["label"]) for each in replicas if not each["from_s"])
    if counts.total() < 2:
        return ""
    return " + ".join(
        f"{count} {'' if role == 'both' else role + ' '}replica{'s' if count > 1 else ''} of {label}"
        for (role, label), count in counts.items()
    )


def _replica_rows(values: Values) -> list[Fact]:
    """Replicas by role, transfers of KV between them, and requests that came to nothing."""
    roles: dict[str, list[Values]] = {}
    for replica in values["replicas"]:
        roles.setdefault(replica["role"], []).append(replica)
    rows = [_role_row(role, members, values) for role, members in roles.items()]
    if values["transfer_ms"]:
        mean, p99 = values["transfer_ms"]["mean"], values["transfer_ms"]["p99"]
        aborted = values["transfers"]["aborted"]
        more = f"; {aborted:,} aborted" if aborted else ""
        rows.append(("KV transfer", f"{mean:,.1f} ms", f"mean; p99 {p99:,.1f} ms{more}"))
    for name in ("rejected", "timed_out", "restarted", "lost"):
        if values[name]:
            rows.append((name.replace("_", " "), f"{values[name]:,}", "requests"))
    return rows


def _role_row(role: str, members: Sequence[Values], values: Values) -> Fact:
    router = values["decode_router"] if role == "decode" else values["router"]
    label = "replicas" if role == "both" else f"{role} replicas"
    shares = [each["requests"] for each in members]
    later = sum(each["from_s"] > 0 for each in members)
    failed = sum(each["ended"] == "failed" for each in members)
    changes = [f"{failed:,} lost"] * (failed > 0) + [f"{later:,} started later"] * (later > 0)
    text = "; ".join((router, *changes, f"{min(shares):,} to {max(shares):,} requests each"))
    return label, str(len(members) - later), text


# latencies, and what they are made of


def _error(known: Mapping[str, Quantity], what: str) -> list[Part]:
    means = (("TTFT", known.get("mean_ttft_ms")), ("TPOT", known.get("mean_tpot_ms")))
    shown = [
        f"mean {name} {text_and_interval(mean, unit=' ms')[1]}" for name, mean in means if mean is not None
    ]
    return [f"90 % interval {what}: {', '.join(shown)}"] if shown else []


def _time_parts(answer: Simulation) -> list[Part]:
    parts = answer.time_parts
    if parts is None:
        return []
    names = [name for name in parts["mean_ms"] if any(part[name] for part in parts.values())]
    rows = (
        (label, [number_text(parts[key][name], answer.mean_ttft_ms) for name in names])
        for label, key in (("all requests", "mean_ms"), ("slowest 5 %", "slowest_mean_ms"))
    )
    return [crossed("Where the time goes, ms", names, rows)]


def _step_bounds(answer: Simulation) -> list[Part]:
    if not answer.step_bounds:
        return []
    bounds = [each for each in answer.step_bounds if each.time_fraction >= LEAST_SHARE or each.steps_fraction]
    rows = (
        ("share of busy time", [f"{each.time_fraction:.1%}" for each in bounds]),
        ("steps mostly so", [f"{each.steps_fraction:.1%}" for each in bounds]),
    )
    return [crossed("What bounds the steps", [each.bound for each in bounds], rows)]


def _steady_part(answer: Simulation) -> list[Part]:
    """Percentiles of the steady part with their intervals."""
    verdict = answer.verdict
    if verdict is None or not verdict.is_stable:
        return []
    intervals = verdict.intervals_ms
    means = {} if verdict.steady is None else verdict.steady.to_dict()
    title = "Steady part, ms (percentiles: 95 % interval)"

    def cell(name: str) -> str:
        if name.startswith("mean"):
            return latency_text(answer, name, means.get(name))
        return _range(intervals.get(name))

    table = _by_latency(title, STATISTICS, cell)
    open_ended = any("?" in str(cell) for column in table.columns for cell in column.cells)
    return [table, _open_end(verdict.measured_requests)] if open_ended else [table]


def _open_end(requests: int) -> str:
    """Why an interval has an open end: few requests, or many whose slow ones stand together."""
    if requests < MANY_REQUESTS:
        return f"?: {requests:,} requests are too few to tell that end"
    return (
        f"?: of {requests:,} requests the slow ones come together in a few stretches, as where the load drifts, and "
        "tell as little as a few independent ones would: that end needs a longer run"
    )


def _replications(answer: Simulation) -> list[Part]:
    """Means over the runs, of each statistic, with their intervals."""
    runs = answer.replications
    if runs is None:
        return []
    title = f"Mean of {len(runs.seeds)} runs, ms (95 % interval)"
    return [_by_latency(title, STATISTICS, lambda name: _plus_minus(runs.metrics[name]))]


def _plus_minus(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.high is None:
        return f"{interval.value:,.1f} ± ?"
    spread = Quantity(value=interval.value, low=interval.low, high=interval.high)
    return f"{number_text(interval.value, spread)} ± {number_text(interval.high - interval.value, spread)}"


def _range(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.low is None and interval.high is None:
        return "too few to tell"
    spread = Quantity(value=interval.value, low=interval.low, high=interval.high)
    return " to ".join(
        "?" if end is None else number_text(end, spread) for end in (interval.low, interval.high)
    )


# service levels


def _goodput(goodput: Goodput | None) -> list[Part]:
    if goodput is None:
        return []
    table = grid(
        "Goodput", ("", "left"), ("requests/s", "right"), ("attained", "right"), ("95 % interval", "right")
    )
    for level in goodput.limits:
        table.add_row(level.slo, "", *_attained(level))
    table.add_row("all", f"{goodput.requests_per_s:,.2f}", *_attained(goodput))
    return [table]


def _service_levels(answer: Simulation) -> list[Part]:
    levels = answer.slos
    if not levels:
        return []
    columns = ("value, ms", "attained", "95 % interval")
    window = answer.slo_window
    when = "" if window is None else f" in the worst window: {window.text}"
    table = grid(f"Service levels{when}", ("", "left"), *((head, "right") for head in columns), ("", "left"))
    for level in levels:
        met = "[green]met[/green]" if level.met else "[red]unmet[/red]"
        metric, *percentile, _ = level.slo.split(":")
        value = latency_text(answer, f"{percentile[0] if percentile else 'max'}_{metric}_ms", level.value_ms)
        table.add_row(level.slo, value, *_attained(level), met)
    return [table]


def _attained(level: SloLevel | Goodput) -> tuple[str, str]:
    """The share of requests within, and its interval."""
    if level.attained_fraction is None:
        return "-", ""
    share = Quantity(value=level.attained_fraction, low=level.attained_low, high=level.attained_high).scaled(
        100
    )
    ends = ("?" if end is None else f"{number_text(end, share, 2)}%" for end in (share.low, share.high))
    return f"{number_text(share.value, share, 2)}%", " to ".join(ends)
