"""What each pool did in a run, as a table, where there are several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from capacity.base.latency_metrics import METRICS
from capacity.report.display import number_text
from capacity.report.layout import Column, Part, listed

if TYPE_CHECKING:
    from capacity.answers.pool_runs import PoolRun
    from capacity.answers.records import Simulation


def pool_tables(answer: Simulation) -> list[Part]:
    """The pools in their order, and who answered without one; nothing where there is one pool."""
    if not answer.pools:
        return []
    total = len(answer.run.records)
    columns: list[Column[PoolRun]] = [
        ("", "left", _named),
        ("replicas", "right", lambda pool: f"{pool.replicas:,}"),
        ("of", "left", _gpus),
        ("requests", "right", lambda pool: f"{pool.requests:,}"),
        ("answered", "right", lambda pool: f"{pool.answered / total:.1%}" if total else "-"),
        ("busy", "right", lambda pool: f"{pool.busy_fraction:.0%}"),
        *_latency_columns(answer),
    ]
    if any(pool.usd_per_hour is not None for pool in answer.pools):
        columns.insert(6, ("$/h", "right", _bill))
    cascade, table = answer.run.cascade, listed("Pools", answer.pools, *columns)
    if cascade is None or not cascade.from_cache:
        return [table]
    return [
        table,
        f"{cascade.from_cache / total:.1%} were answered by the semantic cache, and reached no pool",
    ]


def _latency_columns(answer: Simulation) -> Iterator[Column[PoolRun]]:
    """Mean and 95th percentile with the digits that the whole deployment's prediction leaves."""
    for key in answer.pools[0].latencies_ms:

        def cell(pool: PoolRun, key: str = key) -> str:
            found = pool.latencies_ms[key]
            if found is None:
                return "-, -"
            mean, p95 = (answer.predicted_ms.get(f"{statistic}_{key}_ms") for statistic in ("mean", "p95"))
            return f"{number_text(found.mean, mean)}, {number_text(found.percentiles[95], p95)}"

        yield (f"{METRICS[key].label} mean, p95 ms", "right", cell)


def _named(pool: PoolRun) -> str:
    return pool.model if pool.role == "both" else f"{pool.model}, {pool.role}"


def _gpus(pool: PoolRun) -> str:
    return pool.gpu if pool.gpus_per_replica == 1 else f"{pool.gpus_per_replica} x {pool.gpu}"


def _bill(pool: PoolRun) -> str:
    return "-" if pool.usd_per_hour is None else f"{pool.usd_per_hour:,.2f}"
