"""Two deployments on the same arrivals: what changes for each request, with confidence.

The same requests at the same instants go through both (common random numbers), so that differences are those of the
deployments. Intervals are of the mean over requests, by resampling blocks of consecutive ones; they speak of the
traffic's chance, not of the step model's error, which both sides share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from capacity.answers.deployment_run import run_service
from capacity.base.errors import InvalidInput
from capacity.base.record import AnswerRecord, Written
from capacity.deployment import Service
from capacity.hardware.pricing import Price
from capacity.planning.outcome import (
    Floats,
    Latencies,
    Outcome,
    block_indices,
    change,
    latencies_of,
    measure,
    outcome,
)
from capacity.pool.resolve import ResolvedPool
from capacity.simulator.replications import PairedMetric
from capacity.workload import Workload

BLOCKS = 20
DRAWS = 400
PERCENTILES = (50, 95, 99)
NO_SERVICE = Service()


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two deployments."""

    resolved: ResolvedPool
    replicas: int = 1
    price: Price | None = None
    service: Service = NO_SERVICE

    def serve(self, workload: Workload) -> Latencies:
        """What its clients see. Raises DoesNotFit and InvalidInput."""
        if self.service == NO_SERVICE:
            return measure(self.resolved, workload, replicas=self.replicas)
        self.resolved.memory.require_fit()
        return latencies_of(run_service([self.resolved], self.service, workload).records, workload)

    @property
    def label(self) -> str:
        """Model, GPUs and engine in a line."""
        gpus = f"{self.replicas} x {self.resolved.pool.num_gpus} {self.resolved.profile.name}"
        return f"{self.resolved.model.name} on {gpus}, {self.resolved.engine.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Written):
    """Second minus first, of one metric (s): the mean over requests with its 95 % interval, and percentiles.

    `faster_fraction` is the share of requests that the second serves sooner. `significant`: the interval does not
    hold 0.
    """

    LAST: ClassVar[tuple[str, ...]] = ("significant",)

    metric: str
    requests: int
    mean_s: float
    low_s: float
    high_s: float
    faster_fraction: float
    first_percentiles_s: dict[str, float]
    second_percentiles_s: dict[str, float]

    @property
    def significant(self) -> bool:
        return self.low_s > 0 or self.high_s < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff(AnswerRecord):
    """Two deployments side by side; `settings` lists what differs: name, first, second."""

    SCHEMA: ClassVar[str] = "capacity/diff/v1"

    first: str
    second: str
    workload: str
    requests: int
    settings: tuple[tuple[str, str, str], ...]
    differences: tuple[Difference, ...]
    first_outcome: Outcome
    second_outcome: Outcome
    cost_change: float | None
    warnings: tuple[str, ...]
    replicated: tuple[PairedMetric, ...] = ()  # over several draws of the traffic, where they were asked for


def compare_pair(first: Side, second: Side, workload: Workload) -> Diff:
    """Serve `workload` with both. Raises DoesNotFit; InvalidInput where nothing is served by both."""
    seen = [side.serve(workload) for side in (first, second)]
    outcomes = [
        outcome(side.resolved, workload, replicas=side.replicas, price=side.price, latencies=latencies)
        for side, latencies in zip((first, second), seen, strict=True)
    ]
    differences = [
        found for metric in ("ttft", "tpot", "e2e") if (found := _difference(metric, *seen)) is not None
    ]
    if not differences:
        raise InvalidInput("no request is served by both deployments: there is nothing to compare")
    return Diff(
        first=first.label,
        second=second.label,
        workload=workload.name,
        requests=len(workload),
        settings=_settings(first, second),
        differences=tuple(differences),
        first_outcome=outcomes[0],
        second_outcome=outcomes[1],
        cost_change=change(outcomes[0].usd_per_hour, outcomes[1].usd_per_hour),
        warnings=tuple(dict.fromkeys((*first.resolved.notes, *second.resolved.notes, *workload.notices))),
    )


def _difference(metric: str, first: Latencies, second: Latencies) -> Difference | None:
    before: Floats = getattr(first, f"{metric}_s")
    after: Floats = getattr(second, f"{metric}_s")
    both = np.isfinite(before) & np.isfinite(after)
    if not both.any():
        return None
    before, after = before[both], after[both]
    gaps = after - before
    means = [float(gaps[rows].mean()) for rows in block_indices(len(gaps), BLOCKS, DRAWS, seed=0)]
    return Difference(
        metric=metric,
        requests=len(gaps),
        mean_s=float(gaps.mean()),
        low_s=float(np.percentile(means, 2.5)),
        high_s=float(np.percentile(means, 97.5)),
        faster_fraction=float((gaps < 0).mean()),
        first_percentiles_s=_percentiles(before),
        second_percentiles_s=_percentiles(after),
    )


def _percentiles(values: Floats) -> dict[str, float]:
    return {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}


def _settings(first: Side, second: Side) -> tuple[tuple[str, str, str], ...]:
    described = []
    for side in (first, second):
        fields = {
            "model": side.resolved.model.name,
            "replicas": side.replicas,
            **side.resolved.pool.model_dump(),
            **side.service.model_dump(),
        }
        described.append(fields)
    names = [name for name in described[0] if described[0][name] != described[1][name]]
    return tuple((name, str(described[0][name]), str(described[1][name])) for name in names)
