"""`diff`, `tornado` and `advise` as functions: one deployment against another, against its inputs, against advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.base.errors import InvalidInput
from capacity.base.keywords import documented, split
from capacity.deployment import (
    Cost,
    Deployment,
    DeploymentFile,
    Pool,
    Traffic,
    build,
    deployment_of,
    read_deployment,
)
from capacity.hardware.pricing import price_of
from capacity.pool.resolve import resolve

if TYPE_CHECKING:
    from capacity.model import ModelSpec
    from capacity.planning.advice import AdviceList
    from capacity.planning.paired import Diff, Side
    from capacity.planning.sensitivity import Tornado
    from capacity.simulator.metrics import LatencySummary
    from capacity.simulator.replications import PairedMetric
    from capacity.workload import Workload

DeploymentLike = str | Path | DeploymentFile | Mapping[str, Any]


def diff(
    first: DeploymentLike,
    second: DeploymentLike,
    *,
    workload: Workload | None = None,
    replications: int = 1,
    seed: int | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
) -> Diff:
    """Two deployments on the same arrivals, request by request, with confidence.

    A deployment is a file (`--write-deployment` makes one), a DeploymentFile, or its fields. The traffic is the
    first one's, with `seed` in place of its own, unless `workload` is given. `replications` draws it that often, alike
    for both, and compares every metric pair by pair (`replicated`). Raises DoesNotFit and InvalidInput.
    """
    from dataclasses import replace

    from capacity.answers.engine_setup import make_workload
    from capacity.planning.paired import compare_pair

    left, right = _deployment(first), _deployment(second)
    if workload is None and right.traffic not in (left.traffic, Traffic()):
        raise InvalidInput(
            "the two deployments have different traffic: a comparison needs the same; leave out one"
        )
    if workload is None and left.traffic == Traffic():
        raise InvalidInput(
            "no traffic: it is the first deployment's, which has none; add [traffic] with input_len, output_len and "
            "request_rate, or a trace (`capacity simulate ... --write-deployment FILE` writes both)"
        )
    traffic = left.traffic if seed is None else left.traffic.model_copy(update={"seed": seed})
    requests = workload if workload is not None else make_workload(traffic)
    sides = [_side(deployment, profiles=profiles, download=download) for deployment in (left, right)]
    found = compare_pair(sides[0], sides[1], requests)
    if replications == 1:
        return found
    if workload is not None or traffic.trace is not None:
        raise InvalidInput(
            "replications of a trace are all the same run: leave them out, or generate requests from lengths and a rate"
        )
    return replace(found, replicated=_replicated(sides[0], sides[1], traffic, replications))


def _replicated(first: Side, second: Side, traffic: Traffic, count: int) -> tuple[PairedMetric, ...]:
    """Both sides on the same draws of the traffic, metric by metric."""
    from capacity.answers.deployment_run import run_service
    from capacity.answers.engine_setup import make_workload
    from capacity.simulator.replications import pair_runs, replication_seeds

    summaries: tuple[list[LatencySummary], list[LatencySummary]] = ([], [])
    for seed in replication_seeds(traffic.seed, count):
        requests = make_workload(traffic.model_copy(update={"seed": seed}))
        for side, found in zip((first, second), summaries, strict=True):
            run = run_service(
                [side.resolved], side.service, requests, scheduling=traffic.scheduling, seed=seed
            )
            found.append(run.summary)
    return pair_runs(*summaries)


def _deployment(described: DeploymentLike) -> DeploymentFile:
    if isinstance(described, DeploymentFile):
        deployment = described
    elif isinstance(described, Mapping):
        deployment = build(DeploymentFile, {"schema": "capacity/deployment/v1", **described})
    else:
        deployment = read_deployment(described)
    if len(deployment.pools) > 1:
        raise InvalidInput(
            f"a deployment of {len(deployment.pools)} pools cannot be compared yet: one pool each"
        )
    return deployment


def _side(deployment: DeploymentFile, *, profiles: str | Path | None, download: bool) -> Side:
    from capacity.planning.paired import Side

    pool = deployment.pools[0]
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    return Side(
        resolved=resolved,
        replicas=pool.replicas,
        price=price_of(resolved.profile.name, deployment.cost),
        service=deployment.service,
    )


@documented(Pool, Traffic, Cost)
def tornado(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Tornado:
    """Cost and p95 when each input is wrong by ±20 %: lengths, rate, hits, acceptance, price, step times.

    `progress(done, total)` is called as inputs are done. Raises DoesNotFit.
    """
    from capacity.answers.engine_setup import make_workload
    from capacity.planning.sensitivity import tornado_of

    deployment = _one_pool(model, options)
    pool = deployment.pool
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    requests = workload if workload is not None else make_workload(deployment.traffic)
    price = price_of(resolved.profile.name, deployment.cost)
    return tornado_of(resolved, requests, replicas=pool.replicas, price=price, progress=progress)


@documented(Pool, Traffic, Cost)
def advise(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> AdviceList:
    """The optimisation checklist, each line simulated for this deployment on these requests.

    `progress(done, total)` is called as changes are done. Raises DoesNotFit.
    """
    from capacity.answers.engine_setup import make_workload
    from capacity.model import ModelSpec, load_model
    from capacity.planning.advice import advise_on

    deployment = _one_pool(model, options)
    pool, name = deployment.pool, deployment.model
    spec = name if isinstance(name, ModelSpec) else load_model(name, download=download)
    requests = workload if workload is not None else make_workload(deployment.traffic)
    folder = None if profiles is None else str(profiles)
    price = price_of(pool.gpu, deployment.cost)
    return advise_on(
        spec, pool, requests, replicas=pool.replicas, price=price, profiles=folder, progress=progress
    )


def _one_pool(model: str | Path | ModelSpec | DeploymentFile, options: Mapping[str, Any]) -> Deployment:
    pool, traffic, cost = split(options, Pool, Traffic, Cost)
    return deployment_of(model, pool=pool, traffic=traffic, cost=cost)
