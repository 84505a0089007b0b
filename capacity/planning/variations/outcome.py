"""What one deployment does with given requests, in the few figures that variants of it are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capacity.answers.steady_load import long_run_rate
from capacity.deployment import Billing
from capacity.hardware.pricing import Price, billed_gpus, usd_per_hour
from capacity.planning.bills.billing import load_cost
from capacity.planning.bills.saturated import full_load
from capacity.planning.evaluation.evaluate import Engines, run_engines
from capacity.planning.evaluation.step_error import Factors
from capacity.pool.resolve import ResolvedPool
from capacity.simulator.metrics import RequestTable
from capacity.simulator.verdict import judge
from capacity.workload import Workload

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """p95 latencies of the completed requests, and $ per request: as served, and at full load.

    None where there is no value: no request of two tokens, no price.
    """

    ttft_p95_s: float
    tpot_p95_s: float | None
    e2e_p95_s: float
    requests_per_s: float
    failed: int
    usd_per_hour: float | None
    usd_per_request_served: float | None
    usd_per_request_full: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Seconds of every request, in order of arrival; NaN where there is none."""

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    requests_per_s: float  # served for as long as the load lasts: filling and draining of the run left out
    hit_fraction: float = 0.0  # of prompt tokens that the prefix cache supplied


def measure(
    resolved: ResolvedPool, workload: Workload, *, replicas: int = 1, factors: Factors | None = None
) -> Latencies:
    """Simulate `workload` on `replicas` engines that take requests in turn. Raises DoesNotFit."""
    resolved.memory.require_fit()
    engines = Engines(resolved=resolved, replicas=replicas, factors=factors or Factors())
    return latencies_of(run_engines([engines], workload).records, workload)


def latencies_of(table: RequestTable, workload: Workload) -> Latencies:
    """The latencies that a run of `workload` left in its records."""
    done = table.completed
    return Latencies(
        ttft_s=table.latency_s("ttft"),
        tpot_s=table.latency_s("tpot"),
        e2e_s=table.latency_s("e2e"),
        requests_per_s=long_run_rate(table, judge(table, workload), workload) if done.any() else 0.0,
        hit_fraction=float(table.cached_tokens[done].sum() / max(table.prompt_tokens[done].sum(), 1)),
    )


def outcome(
    resolved: ResolvedPool,
    workload: Workload,
    *,
    replicas: int = 1,
    price: Price | None = None,
    factors: Factors | None = None,
    latencies: Latencies | None = None,
) -> Outcome:
    """The figures of one deployment; `latencies` spares the simulation where it was run already."""
    run = latencies or measure(resolved, workload, replicas=replicas, factors=factors)
    done = int(np.isfinite(run.e2e_s).sum())
    hourly = (
        None if price is None else usd_per_hour(price, billed_gpus(price, resolved.pool.num_gpus * replicas))
    )
    rate = run.requests_per_s
    lengths = workload.long_run_tokens
    served = full = None
    if hourly is not None and rate:
        load = full_load(resolved, lengths, replicas, factors=factors, hit_fraction=run.hit_fraction)
        full = load_cost(hourly, 1.0, load, Billing()).usd_per_request
        served = full * load.requests_per_s / rate
    return Outcome(
        ttft_p95_s=_p95(run.ttft_s) or 0.0,
        tpot_p95_s=_p95(run.tpot_s),
        e2e_p95_s=_p95(run.e2e_s) or 0.0,
        requests_per_s=rate,
        failed=len(workload) - done,
        usd_per_hour=hourly,
        usd_per_request_served=served,
        usd_per_request_full=full,
    )


def _p95(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.percentile(known, 95)) if len(known) else None


def change(before: float | None, after: float | None) -> float | None:
    """after / before - 1; None where either is missing."""
    return None if before is None or after is None or not before else after / before - 1


def block_indices(count: int, blocks: int, draws: int, seed: int) -> Sequence[npt.NDArray[np.int64]]:
    """Resamples of `count` requests in blocks of consecutive ones, so that bursts stay whole."""
    parts = [part for part in np.array_split(np.arange(count), blocks) if len(part)]
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(parts), size=(draws, len(parts)))
    return [np.concatenate([parts[i] for i in draw]) for draw in chosen]
