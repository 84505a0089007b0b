"""Records of `fleet`: pools of replicas by request length, every layout tried, and the best layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from capacity.base.errors import InvalidInput
from capacity.base.mappings import select
from capacity.base.quantity import sum_if_known
from capacity.base.record import AnswerRecord, WrittenRecord
from capacity.deployment import Cost, DeploymentFile, Pool, Service, Traffic, build
from capacity.planning.evaluation.slo_evaluation import Level, WindowLevels
from capacity.planning.records import Conditional, LaunchLine
from capacity.planning.space import Objective
from capacity.workload.windows import Window

if TYPE_CHECKING:
    from capacity.model import ModelSpec

Outcome = Literal["planned", "no answer", "cannot be cheaper", "not reached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPool:
    """One pool with its part of the traffic; `replicas` serve the load, `spare_replicas` are additional.

    `up_to_tokens` is the largest request length that the pool serves, None without a limit. `levels` are the SLO
    results of the pool's requests, with step times at `confidence`; for traffic longer than the SLO window, they
    describe the worst window, given in `window`. `router` distributes requests within the pool.
    """

    label: str
    up_to_tokens: int | None
    request_share: float
    requests_per_s: float
    input_tokens: float
    output_tokens: float
    pool: Pool
    router: str
    replicas: int
    spare_replicas: int
    num_gpus: int
    billed_gpus: int
    usd_per_hour: float | None
    prefill_share: float | None
    levels: tuple[Level, ...]
    confidence: float
    launch: tuple[LaunchLine, ...]
    window: Window | None = None

    def objective(self, minimised: Objective) -> float:
        """Return the value that the search minimises, spare replicas included: $ per hour, or number of GPUs."""
        return float(self.num_gpus) if minimised == "gpus" else self.usd_per_hour or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(WrittenRecord):
    """Pools for consecutive ranges of request lengths, with the thresholds between them.

    `num_pools` is the number requested; `pools` has only one if all requests are below a single threshold, or
    all above. For three or more pools, only the cheapest layout over all thresholds is recorded. `pools` is empty if
    no layout was found; `reason` then gives the cause. `objective` is the minimised value, spare replicas included ($
    per hour, or GPUs); None without pools.
    """

    FIRST: ClassVar[tuple[str, ...]] = ("threshold_tokens",)
    LAST: ClassVar[tuple[str, ...]] = ("num_gpus", "usd_per_hour", "usd_per_request")

    thresholds_tokens: tuple[int, ...]
    num_pools: int
    outcome: Outcome
    reason: str | None = None
    pools: tuple[FleetPool, ...] = ()
    objective: float | None = None
    proved: bool

    @property
    def threshold_tokens(self) -> int | None:
        """Return the threshold of a layout of two pools in tokens; None for any other number of pools."""
        return self.thresholds_tokens[0] if self.num_pools == 2 else None

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs in use in all pools, not rounded up to whole instances."""
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def usd_per_hour(self) -> float | None:
        """Return the cost of all pools in $/h; None if a pool has no price."""
        return sum_if_known([pool.usd_per_hour for pool in self.pools])

    @property
    def usd_per_request(self) -> float | None:
        """Return the cost per offered request in $; None without a price or a finite request rate."""
        usd, rate = self.usd_per_hour, sum(pool.requests_per_s for pool in self.pools)
        return None if usd is None or not 0 < rate < float("inf") else usd / rate / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProof:
    """Result of simulating all pools of the best layout behind their router on all requests, without spare replicas.

    For traffic longer than the SLO window, `levels` are the SLO results in `window`, the worst of `windows`.
    """

    requests: int
    met: bool
    levels: tuple[Level, ...]
    window: Window | None = None
    windows: tuple[WindowLevels, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHour:
    """One hour of a day: request rate, and replicas of each pool as found by simulation, spare replicas included."""

    hour: int
    request_rate_per_s: float
    replicas: tuple[int, ...]
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDay:
    """Cost of a day with replicas adjusted every hour, compared with the fixed number of replicas for the peak."""

    hours: tuple[FleetHour, ...]
    scaled_usd_per_day: float | None
    fixed_usd_per_day: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan(AnswerRecord):
    """Cheapest fleet; `layouts` are one pool, two pools for each threshold in order, and the best of more pools.

    `conditional` are alternatives to each pool of the best layout, by label; without a best layout, alternatives to a
    single pool. Their objective is lower, but they lose quality or use drafts not measured for this model.

    `best` is the layout with the lowest objective (ties: fewest pools), None if no layout meets the SLO; `one_pool` is
    the layout of one pool. `saved` is the fraction of the objective of `one_pool` that `best` saves.
    """

    SCHEMA: ClassVar[str] = "capacity/fleet/v1"
    ROWS: ClassVar[str] = "layouts"
    LAST: ClassVar[tuple[str, ...]] = ("best", "one_pool", "saved")

    model: str
    workload: str
    requests: int
    requests_per_s: float
    slos: tuple[str, ...]
    slo_window: str  # as in a plan: window in which the SLO must hold; trace: over all requests
    busiest_window: Window | None  # window with the most offered work; None: all requests are judged together
    objective: Objective
    confidence: float
    split_by: Literal["prompt", "request"]
    max_pools: int
    router: str
    layouts: tuple[Layout, ...]
    conditional: Mapping[str, tuple[Conditional, ...]]
    proof: FleetProof | None
    day: FleetDay | None
    replica_availability: float | None
    proved: bool
    elapsed_s: float
    prices: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def best(self) -> Layout | None:
        return best_of(self.layouts)

    @property
    def one_pool(self) -> Layout | None:
        """Return the layout of one pool, which is always tried."""
        return next((layout for layout in self.layouts if layout.num_pools == 1), None)

    @property
    def saved(self) -> float | None:
        """Return the fraction of the one-pool objective that the best layout saves; None if either is missing."""
        best, one = self.best, self.one_pool
        if best is None or one is None or best.objective is None or not one.objective:
            return None
        return 1 - best.objective / one.objective


def best_of(layouts: tuple[Layout, ...] | list[Layout]) -> Layout | None:
    """Return the layout with the lowest objective; ties go to the fewest pools, then the lowest thresholds."""
    planned = [layout for layout in layouts if layout.objective is not None]
    return min(
        planned,
        key=lambda each: (each.objective or 0.0, len(each.pools), each.thresholds_tokens),
        default=None,
    )


def deployment_of_fleet(
    answer: FleetPlan, model: "str | Path | ModelSpec", options: Mapping[str, Any]
) -> DeploymentFile:
    """Return the best fleet as a deployment with spare replicas, and with the traffic and prices of `options`.

    Raises InvalidInput if no fleet meets the SLO.
    """
    best = answer.best
    if best is None:
        raise InvalidInput("no fleet meets the service levels, so there is no deployment to write")
    pools = [
        pool.pool.model_copy(
            update={
                "replicas": pool.replicas + pool.spare_replicas,
                **({} if pool.up_to_tokens is None else {"route_up_to_tokens": pool.up_to_tokens}),
            }
        )
        for pool in best.pools
    ]

    name = model if isinstance(model, str | Path) else (model.hf_id or model.name)
    several = len(pools) > 1 or pools[0].replicas > 1
    return DeploymentFile(
        schema="capacity/deployment/v1",
        model=str(name),
        pools=tuple(pools),
        traffic=build(Traffic, select(options, Traffic.model_fields)),
        service=build(Service, {"router": answer.router} if several else {}),
        cost=build(Cost, select(options, Cost.model_fields)),
    )
