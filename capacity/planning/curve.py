"""`curve` as a function: a deployment under rising load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.base.errors import InvalidInput
from capacity.base.keywords import documented, split
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, deployment_of
from capacity.pool.resolve import resolve

if TYPE_CHECKING:
    from capacity.model import ModelSpec
    from capacity.planning.curves import Curve
    from capacity.workload import Workload


@documented(Pool, Traffic, Cost)
def curve(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo: Sequence[str] | str = (),
    goodput_target: float = 0.99,
    confidence: float = 0.9,
    rates: Sequence[float] | None = None,
    requests_per_user_hour: float | None = None,
    peak_rate: float | None = None,
    peak_to_mean: float = 1.6,
    hourly_rates: Sequence[float] | None = None,
    replications: int = 3,
    progress: Callable[[int, int], None] | None = None,
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Curve:
    """Latency against rate, the knee, the highest rate within the SLO, and the users that this is.

    The traffic's own rate does not matter: its requests come faster or slower. `hourly_rates` (24, requests/s), or
    a `peak_rate` with `peak_to_mean`, ask for replicas by the hour. Generated traffic is drawn `replications` times,
    for the interval that sampling leaves. Raises DoesNotFit and InvalidInput.
    """
    from capacity.hardware.pricing import price_of
    from capacity.planning.curves import day_of, draw_curve
    from capacity.planning.trial import Goal
    from capacity.workload import parse_slos

    if not 0.5 <= confidence < 1:
        raise InvalidInput(f"confidence must be from 0.5 to below 1, not {confidence}")
    if rates is not None and not (rates and all(0 < rate < float("inf") for rate in rates)):
        raise InvalidInput("rates must be finite numbers above 0, at least one")
    if requests_per_user_hour is not None and not requests_per_user_hour > 0:
        raise InvalidInput(f"requests_per_user_hour must be above 0, not {requests_per_user_hour}")
    pool_fields, traffic_fields, cost_fields = split(options, Pool, Traffic, Cost)
    deployment = deployment_of(model, pool=pool_fields, traffic=traffic_fields, cost=cost_fields)
    pool, traffic = deployment.pool, deployment.traffic
    resolved = resolve(deployment.model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    if traffic.trace is None and "request_rate" not in traffic.model_fields_set:
        traffic = traffic.model_copy(update={"request_rate": 1.0})
    if replications < 1:
        raise InvalidInput(f"replications must be at least 1, not {replications}")
    draws = (workload,) if workload is not None else _draws(traffic, replications)
    day = tuple(hourly_rates) if hourly_rates is not None else None
    if day is None and peak_rate is not None:
        day = day_of(peak_rate / peak_to_mean, peak_to_mean)
    return draw_curve(
        resolved,
        draws,
        Goal(slos=parse_slos(slo), goodput_target=goodput_target),
        replicas=pool.replicas,
        confidence=confidence,
        rates=rates,
        requests_per_user_hour=requests_per_user_hour,
        day_rates_per_s=day,
        progress=progress,
        price=price_of(resolved.profile.name, deployment.cost),
    )


def _draws(traffic: Traffic, count: int) -> tuple[Workload, ...]:
    """The traffic with `count` seeds; once where it is a trace."""
    from capacity.answers.engine_setup import make_workload

    seeds = [traffic.seed] if traffic.trace is not None else range(traffic.seed, traffic.seed + count)
    return tuple(make_workload(traffic.model_copy(update={"seed": seed})) for seed in seeds)
