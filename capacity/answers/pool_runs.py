"""Results of a run by pool, if there are several, and by priority of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from capacity.answers.costs import Prices
from capacity.base.latency_metrics import METRICS, REQUEST_METRICS
from capacity.hardware.pricing import usd_per_hour
from capacity.pool.drafting import memory_with_draft
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult
from capacity.simulator.distribution import Distribution, flatten_latencies
from capacity.simulator.metrics import RequestTable, summarize
from capacity.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroup:
    """A group of requests of a run, with the distribution of each latency metric; the JSON has the means and p95s."""

    latencies_ms: Mapping[str, Distribution | None]

    def to_dict(self) -> dict[str, object]:
        names = [field.name for field in fields(self) if field.name != "latencies_ms"]
        return {name: getattr(self, name) for name in names} | flatten_latencies(
            self.latencies_ms, ("mean", "p95")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass(RequestGroup):
    """Requests of one priority; lower numbers are served first."""

    priority: int
    requests: int
    completed: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRun(RequestGroup):
    """Results of one pool, if a run has several: it received `requests` requests and completed `answered` of them.

    The other requests were sent to another pool, lost or rejected. Latencies are those of the completed requests, from
    their arrival at the deployment. `busy_fraction`: fraction of their lifetime in which the replicas were busy.
    """

    model: str
    gpu: str
    gpus_per_replica: int
    engine: str
    role: str
    replicas: int
    kv_capacity_tokens: int
    requests: int
    answered: int
    busy_fraction: float
    usd_per_hour: float | None


def priority_classes(requests: Workload, records: RequestTable) -> tuple[PriorityClass, ...]:
    """Return the priority classes of a run in the order of service; empty if all requests have the same priority."""
    if requests.priority is None or len(requests) != len(records):
        return ()
    kinds = np.unique(requests.priority)
    if len(kinds) < 2:
        return ()
    classes = []
    for kind in kinds.tolist():
        rows = records.rows(requests.priority == kind)
        summary = summarize(rows)
        classes.append(
            PriorityClass(
                priority=kind,
                requests=len(rows),
                completed=summary.completed,
                preemptions=int(rows.preemptions.sum()),
                latencies_ms={key: summary.latencies_ms[key] for key in REQUEST_METRICS},
            )
        )
    return tuple(classes)


def pool_runs(
    pools: Sequence[ResolvedPool], run: SimulationResult, prices: Prices | None
) -> tuple[PoolRun, ...]:
    """Return the results of each pool, in the order of `pools`. A request counts for the pool of its last replica."""
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
        latencies_ms={
            key: Distribution.from_values(run.records.latency_s(key)[own] * 1e3)
            for key, metric in METRICS.items()
            if metric.from_arrival
        },
    )
