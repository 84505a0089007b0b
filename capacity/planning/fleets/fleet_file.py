"""The best fleet as a deployment file: its pools with their limits, the router before them, traffic and prices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.base.errors import InvalidInput
from capacity.deployment import Cost, DeploymentFile, Service, Traffic, build
from capacity.planning.fleets.fleet_records import FleetPlan

if TYPE_CHECKING:
    from capacity.model import ModelSpec


def deployment_of_fleet(
    answer: FleetPlan, model: str | Path | ModelSpec, options: Mapping[str, Any]
) -> DeploymentFile:
    """What `simulate` takes, reserve included. Traffic and prices are those of `options`, as `fleet` was asked.

    Raises InvalidInput where no fleet meets the service levels.
    """
    best = answer.best
    if best is None:
        raise InvalidInput("nothing meets the service levels: there is no fleet to write down")
    pools = [
        pool.pool.model_copy(
            update={
                "replicas": pool.replicas + pool.spare_replicas,
                **({} if pool.up_to_tokens is None else {"route_up_to_tokens": pool.up_to_tokens}),
            }
        )
        for pool in best.pools
    ]

    def said(spec: type[Traffic] | type[Cost]) -> Mapping[str, Any]:
        return {name: value for name, value in options.items() if name in spec.model_fields}

    name = model if isinstance(model, str | Path) else (model.hf_id or model.name)
    several = len(pools) > 1 or pools[0].replicas > 1
    return DeploymentFile(
        schema="capacity/deployment/v1",
        model=str(name),
        pools=tuple(pools),
        traffic=build(Traffic, said(Traffic)),
        service=build(Service, {"router": answer.router} if several else {}),
        cost=build(Cost, said(Cost)),
    )
