"""`estimate`: performance of one deployment under a load, and the number of replicas that serve it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from capacity.answers.estimate import estimate_of
from capacity.answers.phases import estimate_fields
from capacity.answers.records import Estimate
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, make_deployment
from capacity.deployment.use_cases import service_levels
from capacity.hardware.grid_carbon import co2_g_per_kwh
from capacity.hardware.pricing import find_price_for_cost
from capacity.model import ModelSpec
from capacity.pool.resolve import resolve


@document_options(Pool, Traffic, Cost)
@validate_arguments
def estimate(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    slo: Sequence[str] | str = (),
    grid_region: str | None = None,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Estimate:
    """Return TTFT, TPOT, throughput, cost and energy for a `batch_size`, a `concurrency` or a `request_rate`.

    A batch is computed by a closed form without queueing. Other loads are simulated as by `simulate`; the values are
    those of steady state, including queueing. `replicas_needed` is the number of replicas that serve the load within
    `slo` or the SLO of the use case; it is computed for `users`, for a rate with an `slo`, and for a rate that one
    engine cannot serve. `grid_region` (a country, or `world`) adds the carbon of the drawn energy.

    Raises DoesNotFit if the model or that many requests exceed the memory, UnknownName for an unknown region, and
    InvalidInput for invalid settings.
    """
    pool, traffic, cost = split(options, Pool, Traffic, Cost)
    deployment = make_deployment(
        model, pool=pool, traffic=estimate_fields(traffic), cost=cost, question="estimate"
    )
    asked = deployment.traffic
    levels = service_levels(slo, asked)
    if levels:
        from capacity.workload import parse_slos  # loads numpy

        parse_slos(levels)  # invalid levels are reported before a missing price
    resolved = resolve(deployment.model, deployment.pool, profiles=profiles, download=download)
    price = find_price_for_cost(resolved.profile.name, deployment.cost)
    at_a_rate = asked.request_rate is not None and asked.concurrency is None
    if slo and not at_a_rate:
        raise InvalidInput("--slo needs --request-rate or --users in estimate: give one of them")
    answer = estimate_of(resolved, asked, price)
    if grid_region is not None:
        drawn = answer.energy.drawn.with_carbon(co2_g_per_kwh(grid_region))
        answer = replace(answer, energy=replace(answer.energy, drawn=drawn))
    if not at_a_rate or not (levels or asked.users or answer.verdict in ("saturated", "overloaded")):
        return answer
    from capacity.planning.sizing.replicas_needed import replicas_needed  # loads the planner

    needed = replicas_needed(resolved, asked, slo=slo, price=price, profiles=profiles)
    return replace(answer, replicas_needed=needed)
