"""The view of `simulate`: completed requests, latencies with intervals, service levels, and time breakdown."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from capacity.answers.attribution import BOUNDS
from capacity.answers.pool_runs import PoolRun
from capacity.answers.records import Simulation
from capacity.base.latency_metrics import METRICS
from capacity.base.money import money_text
from capacity.base.quantity import Quantity
from capacity.hardware.cost_estimate import CostEstimate
from capacity.report.display import (
    count_noun,
    join_phrases,
    join_words,
    money_phrase,
    number_text,
    phrase,
    price_text,
    verdict_text,
)
from capacity.report.figures.runs import latency_chart, state_chart
from capacity.report.replicas import replica_noun
from capacity.report.views import units
from capacity.report.views.drawn_energy import drawn_facts
from capacity.report.views.run_latencies import (
    goodput_table,
    latency_table,
    latency_text,
    level_table,
    mean_intervals,
    plus_minus_text,
    predicted_facts,
    priority_table,
    steady_state_blocks,
    time_parts_table,
)
from capacity.report.views.units import Unit
from capacity.report.views.view import (
    Block,
    Column,
    CustomChart,
    Drawing,
    Fact,
    Facts,
    Stack,
    Table,
    View,
    blocks_if_known,
    known_facts,
)
from capacity.simulator.verdict import UNSETTLED

NOTABLE_DIFFERENCE = 0.005  # smallest relative difference of rates worth a note
MIN_BOTTLENECK_SHARE = 5e-4  # of busy time: bottlenecks below it are left out unless they dominate a step
HIT_RATE = Unit(1, 100, "%", none="off")
USD_PER_HOUR = Unit(text=partial(money_phrase, "{}/h"))
FIRST_LATENCIES = ("Mean TTFT", "p95 TTFT", "Mean TPOT", "p95 TPOT")
REQUEST_GROUPS = {"all": "mean_ms", "slowest 5 %": "slowest_mean_ms"}
BOUND_FIELDS = {
    "bound": "bound",
    "share of steps": "steps_fraction",
    "share of busy time": "time_fraction",
    "s": "time_s",
}


def simulation_view(answer: Simulation) -> View:
    """Return the view of `simulate`; `detail` adds time breakdown and intervals of percentiles."""
    replicas = answer.run.replicas if answer.run.router is not None else ()
    at_start = Counter((each.role, each.label) for each in replicas if not each.from_s)
    gpus = " + ".join(
        f"{count_noun(count, replica_noun(role))} of {label}" for (role, label), count in at_start.items()
    )
    if at_start.total() < 2:
        gpus = f"{answer.gpu.count} x {answer.gpu.name}"
    models = " + ".join(dict.fromkeys(pool.model for pool in answer.pools)) or answer.model.name
    return View(
        f"[bold]{models}[/bold] on [bold]{gpus}[/bold], {answer.engine}, {answer.workload}",
        _blocks(answer),
        detail=_detail_blocks(answer),
        main=first_facts(answer),
        brief="--detail shows the time breakdown, bottlenecks of the steps, and the interval of each percentile",
    )


def _blocks(answer: Simulation) -> Iterator[Block]:
    values, run, verdict = answer.to_dict(), answer.run, answer.verdict
    yield f"[red]{run.status}:[/red] {run.reason}" * (run.status != "complete")
    yield verdict_text(units.value_at(verdict, "verdict"), units.value_at(verdict, "reason"))
    yield Facts("Served", served_facts(answer))
    yield from _pool_blocks(answer)
    yield latency_table("Latency, ms", lambda name: latency_text(answer, name, values[name]))
    yield from mean_intervals(answer.predicted_ms, "from the measured error of the simulator")
    yield priority_table(answer)
    if answer.replications is not None:
        means = answer.replications.metrics
        title = f"Mean of {len(answer.replications.seeds)} runs, ms (95 % interval)"
        yield latency_table(title, lambda name: plus_minus_text(means[name]))
    yield goodput_table(answer.goodput)
    yield level_table(answer)
    yield from run_charts({"this run": answer})


def _detail_blocks(answer: Simulation) -> Iterator[Block]:
    yield from mean_intervals(answer.as_found_ms, "if the server's settings and client are unknown")
    yield time_parts_table(answer)
    bounds = [
        each
        for each in answer.step_bounds
        if each.time_fraction >= MIN_BOTTLENECK_SHARE or each.steps_fraction
    ]
    columns = [Column(each.bound, partial(getattr, each), units.PERCENT) for each in bounds]
    shares = {"time_fraction": "share of busy time", "steps_fraction": "share of steps"}
    yield Table(
        "Bottlenecks of the steps", list(shares) if bounds else (), [Column("", shares.get), *columns]
    )
    yield from steady_state_blocks(answer)


def first_facts(answer: Simulation) -> list[Fact]:
    """Return the most important metrics with short notes: latencies, rates, KV use and prices."""
    values, cost = answer.to_dict(), answer.cost
    failed = phrase(", {:,} failed", values["failed"])
    notes = {
        "Requests/s": _drain_note(answer) or f"{values['completed']:,} completed{failed}",
        "Output tokens/s": "over the whole run",
        "KV use": f"peak {values['kv_utilization_peak']:.0%}, {values['preemptions']:,} preemptions",
    }
    if cost is not None:
        prices = ("$ per 1M output", "$ per 1M input", "$ per 1k requests")
        notes["$ per hour"] = f"{count_noun(cost.billed_gpus, 'GPU')} at {money_text(cost.usd_per_gpu_hour)}"
        notes |= dict.fromkeys(prices, f"at {cost.requests_per_s:,.2f} requests/s")
    served = (
        fact._replace(note=notes.get(fact.first, fact.note)) for fact in served_facts(answer) if fact.first
    )
    return [*predicted_facts(answer.predicted_ms, FIRST_LATENCIES), *served]


def served_facts(answer: Simulation) -> list[Fact]:
    """Return facts of the run: requests and rates, steps, KV cache, prefix cache hits, and cost."""
    values = answer.to_dict()
    goodput, ranks = values["request_goodput"], values["data_parallel_requests"]
    of_slo = "requests/s that meet the SLO"
    peak = f"peak {values['kv_utilization_peak']:.0%}"
    hits = values["prefix_cache_hit_fraction"]
    drained, recomputed = _drain_note(answer), answer.run.recomputed_fraction
    again = phrase("{:.0%} of the computed tokens are recomputations", recomputed)

    def rate(name: str) -> Quantity:
        known = answer.predicted_rates.get(name, Quantity(value=0.0))
        return replace(known, value=values[name])

    rows = [
        Fact("requests", values["completed"], note=f"{values['failed']:,} failed"),
        Fact("duration", values["duration"], Unit(1, after=" s"), "simulated"),
        Fact("requests/s", rate("request_throughput"), units.TIMES, drained, first="Requests/s"),
        Fact("output tokens/s", rate("output_throughput"), first="Output tokens/s"),
        *known_facts([Fact("goodput", goodput, units.TIMES, of_slo, first="Goodput")]),
        Fact("steps", values["steps"], note=f"mean batch {values['mean_batch_size']:.1f}"),
        Fact("KV use", values["kv_utilization_mean"], units.PERCENT_0, peak, first="KV use"),
        Fact("preemptions", values["preemptions"], note=again),
        Fact("prefix cache hits", hits, HIT_RATE, "of prompt tokens", missing="of prompt tokens"),
        *_tier_facts(answer),
        *blocks_if_known(partial(_cost_facts, answer), answer.cost),
        *drawn_facts(answer.drawn_energy),
    ]
    if ranks:
        spread = f"synchronized; {min(ranks):,} to {max(ranks):,} requests each"
        rows.append(Fact("data-parallel ranks", len(ranks), note=spread))
    return [*rows, *_replica_facts(values)] if "replicas" in values else rows


def _drain_note(answer: Simulation) -> str:
    """Return a note with the offered rate if only drain makes the rate of the whole run lower; otherwise empty."""
    verdict, summary = answer.verdict, answer.run.summary
    offered = None if verdict is None else verdict.offered_requests_per_s
    if verdict is None or offered is None or summary.failed:
        return ""
    kept_up = verdict.is_stable or (verdict.load_fraction is not None and verdict.load_fraction < 1)
    if not kept_up or summary.request_throughput > offered * (1 - NOTABLE_DIFFERENCE):
        return ""
    return f"over the whole run including drain; offered and completed: {offered:,.2f}/s"


def _tier_facts(answer: Simulation) -> Iterator[Fact]:
    """Return the KV data moved to and from each tier outside the GPU (such as CPU memory), in GB per GPU."""
    prompts = max(1, int(answer.run.records.prompt_tokens.sum()))
    for tier in answer.run.kv_tiers:
        moved = f"{tier.loaded_bytes / 1e9:,.1f} GB in, {tier.stored_bytes / 1e9:,.1f} GB out, per GPU"
        if tier.name == "swap":
            yield Fact("swapped back", tier.loaded, Unit(after=" blocks"), moved)
        else:
            yield Fact(f"{tier.name} hits", tier.hit_tokens / prompts, HIT_RATE, moved)


def _cost_facts(answer: Simulation, cost: CostEstimate) -> list[Fact]:
    """Return the cost at the run's load, excluding warm-up and drain; if the run is overloaded, at full load.

    Without a steady state, the list of key metrics shows the verdict in place of prices.
    """
    verdict = answer.verdict
    judged = "no verdict" if verdict is None else verdict.verdict
    settled = judged not in ("no verdict", *UNSETTLED)
    full = judged == "overloaded" and verdict and cost.requests_per_s == verdict.capacity_requests_per_s
    at = "at full load," if full else "at"
    load = f"{at} {cost.requests_per_s:,.2f} requests/s, excluding warm-up and drain"

    def fact(label: str, usd: float, unit: Unit, note: str, first: str) -> Fact:
        at_full_load = f"; full load {unit.texts(usd)[0]}" if full and first != "$ per hour" else ""
        instead = None if settled else ("-", judged + at_full_load)
        return Fact(label, usd, unit, note, first=first, instead=instead)

    share, output = "cost split by share of GPU time", cost.usd_per_million_output_tokens
    return [
        fact("cost", cost.usd_per_hour, USD_PER_HOUR, price_text(cost), "$ per hour"),
        Fact("  month", cost.usd_per_month, units.dollars(0), "730 h"),
        fact("  1M input tokens", cost.usd_per_million_input_tokens, units.USD, load, "$ per 1M input"),
        fact("  1M output tokens", output, units.USD, share, "$ per 1M output"),
        fact("  1k requests", cost.usd_per_request, units.USD_PER_1K, "", "$ per 1k requests"),
    ]


def _replica_facts(values: Mapping[str, Any]) -> Iterator[Fact]:
    """Return facts of the replicas by role, the KV transfers between them, and failed requests."""
    for role in dict.fromkeys(replica["role"] for replica in values["replicas"]):
        members = [replica for replica in values["replicas"] if replica["role"] == role]
        shares = [each["requests"] for each in members]
        later = sum(each["from_s"] > 0 for each in members)
        failed = sum(each["ended"] == "failed" for each in members)
        note = join_phrases(
            values["decode_router" if role == "decode" else "router"],
            phrase("{:,} lost", failed),
            phrase("{:,} started later", later),
            f"{min(shares):,} to {max(shares):,} requests each",
        )
        yield Fact(f"{replica_noun(role)}s", len(members) - later, note=note)
    if transfer := values["transfer_ms"]:
        aborted = phrase("; {:,} aborted", values["transfers"]["aborted"])
        note = f"mean; p99 {transfer['p99']:,.1f} ms{aborted}"
        yield Fact("KV transfer", transfer["mean"], Unit(1, after=" ms"), note)
    for name in ("rejected", "timed_out", "restarted", "lost"):
        if values[name]:
            yield Fact(name.replace("_", " "), values[name], note="requests")


def _pool_blocks(answer: Simulation) -> Iterator[Block]:
    """Return a table of the pools of a multi-pool run, and the share of requests that a semantic cache answered."""
    total, cascade = len(answer.run.records), answer.run.cascade
    keys = answer.pools[0].latencies_ms if answer.pools else ()
    columns = [
        Column("", lambda pool: pool.model if pool.role == "both" else f"{pool.model}, {pool.role}"),
        Column("replicas", "replicas", units.COUNT),
        Column("GPUs per replica", lambda pool: f"{pool.gpus_per_replica} x {pool.gpu}".removeprefix("1 x ")),
        Column("requests", "requests", units.COUNT),
        Column("answered", lambda pool: pool.answered / total if total else None, units.PERCENT),
        Column("busy", "busy_fraction", units.PERCENT_0),
        Column("$/h", "usd_per_hour", units.USD_2, optional=True),
        *(
            Column(f"{METRICS[key].label} mean, p95 ms", partial(_pool_latency, answer, key), units.TEXT)
            for key in keys
        ),
    ]
    yield Table("Pools", answer.pools, columns)
    if answer.pools and cascade is not None and cascade.from_cache:
        yield f"the semantic cache answered {cascade.from_cache / total:.1%} of the requests"


def _pool_latency(answer: Simulation, key: str, pool: PoolRun) -> str:
    """Return a pool's mean and p95 latency, with the digits that the prediction for the whole deployment supports."""
    found = pool.latencies_ms[key]
    if found is None:
        return "-, -"
    mean, p95 = (answer.predicted_ms.get(f"{statistic}_{key}_ms") for statistic in ("mean", "p95"))
    return f"{number_text(found.mean, mean)}, {number_text(found.percentiles[95], p95)}"


def run_charts(
    runs: Mapping[str, Simulation], metrics: Sequence[str] = ("ttft", "tpot"), **limits_s: float
) -> Iterator[Drawing | CustomChart]:
    """Return charts of the named `runs`: latency distributions, engine state, time breakdown, bottlenecks of steps.

    `limits_s` are the limits of the latencies in `metrics`, in s.
    """
    for metric in metrics:
        yield CustomChart(partial(latency_chart, runs, metric, limit_s=limits_s.get(metric)))
    if any(answer.run.series for answer in runs.values()):
        yield CustomChart(partial(state_chart, runs), fixed=True)
    yield _time_parts_chart(runs)
    yield _bounds_chart(runs)


def _time_parts_chart(runs: Mapping[str, Simulation]) -> Stack:
    """Return the time breakdown of all requests, and of the slowest 5 %, as stacked bars that sum to E2E."""
    bars_ms = {
        f"{label}, {group}": answer.time_parts[key]
        for label, answer in runs.items()
        if answer.time_parts is not None
        for group, key in REQUEST_GROUPS.items()
    }
    means = {f"{label}, all": answer.predicted_ms.get("mean_e2el_ms") for label, answer in runs.items()}
    return Stack(
        name="where_time_went",
        title="Where the time of a request goes",
        alt=_largest_parts_text(bars_ms) or "No request completed.",
        data={
            part: {label: parts.get(part, 0.0) / 1e3 for label, parts in bars_ms.items()}
            for part in dict.fromkeys(part for parts in bars_ms.values() for part in parts)
        },
        unit=units.MS,
        axis="mean, {time}",
        wholes={label: mean and mean.scale(1e-3) for label, mean in means.items()},
        rows=[
            {"requests": label, **{f"{part}, ms": value for part, value in parts.items()}}
            for label, parts in bars_ms.items()
        ],
    )


def _bounds_chart(runs: Mapping[str, Simulation]) -> Stack:
    """Return the chart of the busy time of each run by the bottleneck of its steps."""
    bars = {
        label: {each.bound: each.time_fraction for each in answer.step_bounds}
        for label, answer in runs.items()
        if answer.step_bounds
    }
    return Stack(
        name="what_bound_the_steps",
        title="Bottlenecks of the steps",
        alt=_largest_parts_text(bars) or "No step was executed.",
        data={bound: {label: shares.get(bound, 0.0) for label, shares in bars.items()} for bound in BOUNDS},
        unit=units.PERCENT_0,
        axis="% of busy time",
        rows=[
            {"run": label, **row}
            for label, answer in runs.items()
            for row in units.read_rows(answer.step_bounds, BOUND_FIELDS)
        ],
    )


def _largest_parts_text(bars: Mapping[str, Mapping[Any, float]]) -> str:
    """Return a sentence with the largest part of each bar; empty without bars."""
    largest = [f"{label}: mostly {max(parts, key=parts.__getitem__)}" for label, parts in bars.items()]
    return phrase("{}.", join_words(largest))
