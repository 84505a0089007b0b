"""90 % intervals of the latencies, the duration and the rates of a simulated run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from capacity.answers.intervals import LoadBands, load_bands
from capacity.answers.records import Quantity
from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.deployment import Traffic
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult
from capacity.simulator.distribution import PERCENTILES
from capacity.simulator.load_means import LoadMeans, whole_run_means
from capacity.simulator.metrics import MISSING
from capacity.simulator.verdict import Verdict
from capacity.step import PS_PER_S
from capacity.workload import Workload

THROUGHPUTS = ("request_throughput", "output_throughput", "total_token_throughput")


def predicted_ms(
    pools: Sequence[ResolvedPool],
    requests: Workload,
    traffic: Traffic,
    run: SimulationResult,
    verdict: Verdict | None,
    *,
    as_found: bool = False,
) -> dict[str, Quantity]:
    """Return means and percentiles of latencies (ms) by key of the summary, each with its interval.

    The result is empty without requests. Intervals apply to a server launched as predicted or, with `as_found`, to a
    server with unknown settings and client. If different pools complete requests, each interval covers the intervals of
    all these pools.
    """
    found: dict[str, Quantity] = {}
    for pool in _distinct_pools(pools):
        bands = run_bands(pool, requests, run, verdict)
        if bands is None:
            return {}
        known = latency_intervals(replace(bands, as_found=as_found), run, traffic, verdict)
        for name, quantity in known.items():
            found[name] = found[name].cover(quantity) if name in found else quantity
    return found


def _distinct_pools(pools: Sequence[ResolvedPool]) -> list[ResolvedPool]:
    """Return the first pool, and one pool (that prefills and decodes) of each other combination of model and GPU."""
    kinds = {(pools[0].model.name, pools[0].profile.name): pools[0]}
    for pool in pools:
        if pool.pool.role == "both":
            kinds.setdefault((pool.model.name, pool.profile.name), pool)
    return list(kinds.values())


def run_bands(
    resolved: ResolvedPool, requests: Workload, run: SimulationResult, verdict: Verdict | None
) -> LoadBands | None:
    """Return the latency intervals for the load of a simulated run; None if no request completed."""
    whole = whole_run_means(run.summary, run.records)
    if whole is None:
        return None
    done = run.records.completed
    return load_bands(
        resolved,
        _without_judge_delay(whole, run),
        (float(run.records.prompt_tokens[done].mean()), float(run.records.output_tokens[done].mean())),
        client_latency_s=requests.client_latency_s or 0.0,
        load_fraction=None if verdict is None or requests.is_closed_loop else verdict.load_fraction,
    )


def _has_judge(run: SimulationResult) -> bool:
    """Return whether clients see complete responses only, because the judge of a cascade reads them first."""
    return run.cascade is not None and run.cascade.by_answer


def _without_judge_delay(whole: LoadMeans, run: SimulationResult) -> LoadMeans:
    """Return the mean latencies with TTFT and TPOT at which the engine generates tokens. They depend on step times; the
    times at which clients see the tokens also include the delay by the judge."""
    if run.cascade is None or not _has_judge(run):
        return whole
    records, done = run.records, run.records.completed
    made_ps = np.where(run.cascade.made_ps != MISSING, run.cascade.made_ps, records.first_token_ps)
    ttft_s = float((made_ps - records.arrival_ps)[done].mean()) / PS_PER_S
    further = float(records.output_tokens[done].mean()) - 1
    tpot_s = (whole.e2e_s - ttft_s) / further if further > 0 else 0.0
    made_s = {"ttft": ttft_s, "tpot": tpot_s if tpot_s > 0 else None}
    return replace(whole, latencies_s={**whole.latencies_s, **made_s})


def latency_intervals(
    bands: LoadBands,
    run: SimulationResult,
    traffic: Traffic,
    verdict: Verdict | None,
    *,
    names: Sequence[str] = REQUEST_METRICS,
    percentiles: Sequence[int] = PERCENTILES,
) -> dict[str, Quantity]:
    """Return mean and `percentiles` (ms) of the latencies `names` with intervals, by summary key (`p99_ttft_ms`).

    The interval of a mean also covers the mean in the steady state. ITL has the relative interval of TPOT. `traffic`:
    whether the client latency is specified.
    """
    found: dict[str, Quantity] = {}
    steady = None if verdict is None else verdict.steady
    for name in names:
        latency, metric = run.summary.latencies_ms[name], METRICS[name].error
        if metric == "ttft" and _has_judge(run):
            metric = "e2e"
        if latency is None or (_has_judge(run) and getattr(bands.sensitivities, metric) is None):
            continue
        mean = bands.with_interval(metric, latency.mean)
        lasting_s = (
            None if steady is None else steady.latencies_s[name if name in REQUEST_METRICS else "tpot"]
        )
        if lasting_s is not None:
            mean = mean.cover(bands.correct(metric, lasting_s * 1e3))
        quantities = {f"mean_{name}_ms": mean}
        for percentile in percentiles:
            value = latency.percentiles[percentile]
            quantities[f"p{percentile}_{name}_ms"] = bands.with_interval(metric, value, f"p{percentile}")
        if metric != "tpot":
            quantities = {
                key: bands.add_client_latency(metric, each, traffic, unit_s=1e-3)
                for key, each in quantities.items()
            }
        found |= quantities | _with_ordered_ends(
            {f"p{each}_{name}_ms": quantities[f"p{each}_{name}_ms"] for each in sorted(percentiles)}
        )
    return found


def _with_ordered_ends(rising: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Return rising percentiles with rising interval ends, because a percentile is at least every lower percentile."""
    found: dict[str, Quantity] = {}
    low, high = 0.0, 0.0
    for key, each in rising.items():
        low, high = max(low, each.low or 0.0), math.inf if each.high is None else max(high, each.high)
        found[key] = replace(each, low=low, high=None if high == math.inf else high)
    return found


def predicted_rates(
    pools: Sequence[ResolvedPool],
    requests: Workload,
    run: SimulationResult,
    verdict: Verdict | None,
    *,
    as_found: bool = False,
) -> dict[str, Quantity]:
    """Return the predicted duration (s) and throughputs of a run, each with its 90 % interval.

    Intervals apply to a server launched as predicted or, with `as_found`, to a server with unknown settings and client.
    """
    found: dict[str, Quantity] = {}
    for pool in _distinct_pools(pools):
        bands = run_bands(pool, requests, run, verdict)
        if bands is None:
            return {}
        for name, quantity in rate_intervals(
            replace(bands, as_found=as_found), requests, run, verdict
        ).items():
            found[name] = found[name].cover(quantity) if name in found else quantity
    return found


def rate_intervals(
    bands: LoadBands, requests: Workload, run: SimulationResult, verdict: Verdict | None
) -> dict[str, Quantity]:
    """Return the duration (s) and the throughputs of a run, each with its interval, by key of the summary.

    In a closed loop, and with a growing queue, the whole duration depends on step times. In an open loop below
    capacity, arrivals set the duration, and step times affect only the drain after the last arrival. If the engine is
    slower than the arrivals at one end of the interval, the throughput at this end is that of a full engine.
    """
    summary = run.summary
    arrivals = run.records.arrival_ps
    clocked_s = 0.0 if requests.is_closed_loop else float(arrivals.max() - arrivals.min()) / PS_PER_S
    drain_s = summary.duration - clocked_s
    load = _capacity_fraction(verdict)
    full = replace(bands, seen=replace(bands.seen, load_fraction=None))
    if not clocked_s or load >= 1:
        found = full.with_interval("e2e", summary.duration)
        seconds = [
            None if end is None else max(end, clocked_s) for end in (found.value, found.low, found.high)
        ]
    else:
        drain, engine = bands.with_interval("e2e", drain_s), full.with_interval("e2e", load)
        seconds = [
            None if tail is None or used is None else clocked_s * max(used, 1.0) + tail
            for tail, used in zip(
                (drain.value, drain.low, drain.high), (load, engine.low, engine.high), strict=True
            )
        ]
    if not seconds[0] or not seconds[1]:
        return {}
    duration = Quantity(value=seconds[0], low=seconds[1], high=seconds[2])
    rates = {name: duration.inverse(getattr(summary, name) * summary.duration) for name in THROUGHPUTS}
    return {"duration": duration, **rates}


def _capacity_fraction(verdict: Verdict | None) -> float:
    """Return offered rate / capacity of an open loop. If either is unknown: infinite if the queue grows, else 0."""
    if verdict is None:
        return 0.0
    offered, capacity = verdict.offered_requests_per_s, verdict.capacity_requests_per_s
    if offered is None or capacity is None:
        return math.inf if verdict.verdict == "overloaded" else 0.0
    return offered / capacity
