"""`curve` as a function: a deployment under rising load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.deployment import Cost, Pool, Traffic, build
from capacity.errors import InvalidInput
from capacity.keywords import documented, split
from capacity.resolve import resolve

if TYPE_CHECKING:
    from capacity.model import ModelSpec
    from capacity.planning.curves import Curve
    from capacity.workload import Workload


@documented(Pool, Traffic, Cost)
def curve(
    model: str | Path | ModelSpec,
    *,
    slo: Sequence[str] | str = (),
    goodput_target: float = 0.99,
    confidence: float = 0.9,
    rates: Sequence[float] | None = None,
    requests_per_user_hour: float | None = None,
    peak_rate: float | None = None,
    peak_to_mean: float = 1.6,
    hourly_rates: Sequence[float] | None = None,
    workload: Workload | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Curve:
    """Latency against rate, the knee, the highest rate within the SLO, and the users that this is.

    The traffic's own rate does not matter: its requests come faster or slower. `hourly_rates` (24, requests/s), or
    a `peak_rate` with `peak_to_mean`, ask for replicas by the hour. Raises DoesNotFit and InvalidInput.
    """
    from capacity.planning.curves import day_of, draw_curve
    from capacity.planning.trial import Goal
    from capacity.pricing import price_of
    from capacity.serving import make_workload
    from capacity.workload import parse_slos

    pool_fields, traffic_fields, cost_fields = split(options, Pool, Traffic, Cost)
    if not 0.5 <= confidence < 1:
        raise InvalidInput(f"confidence must be from 0.5 to below 1, not {confidence}")
    if rates is not None and not (rates and all(0 < rate < float("inf") for rate in rates)):
        raise InvalidInput("rates must be finite numbers above 0, at least one")
    if requests_per_user_hour is not None and not requests_per_user_hour > 0:
        raise InvalidInput(f"requests_per_user_hour must be above 0, not {requests_per_user_hour}")
    pool: Pool = build(Pool, pool_fields)
    resolved = resolve(model, pool, profiles=profiles, download=download)
    resolved.memory.require_fit()
    if workload is None and traffic_fields.get("trace") is None:
        traffic_fields = {"request_rate": 1.0, **traffic_fields}
    requests = workload if workload is not None else make_workload(build(Traffic, traffic_fields))
    cost: Cost = build(Cost, cost_fields)
    day = tuple(hourly_rates) if hourly_rates is not None else None
    if day is None and peak_rate is not None:
        day = day_of(peak_rate / peak_to_mean, peak_to_mean)
    return draw_curve(
        resolved,
        [requests],
        Goal(slos=parse_slos(slo), goodput_target=goodput_target),
        replicas=pool.replicas,
        confidence=confidence,
        rates=rates,
        requests_per_user_hour=requests_per_user_hour,
        day_rates_per_s=day,
        price=price_of(resolved.profile.name, cost),
    )
