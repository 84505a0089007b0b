"""Compare two deployments on the same arrivals, request by request, with confidence intervals.

Both receive the same requests at the same times (common random numbers), so differences come from the deployments. The
intervals are for the mean over requests, from resampling blocks of consecutive requests. They cover chance in the
traffic, but not the error of the step model, which is the same for both.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from capacity.answers.datasheet_comparison import TimedLoad, datasheet_notes
from capacity.answers.deployment_run import run_service
from capacity.answers.engine_setup import make_workload, requests_of
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.flags import CLUSTER, with_flags
from capacity.base.record import AnswerRecord, WrittenRecord
from capacity.deployment import DeploymentFile, Service, Traffic, build, read_deployment
from capacity.hardware.pricing import Price, find_price_for_cost
from capacity.planning.evaluation.evaluate import deployment_label
from capacity.planning.variations.outcome import (
    Floats,
    Latencies,
    Outcome,
    Progress,
    block_indices,
    measure,
    outcome,
    relative_change,
    serve,
)
from capacity.planning.workers.worker_pool import (
    WorkerPool,
    open_pool,
    run_in_parallel,
    single_request,
    stop_if_recalled,
)
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.metrics import LatencySummary
from capacity.simulator.replications import PairedMetric, pair_runs, replication_seeds
from capacity.workload import Workload
from capacity.workload.windows import Window, take_busiest_window

BLOCKS = 20
DRAWS = 400
PERCENTILES = (50, 95, 99)
NO_SERVICE = Service()
DeploymentLike = str | Path | DeploymentFile | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two compared deployments, with its price and router settings."""

    resolved: ResolvedPool
    price: Price | None = None
    service: Service = NO_SERVICE

    def serve(self, workload: Workload) -> Latencies:
        """Simulate `workload` and return the latencies of its requests. Raises DoesNotFit and InvalidInput."""
        if self.service == NO_SERVICE:
            return measure(self.resolved, workload)
        self.resolved.memory.require_fit()
        return serve(self.resolved, self.service, workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(WrittenRecord):
    """Value of one metric on the second deployment minus that on the first, in seconds.

    `mean_s` is the mean over requests, `low_s` to `high_s` its 95 % interval; `significant`: the interval excludes 0.
    `faster_fraction` is the fraction of requests that the second deployment serves faster. The percentiles are those
    of the metric on each deployment.
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
    """Comparison of two deployments; `settings` lists each setting that differs: name, first value, second value."""

    SCHEMA: ClassVar[str] = "capacity/diff/v1"
    ROWS: ClassVar[str] = "differences"

    first: str
    second: str
    workload: str
    requests: int
    busiest_window: Window | None  # the compared window of longer traffic; None: all requests
    settings: tuple[tuple[str, str, str], ...]
    differences: tuple[Difference, ...]
    first_outcome: Outcome
    second_outcome: Outcome
    cost_change: float | None
    warnings: tuple[str, ...]
    replicated: tuple[PairedMetric, ...] = ()  # over several draws of the traffic, if requested


@validate_arguments
@with_flags
def diff(
    first: DeploymentLike,
    second: DeploymentLike,
    *,
    slo_window: str = "15m",
    workload: Workload | None = None,
    replications: int = 1,
    seed: int | None = None,
    cluster: Annotated[str | None, CLUSTER] = None,
    progress: Progress | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
) -> Diff:
    """Compare two deployments on the same arrivals, request by request, with confidence intervals.

    A deployment is a file (`--write-deployment` writes one), a DeploymentFile, or its fields. The traffic is that of
    the first deployment, unless `workload` is given; `seed` replaces its seed. `replications` draws the traffic that
    many times, simulates both deployments on each draw, and compares every metric pair by pair (`replicated`), on the
    Dask cluster at `cluster` (tcp://host:port) if given. Traffic longer than `slo_window` is compared on the busiest
    window of each draw. `progress(done, total)` counts the pairs. Raises DoesNotFit and InvalidInput.
    """
    if cluster is not None and replications == 1:
        raise InvalidInput("--cluster has no effect without --replications: add it, or leave --cluster out")
    left, right = read_single_pool(first), read_single_pool(second)
    if workload is None and right.traffic not in (left.traffic, Traffic()):
        raise InvalidInput("the deployments have different traffic: remove it from the second file")
    if workload is None and left.traffic == Traffic():
        raise InvalidInput(
            "the first deployment has no traffic: add [traffic] with input_len, output_len and request_rate, or a "
            "trace (`capacity simulate ... --write-deployment FILE` writes both)"
        )
    traffic = left.traffic if seed is None else left.traffic.model_copy(update={"seed": seed})
    sides = []
    for each in (left, right):
        resolved = resolve(each.model, each.pools[0], profiles=profiles, download=download)
        price = find_price_for_cost(resolved.profile.name, each.cost)
        sides.append(Side(resolved=resolved, price=price, service=each.service))
    before, after = sides
    longest = min(side.resolved.max_model_len for side in (before, after))
    (requests,), windows = take_busiest_window([requests_of(traffic, workload, longest)], slo_window)
    busiest = windows[0] if windows else None
    if replications == 1:
        return compare_pair(before, after, requests, busiest)
    if workload is not None or traffic.trace is not None:
        raise InvalidInput("all replications of a trace are identical: leave --replications out")
    seeds = replication_seeds(traffic.seed, replications)
    pair = _Pair(sides=(before, after), traffic=traffic, max_model_len=longest, slo_window=slo_window)
    with nullcontext() if cluster is None else open_pool(1, cluster, common=(pair,)) as worker_pool:
        compared = compare_pair(before, after, requests, busiest)
        replicated = _compare_draws(pair, seeds, worker_pool, progress)
        remarks = () if worker_pool is None else worker_pool.remarks
    return replace(compared, replicated=replicated, warnings=(*compared.warnings, *remarks))


Summaries = tuple[LatencySummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Both deployments, and the traffic that is drawn for them."""

    sides: tuple[Side, Side]
    traffic: Traffic
    max_model_len: int
    slo_window: str

    def simulate_both(self, seed: int) -> Summaries:
        """Simulate both deployments on the traffic with this seed, in this process or on a worker."""
        drawn = make_workload(self.traffic.model_copy(update={"seed": seed}), self.max_model_len)
        (requests,), _ = take_busiest_window([drawn], self.slo_window)
        runs = (
            run_service(
                [side.resolved],
                side.service,
                requests,
                scheduling=self.traffic.scheduling,
                seed=seed,
                progress=lambda *_: stop_if_recalled(),
            )
            for side in self.sides
        )
        return tuple(run.summary for run in runs)


def _compare_draws(
    pair: _Pair, seeds: Sequence[int], worker_pool: WorkerPool | None, progress: Progress | None
) -> tuple[PairedMetric, ...]:
    """Simulate both deployments on one traffic sample per seed, and return the paired comparison of each metric."""
    done = count(1)

    def tell() -> None:
        if progress is not None:
            progress(next(done), len(seeds))

    chains: list[Generator[int, Summaries, Summaries]] = [single_request(seed) for seed in seeds]
    served = run_in_parallel(
        chains, pair.simulate_both, worker_pool=worker_pool, function=_Pair.simulate_both, on_answer=tell
    )
    first, second = zip(*served, strict=True)
    return pair_runs(first, second)


def read_single_pool(described: DeploymentLike) -> DeploymentFile:
    """Return a deployment, read from its file or built from its fields. Raises InvalidInput for several pools."""
    if isinstance(described, DeploymentFile):
        deployment = described
    elif isinstance(described, Mapping):
        deployment = build(DeploymentFile, {"schema": "capacity/deployment/v1", **described})
    else:
        deployment = read_deployment(described)
    if len(deployment.pools) > 1:
        raise InvalidInput(
            f"the deployment has {len(deployment.pools)} pools: a comparison supports only one"
        )
    return deployment


def compare_pair(first: Side, second: Side, workload: Workload, window: Window | None = None) -> Diff:
    """Return the comparison of both deployments on `workload`, which may be the `window` of longer traffic.

    Raises DoesNotFit, and InvalidInput if no request is served by both.
    """
    sides = (first, second)
    served = [side.serve(workload) for side in sides]
    outcomes = [outcome(side.resolved, run, side.price) for side, run in zip(sides, served, strict=True)]
    each = (_difference(metric, *served) for metric in ("ttft", "tpot", "e2e"))
    differences = [difference for difference in each if difference is not None]
    if not differences:
        raise InvalidInput("no request is completed by both deployments, so they cannot be compared")
    tokens = workload.mean_prompt_tokens
    notes = (
        *(note for side in sides for note in side.resolved.notes),
        *(note for side in sides for note in side.resolved.split_notes(tokens)),
        *datasheet_notes(
            [
                TimedLoad(
                    resolved=side.resolved, seconds={"TTFT p95": s.ttft_p95_s, "TPOT p95": s.tpot_p95_s}
                )
                for side, s in zip(sides, outcomes, strict=True)
            ]
        ),
        *workload.notices,
    )
    return Diff(
        first=deployment_label(first.resolved),
        second=deployment_label(second.resolved),
        workload=workload.name,
        requests=len(workload),
        busiest_window=window,
        settings=_settings(first, second),
        differences=tuple(differences),
        first_outcome=outcomes[0],
        second_outcome=outcomes[1],
        cost_change=relative_change(outcomes[0].usd_per_hour, outcomes[1].usd_per_hour),
        warnings=tuple(dict.fromkeys(notes)),
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
    one, other = (
        {
            "model": side.resolved.model.name,
            "replicas": side.resolved.pool.replicas,
            **side.resolved.pool.model_dump(exclude={"model"}),
            **side.service.model_dump(),
        }
        for side in (first, second)
    )
    changed = ((name, value, other[name]) for name, value in one.items() if value != other[name])
    default = "the default"
    return tuple(
        (name, str(default if a is None else a), str(default if b is None else b)) for name, a, b in changed
    )
