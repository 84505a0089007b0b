"""The latencies of a simulated run with their 90 % intervals: those of every kind of engine that answered in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capacity.answers.intervals import LoadBands, beside_client, load_bands, with_interval
from capacity.answers.records import Quantity
from capacity.deployment import Traffic
from capacity.hardware.spreads import Metric
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult
from capacity.simulator.distribution import Distribution
from capacity.simulator.load_means import LoadMeans, whole_means
from capacity.simulator.metrics import MISSING
from capacity.simulator.verdict import Verdict
from capacity.step import PS_PER_S
from capacity.workload import Workload


def predicted_ms(
    pools: Sequence[ResolvedPool],
    requests: Workload,
    traffic: Traffic,
    run: SimulationResult,
    verdict: Verdict | None,
    differing: Sequence[LoadMeans],
) -> dict[str, Quantity]:
    """Means and high percentiles (ms) with their intervals, by the summary's names; none of a run without requests.

    Of unequal pools that answer requests an interval holds those of all of them.
    """
    whole = whole_means(run.summary, run.records)
    if whole is None:
        return {}
    whole, done = _as_made(whole, run), run.records.completed
    lengths = (float(run.records.prompt_tokens[done].mean()), float(run.records.output_tokens[done].mean()))
    bands = [
        load_bands(
            pool,
            whole,
            lengths,
            client_latency_s=requests.client_latency_s or 0.0,
            load_fraction=None if verdict is None or requests.is_closed_loop else verdict.load_fraction,
        )
        for pool in _kinds(pools)
    ]
    found: dict[str, Quantity] = {}
    for each in bands:
        for name, quantity in _by_bands(each, traffic, run, verdict, differing).items():
            found[name] = found[name].covering(quantity) if name in found else quantity
    return found


def _as_made(whole: LoadMeans, run: SimulationResult) -> LoadMeans:
    """The means with tokens as engines made them, where a judge held them back: what a slower step does to those."""
    if run.cascade is None or not run.cascade.by_answer:
        return whole
    records, done = run.records, run.records.completed
    made_ps = np.where(run.cascade.made_ps != MISSING, run.cascade.made_ps, records.first_token_ps)
    ttft_s = float((made_ps - records.arrival_ps)[done].mean()) / PS_PER_S
    further = float(records.output_tokens[done].mean()) - 1
    tpot_s = (whole.e2e_s - ttft_s) / further if further > 0 else 0.0
    return replace(whole, ttft_s=ttft_s, tpot_s=tpot_s if tpot_s > 0 else None)


def _kinds(pools: Sequence[ResolvedPool]) -> list[ResolvedPool]:
    """The first pool, and those that serve whole requests of another model or on another GPU."""
    kinds = {(pools[0].model.name, pools[0].profile.name): pools[0]}
    for pool in pools:
        if pool.pool.role == "both":
            kinds.setdefault((pool.model.name, pool.profile.name), pool)
    return list(kinds.values())


def _by_bands(
    bands: LoadBands,
    traffic: Traffic,
    run: SimulationResult,
    verdict: Verdict | None,
    differing: Sequence[LoadMeans],
) -> dict[str, Quantity]:
    """The same by the bands of one kind of engine."""
    steady = None if verdict is None else verdict.steady
    summary, adjustment = run.summary, bands.resolved.profile.adjustment
    judged = run.cascade is not None and run.cascade.by_answer
    latencies: tuple[tuple[Metric, str, Distribution | None], ...] = (
        ("e2e" if judged else "ttft", "ttft", summary.ttft_ms),  # what is judged is shown as it ends
        ("tpot", "tpot", summary.tpot_ms),
        ("e2e", "e2el", summary.e2el_ms),
    )
    found = {}
    for metric, name, latency in latencies:
        if latency is None or getattr(bands.sensitivities, metric) is None:
            continue
        lasting = name.replace("e2el", "e2e")
        quantities = {
            f"mean_{name}_ms": _banded_mean(bands, metric, lasting, latency.mean, steady, differing)
        }
        for percentile in ("p95", "p99"):
            value = latency.percentiles[int(percentile[1:])]
            quantities[f"{percentile}_{name}_ms"] = bands.around(metric, value, percentile)
        for key, quantity in quantities.items():
            if metric != "tpot":
                quantity = beside_client(quantity, traffic, adjustment=adjustment, unit_s=1e-3)
            found[key] = quantity
    return found


def _banded_mean(
    bands: LoadBands,
    metric: Metric,
    name: str,
    mean: float,
    steady: LoadMeans | None,
    differing: Sequence[LoadMeans],
) -> Quantity:
    """A simulated mean (ms) with its interval, which holds the mean of a run of any length, the steady part's, and of
    differing lengths."""
    means = [getattr(each, f"{name}_s") for each in differing]
    others = [bands.around(metric, each * 1e3) for each in means if each is not None]
    lasting = None if steady is None else getattr(steady, f"{name}_s")
    if lasting is not None:
        others.append(with_interval(lasting * 1e3, 0.0, 0.0))
    return bands.around(metric, mean).covering(*others)
