"""90 % intervals of a simulated run: its latencies, its duration and its rates."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capacity.answers.intervals import LoadBands, add_client_latency, load_bands, with_interval
from capacity.answers.records import Quantity
from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.deployment import Traffic
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult
from capacity.simulator.load_means import LoadMeans, whole_run_means
from capacity.simulator.metrics import MISSING
from capacity.simulator.verdict import Verdict
from capacity.step import PS_PER_S
from capacity.workload import Workload

HIGH_PERCENTILES = (95, 99)


def predicted_ms(
    pools: Sequence[ResolvedPool],
    requests: Workload,
    traffic: Traffic,
    run: SimulationResult,
    verdict: Verdict | None,
    *,
    as_found: bool = False,
) -> dict[str, Quantity]:
    """Return latency means and high percentiles (ms) with intervals, by summary key; empty without requests.

    By default the server is launched with the settings of the prediction; with `as_found` its settings and clients are
    unknown. If different pools complete requests, each interval covers the intervals of all these pools.
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
    """Return the first pool and, for each other combination of model and GPU, one pool with both prefill and decode."""
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
    """Return whether clients see responses only when complete, because a judge of the cascade reads them first."""
    return run.cascade is not None and run.cascade.by_answer


def _without_judge_delay(whole: LoadMeans, run: SimulationResult) -> LoadMeans:
    """Return the mean latencies, with TTFT and TPOT from the times when the engine generated the tokens. These times
    depend on step times; the times when clients see the tokens also include the delay by a judge."""
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
    percentiles: Sequence[int] = HIGH_PERCENTILES,
) -> dict[str, Quantity]:
    """Return mean and `percentiles` (ms) of the latencies `names` with intervals, by summary key (`p99_ttft_ms`).

    The interval of a mean also covers the mean of the steady part. The interval of inter-token gaps is that of TPOT.
    `traffic` sets the client latency or leaves it unspecified.
    """
    found = {}
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
            mean = mean.cover(with_interval(lasting_s * 1e3, 0.0, 0.0))
        quantities = {f"mean_{name}_ms": mean}
        for percentile in percentiles:
            value = latency.percentiles[percentile]
            quantities[f"p{percentile}_{name}_ms"] = bands.with_interval(metric, value, f"p{percentile}")
        for key, quantity in quantities.items():
            if metric != "tpot":
                adjustment = bands.resolved.profile.adjustment
                quantity = add_client_latency(
                    quantity, traffic, adjustment=adjustment, unit_s=1e-3, as_found=bands.as_found
                )
            found[key] = quantity
    return found


def rate_intervals(
    bands: LoadBands, requests: Workload, run: SimulationResult, verdict: Verdict | None
) -> dict[str, Quantity]:
    """Return the duration (s) and the throughputs of a run with intervals, by key of the summary.

    In an open loop without a growing queue, the arrivals set the duration, and only the requests in flight at the last
    arrival depend on step times. In a closed loop, and with a growing queue, the whole duration depends on step times.
    """
    summary = run.summary
    arrivals = run.records.arrival_ps
    clocked_s = 0.0 if requests.is_closed_loop else float(arrivals.max() - arrivals.min()) / PS_PER_S
    behind = verdict is not None and verdict.verdict in ("saturated", "overloaded")
    of_engine_s = summary.duration if behind else summary.duration - clocked_s
    whole = bands.with_interval("e2e", of_engine_s)
    given_s = summary.duration - of_engine_s
    duration = Quantity(
        value=max(given_s + whole.value, clocked_s),
        low=None if whole.low is None else max(given_s + whole.low, clocked_s),
        high=None if whole.high is None else max(given_s + whole.high, clocked_s),
    )
    if not duration.low:
        return {}
    served = {
        "request_throughput": summary.request_throughput,
        "output_throughput": summary.output_throughput,
    }
    rates = {name: duration.inverse(rate * summary.duration) for name, rate in served.items()}
    return {"duration": duration, **rates}
