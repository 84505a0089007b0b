"""Key results of one deployment on given requests, for comparison with variants of the deployment."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from capacity.answers.deployment_run import measured_capacity, run_service
from capacity.answers.engine_setup import requests_of
from capacity.answers.steady_load import long_run_rate
from capacity.base.keywords import split
from capacity.deployment import Cost, Deployment, DeploymentFile, Pool, Service, Traffic, make_deployment
from capacity.hardware.pricing import SECONDS_PER_HOUR, Price, billed_gpus, find_price_for_cost, usd_per_hour
from capacity.model import ModelSpec
from capacity.planning.evaluation.evaluate import EngineGroup, deployment_label, run_engines
from capacity.planning.evaluation.step_error import Factors
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.capacity_probe import Capacity
from capacity.simulator.metrics import RequestTable
from capacity.simulator.verdict import judge
from capacity.workload import Workload
from capacity.workload.windows import Window, take_busiest_window

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]
Item = TypeVar("Item")


def report_each(items: Iterable[Item], total: int, progress: Progress | None) -> Iterator[Item]:
    """Yield the items; after each, report the number done and `total` to `progress`."""
    for number, item in enumerate(items):
        yield item
        if progress is not None:
            progress(number + 1, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedDeployment:
    """Current deployment, and the requests (of the busiest window, if any) on which its variants are compared."""

    file: Deployment
    resolved: ResolvedPool
    requests: Workload
    busiest_window: Window | None
    price: Price | None
    profiles: str | Path | None

    @property
    def deployment(self) -> str:
        return deployment_label(self.resolved)

    @property
    def workload(self) -> str:
        return self.requests.name

    @classmethod
    def read(
        cls,
        model: str | Path | ModelSpec | DeploymentFile,
        options: Mapping[str, Any],
        question: str,
        slo_window: str,
        workload: Workload | None,
        profiles: str | Path | None,
        download: bool,
    ) -> "ComparedDeployment":
        """Resolve a deployment and generate its requests; `question` is the name of the command for error messages."""
        pool, traffic, cost = split(options, Pool, Traffic, Cost)
        file = make_deployment(model, pool=pool, traffic=traffic, cost=cost, question=question)
        resolved = resolve(file.model, file.pool, profiles=profiles, download=download)
        whole = requests_of(file.traffic, workload, resolved.max_model_len)
        (requests,), windows = take_busiest_window([whole], slo_window)
        return cls(
            file=file,
            resolved=resolved,
            requests=requests,
            busiest_window=windows[0] if windows else None,
            price=find_price_for_cost(resolved.profile.name, file.cost),
            profiles=profiles,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """p95 latencies of the completed requests, and cost in $ per request at the served load and at full load.

    TPOT is None if no request has two output tokens; costs are None without a price.
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
    """Latencies of all requests in seconds, in order of arrival; NaN if undefined, as TTFT of a failed request."""

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    requests_per_s: float  # steady-state throughput, without warm-up and drain
    full_per_s: float  # throughput at full load


def measure(resolved: ResolvedPool, workload: Workload, *, stretch: float = 1.0) -> Latencies:
    """Simulate `workload` on round-robin replicas, with step times multiplied by `stretch`; return the latencies.

    Raises DoesNotFit.
    """
    resolved.memory.require_fit()
    factors = Factors(prefill=stretch, decode=stretch)
    engines = EngineGroup(resolved=resolved, replicas=resolved.pool.replicas, factors=factors)
    run = run_engines([engines], workload)
    capacity = measured_capacity([resolved], workload)
    return latencies_of(run.records, workload, capacity and capacity.scale(1 / stretch))


def serve(resolved: ResolvedPool, service: Service, workload: Workload) -> Latencies:
    """Simulate `workload` on the pool's replicas behind a router; return the latencies. Raises InvalidInput."""
    run = run_service([resolved], service, workload)
    return latencies_of(run.records, workload, measured_capacity([resolved], workload, service))


def latencies_of(table: RequestTable, workload: Workload, capacity: Capacity | None) -> Latencies:
    """Return the latencies and throughput of a simulation of `workload`, on a deployment with the given capacity."""
    rate = 0.0
    if table.completed.any():
        rate = long_run_rate(table, judge(table, workload, capacity=capacity), workload)
    most = rate if capacity is None else capacity.requests_per_s
    return Latencies(
        ttft_s=table.latency_s("ttft"),
        tpot_s=table.latency_s("tpot"),
        e2e_s=table.latency_s("e2el"),
        requests_per_s=rate,
        full_per_s=max(most, rate),  # a closed loop may exceed the estimated capacity
    )


def outcome(resolved: ResolvedPool, run: Latencies, price: Price | None = None) -> Outcome:
    gpus = resolved.pool.num_gpus * resolved.pool.replicas
    hourly = None if price is None else usd_per_hour(price, billed_gpus(price, gpus))
    served = full = None
    if hourly is not None and run.requests_per_s:
        served, full = (hourly / SECONDS_PER_HOUR / each for each in (run.requests_per_s, run.full_per_s))
    return Outcome(
        ttft_p95_s=_p95(run.ttft_s) or 0.0,
        tpot_p95_s=_p95(run.tpot_s),
        e2e_p95_s=_p95(run.e2e_s) or 0.0,
        requests_per_s=run.requests_per_s,
        failed=int((~np.isfinite(run.e2e_s)).sum()),
        usd_per_hour=hourly,
        usd_per_request_served=served,
        usd_per_request_full=full,
    )


def _p95(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.percentile(known, 95)) if len(known) else None


def relative_change(before: float | None, after: float | None) -> float | None:
    """Return after / before - 1; None if either is missing."""
    return None if before is None or after is None or not before else after / before - 1


def block_indices(count: int, blocks: int, draws: int, seed: int) -> Sequence[npt.NDArray[np.int64]]:
    """Return `draws` resamples of `count` request indices, in blocks of consecutive requests to keep bursts intact."""
    parts = [part for part in np.array_split(np.arange(count), blocks) if len(part)]
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(parts), size=(draws, len(parts)))
    return [np.concatenate([parts[i] for i in draw]) for draw in chosen]
