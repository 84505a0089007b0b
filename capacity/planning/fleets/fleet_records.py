"""Records of `fleet`: pools by length behind one router, every threshold tried, and the best layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from capacity.base.errors import InvalidInput
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
    """One pool with its share of the traffic; the load needs `replicas`, and `spare_replicas` are the reserve.

    `up_to_tokens` None: any length. `levels` cover its own requests at the requested confidence, in `window`, the
    worst window of longer traffic; `router` is the one within the pool.
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
        """Return the minimised objective, reserve included: $ per hour, or GPUs."""
        return float(self.num_gpus) if minimised == "gpus" else self.usd_per_hour or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(WrittenRecord):
    """Pools by length with thresholds between them.

    `num_pools` is the number requested: a threshold beyond all requests leaves one pool of two. For three or more
    pools, one layout holds the cheapest of all thresholds. `pools` is empty if nothing was found; `reason` gives the
    cause. `objective` is the minimised value, reserve included ($ per hour, or GPUs); None without pools.
    """

    FIRST: ClassVar[tuple[str, ...]] = ("threshold_tokens",)
    LAST: ClassVar[tuple[str, ...]] = ("num_gpus", "usd_per_hour", "usd_per_request")

    thresholds_tokens: tuple[int, ...]
    num_pools: int
    outcome: Outcome
    reason: str | None
    pools: tuple[FleetPool, ...]
    objective: float | None
    proved: bool

    @property
    def threshold_tokens(self) -> int | None:
        """Return the threshold between two pools; None for one pool or more than two."""
        return self.thresholds_tokens[0] if self.num_pools == 2 else None

    @property
    def num_gpus(self) -> int:
        """Return the GPUs in use, not rounded up to whole instances."""
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def usd_per_hour(self) -> float | None:
        """Return the cost of all pools in $/h; None without a price."""
        return sum_if_known([pool.usd_per_hour for pool in self.pools])

    @property
    def usd_per_request(self) -> float | None:
        """Return the bill divided by the offered requests."""
        usd, rate = self.usd_per_hour, sum(pool.requests_per_s for pool in self.pools)
        return None if usd is None or not 0 < rate < float("inf") else usd / rate / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProof:
    """Simulation of all pools of the answer behind their router, on all requests, without the reserve.

    For traffic longer than the SLO window, `levels` cover `window`, the worst of `windows`.
    """

    requests: int
    met: bool
    levels: tuple[Level, ...]
    window: Window | None = None
    windows: tuple[WindowLevels, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHour:
    """One hour of a day: its rate, and the simulated replicas of each pool, reserve included."""

    hour: int
    request_rate_per_s: float
    replicas: tuple[int, ...]
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDay:
    """Cost of a day with hourly scaling, compared with a fixed fleet for the peak."""

    hours: tuple[FleetHour, ...]
    scaled_usd_per_day: float | None
    fixed_usd_per_day: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan(AnswerRecord):
    """Cheapest fleet; `layouts` are one pool, every threshold of two pools in order of tokens, and the best of more.

    `conditional` are alternatives for each pool of the best layout, by label, at a lower objective, with formats that
    lose quality or drafts not measured for this model; without a best layout, for one pool.

    `best` is the layout with the lowest objective (ties: fewest pools), None if nothing meets the SLO; `one_pool` is
    the layout without a threshold. `saved` is the fraction of its objective that the best layout saves.
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
        """Return the answer, or None."""
        return best_of(self.layouts)

    @property
    def one_pool(self) -> Layout | None:
        """Return the layout without a threshold, which is always tried."""
        return next((layout for layout in self.layouts if layout.num_pools == 1), None)

    @property
    def saved(self) -> float | None:
        """Return the saved fraction of the one pool's objective; None if either layout has no answer."""
        best, one = self.best, self.one_pool
        if best is None or one is None or best.objective is None or not one.objective:
            return None
        return 1 - best.objective / one.objective


def sum_if_known(bills: Sequence[float | None]) -> float | None:
    """Return the sum of bills; None if one is unknown, or there are none."""
    known = [bill for bill in bills if bill is not None]
    return sum(known) if known and len(known) == len(bills) else None


def best_of(layouts: tuple[Layout, ...] | list[Layout]) -> Layout | None:
    """Return the layout with the lowest objective; ties go to the fewest pools, then the lowest thresholds."""
    planned = [layout for layout in layouts if layout.objective is not None]
    return min(
        planned,
        key=lambda each: (each.objective or 0.0, len(each.pools), each.thresholds_tokens),
        default=None,
    )


def deployment_of_fleet(
    answer: FleetPlan, model: str | Path | ModelSpec, options: Mapping[str, Any]
) -> DeploymentFile:
    """Return the fleet as a deployment for `simulate`, reserve included; traffic and prices come from `options`.

    Raises InvalidInput if no fleet meets the service levels.
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

    def given_fields(spec: type[Traffic] | type[Cost]) -> Mapping[str, Any]:
        return {name: value for name, value in options.items() if name in spec.model_fields}

    name = model if isinstance(model, str | Path) else (model.hf_id or model.name)
    several = len(pools) > 1 or pools[0].replicas > 1
    return DeploymentFile(
        schema="capacity/deployment/v1",
        model=str(name),
        pools=tuple(pools),
        traffic=build(Traffic, given_fields(Traffic)),
        service=build(Service, {"router": answer.router} if several else {}),
        cost=build(Cost, given_fields(Cost)),
    )
