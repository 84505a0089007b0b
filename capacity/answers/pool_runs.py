"""What each pool of a deployment did in a run, where there are several: its requests, its times, its bill."""

from collections.abc import Sequence

import numpy as np

from capacity.answers.costs import Prices
from capacity.answers.records import PoolRun
from capacity.hardware.pricing import usd_per_hour
from capacity.pool.drafting import memory_with_draft
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import SimulationResult
from capacity.simulator.distribution import Distribution
from capacity.simulator.metrics import LatencyMetric


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
