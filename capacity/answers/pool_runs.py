"""A run by its pools, where there are several, and by the priority of its requests."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from capacity.answers.costs import Prices
from capacity.answers.records import PoolRun
from capacity.hardware.pricing import usd_per_hour
from capacity.pool.drafting import memory_with_draft
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult
from capacity.simulator.distribution import Distribution
from capacity.simulator.metrics import LatencyMetric, RequestTable, summarize
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """Requests of one priority, the lower served first: how many, and their latencies (ms); None without any."""

    priority: int
    requests: int
    completed: int
    preemptions: int
    mean_ttft_ms: float | None
    p95_ttft_ms: float | None
    mean_tpot_ms: float | None
    p95_tpot_ms: float | None
    mean_e2el_ms: float | None
    p95_e2el_ms: float | None


def priority_classes(requests: Workload, records: RequestTable) -> tuple[PriorityClass, ...]:
    """The classes of a run, the first served first; empty where all requests are alike."""
    if requests.priority is None or len(requests) != len(records):
        return ()
    kinds = np.unique(requests.priority)
    if len(kinds) < 2:
        return ()
    return tuple(_class(int(kind), _only(records, requests.priority == kind)) for kind in kinds)


def _only(records: RequestTable, chosen: np.typing.NDArray[np.bool_]) -> RequestTable:
    columns = {field.name: getattr(records, field.name) for field in fields(records)}
    return replace(
        records, **{name: column[chosen] for name, column in columns.items() if column is not None}
    )


def _class(priority: int, records: RequestTable) -> PriorityClass:
    summary = summarize(records)

    def mean(found: Distribution | None) -> float | None:
        return None if found is None else found.mean

    def p95(found: Distribution | None) -> float | None:
        return None if found is None else found.percentiles[95]

    return PriorityClass(
        priority=priority,
        requests=len(records),
        completed=summary.completed,
        preemptions=int(records.preemptions.sum()),
        mean_ttft_ms=mean(summary.ttft_ms),
        p95_ttft_ms=p95(summary.ttft_ms),
        mean_tpot_ms=mean(summary.tpot_ms),
        p95_tpot_ms=p95(summary.tpot_ms),
        mean_e2el_ms=mean(summary.e2el_ms),
        p95_e2el_ms=p95(summary.e2el_ms),
    )


def pool_runs(
    pools: Sequence[ResolvedPool], run: SimulationResult, prices: Prices | None
) -> tuple[PoolRun, ...]:
    """One record a pool, in the file's order. Latencies are of the requests whose last replica was of the pool."""
    pool_of = np.array([replica.pool for replica in run.replicas], dtype=np.int64)
    answered_by = np.full(len(run.records), -1, dtype=np.int64)
    if run.replica_of is not None:
        placed = run.replica_of >= 0
        answered_by[placed] = pool_of[run.replica_of[placed]]
    return tuple(_pool_run(place, pool, run, prices, answered_by) for place, pool in enumerate(pools))


def _pool_run(
    place: int,
    resolved: ResolvedPool,
    run: SimulationResult,
    prices: Prices | None,
    answered_by: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> PoolRun:
    pool = resolved.pool
    members = [replica for replica in run.replicas if replica.pool == place]
    there_s = sum((run.duration_s if m.until_s is None else m.until_s) - m.from_s for m in members)
    own = (answered_by == place) & run.records.completed

    def latency(metric: LatencyMetric) -> Distribution | None:
        return Distribution.of(run.records.latency_s(metric)[own] * 1e3)

    ttft, e2e = latency("ttft"), latency("e2e")
    return PoolRun(
        model=resolved.model.name,
        gpu=resolved.profile.name,
        gpus_per_replica=pool.num_gpus,
        engine=resolved.engine.label,
        role=pool.role,
        replicas=pool.replicas,
        kv_capacity_tokens=memory_with_draft(resolved).kv_capacity_tokens,
        requests=sum(member.requests for member in members),
        answered=int(own.sum()),
        busy_fraction=sum(m.busy_s for m in members) / there_s if there_s > 0 else 0.0,
        usd_per_hour=None
        if prices is None
        else usd_per_hour(prices[resolved.profile.name], pool.num_gpus * pool.replicas),
        mean_ttft_ms=None if ttft is None else ttft.mean,
        p95_ttft_ms=None if ttft is None else ttft.percentiles[95],
        mean_e2el_ms=None if e2e is None else e2e.mean,
        p95_e2el_ms=None if e2e is None else e2e.percentiles[95],
    )
