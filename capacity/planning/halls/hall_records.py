"""Records of a hall: the deployment of each model within a power budget, and the options that were not chosen."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from capacity.base.quantity import Quantity
from capacity.base.record import AnswerRecord
from capacity.planning.records import LaunchLine

HallObjective = Literal["power", "cost", "gpus", "energy", "carbon"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HallOption:
    """A GPU under a power cap, with the deployment that serves all traffic of one model on it.

    `power_cap_watts` None: no cap. If no deployment was found, `reason` states why, and values are None or, with
    `bound`, lower bounds. `chosen`: whether the hall uses this GPU and cap for the model.
    """

    gpu: str
    power_cap_watts: float | None
    engine: str | None
    replicas: int | None
    num_gpus: int | None
    provisioned_watts: float | None
    drawn_watts: float | None
    usd_per_hour: float | None
    bound: bool
    chosen: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HallModel:
    """Deployment of one model in a hall, at the traffic that it serves.

    `provisioned_watts` are those of `plan`: GPUs at their cap, hosts, network and cooling at full use. `drawn_watts`
    are those of the facility at the served load, with the 90 % interval of the GPUs' power. `options` are all GPUs and
    power caps that were considered, each for the whole traffic of the model.
    """

    model: str
    slos: tuple[str, ...]
    requests_per_s: float
    served_requests_per_s: float
    output_tokens_per_s: float
    gpu: str
    power_cap_watts: float | None
    engine: str
    replicas: int
    num_gpus: int
    provisioned_watts: float
    drawn_watts: Quantity
    joules_per_output_token: Quantity
    usd_per_hour: float | None
    co2_g_per_hour: float | None
    launch: tuple[LaunchLine, ...]
    options: tuple[HallOption, ...]

    @property
    def served_share(self) -> float:
        return self.served_requests_per_s / self.requests_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HallPlan(AnswerRecord):
    """Result of `plan_hall`: a deployment for each model, together within `power_budget_watts` of provisioned power.

    `served_share`: smallest share of a model's traffic that is served; all models have the same share, except for
    rounding to whole replicas. `headroom`: traffic that the unused budget could serve in the same mix, relative to the
    given traffic; 0 if a part is not served. `limit`: resource that limits the served traffic; None if all of it is
    served.
    """

    SCHEMA: ClassVar[str] = "capacity/hall/v1"
    ROWS: ClassVar[str] = "models"

    power_budget_watts: float
    objective: HallObjective
    confidence: float
    served_share: float
    headroom: float
    limit: str | None
    provisioned_watts: float
    drawn_watts: Quantity
    pue: float
    usd_per_hour: float | None
    co2_g_per_hour: float | None
    models: tuple[HallModel, ...]
    prices: tuple[str, ...]
    notes: tuple[str, ...]
