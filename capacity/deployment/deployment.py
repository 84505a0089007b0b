"""Input of an analysis, from keywords or a deployment file, as validated specs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.base.registry import BY_NAME
from capacity.base.spec import Spec
from capacity.deployment.building import build
from capacity.deployment.cost import Cost
from capacity.deployment.file import DeploymentFile
from capacity.deployment.images import add_encoder_tokens, check_language_model_only
from capacity.deployment.pool import Pool
from capacity.deployment.service import Service
from capacity.deployment.traffic import Traffic
from capacity.deployment.used_fields import reject_unused_fields

if TYPE_CHECKING:
    from capacity.model import ModelSpec

Fields = Mapping[str, Any]
NOTHING: Fields = {}

# input of `estimate` and `explain`: one kind of request, and the number of requests
ESTIMATE_TRAFFIC = BY_NAME["estimate"].traffic_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on pools of GPUs, with its traffic, routing and price."""

    model: "str | Path | ModelSpec"
    pools: tuple[Pool, ...]
    traffic: Traffic
    service: Service
    cost: Cost

    @property
    def specs(self) -> tuple[Spec, ...]:
        return (*self.pools, self.traffic, self.service, self.cost)

    @property
    def pool(self) -> Pool:
        """Return the only pool. Raises InvalidInput if there are several."""
        if len(self.pools) > 1:
            raise InvalidInput(
                f"the deployment has {len(self.pools)} pools, but this command supports one: use `capacity simulate`, "
                "or keep one pool in the file"
            )
        return self.pools[0]


def make_deployment(
    model: "str | Path | ModelSpec | DeploymentFile",
    *,
    pool: Fields = NOTHING,
    traffic: Fields = NOTHING,
    service: Fields = NOTHING,
    cost: Fields = NOTHING,
    question: str = "",
    **other_keywords: Any,
) -> Deployment:
    """Return a deployment from keyword fields or from a deployment file; a file cannot be combined with fields.

    `question`: the command that uses the deployment; `other_keywords`: its other keywords. Raises InvalidInput for an
    invalid field, for a field that does not affect the answer, and for a field given together with a file.
    """
    if isinstance(model, DeploymentFile):
        if other := next((name for fields in (pool, traffic, service, cost) for name in fields), None):
            raise InvalidInput(f"{other!r} cannot be combined with a deployment file: set it in the file")
        deployment = make_from(Deployment, model)
    else:
        deployment = Deployment(
            model=model,
            pools=(build(Pool, pool),),
            traffic=build(Traffic, traffic),
            service=build(Service, service),
            cost=build(Cost, cost),
        )
        reject_unused_fields(question, deployment.specs, (*pool, *traffic, *service, *cost), **other_keywords)
    check_language_model_only(any(each.language_model_only for each in deployment.pools), deployment.traffic)
    return replace(deployment, traffic=add_encoder_tokens(deployment.traffic, deployment.model))
