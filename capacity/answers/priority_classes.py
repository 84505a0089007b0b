"""A run by the priority of its requests: what each class sees."""

from dataclasses import dataclass, fields, replace

import numpy as np

from capacity.simulator.distribution import Distribution
from capacity.simulator.metrics import RequestTable, summarize
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
