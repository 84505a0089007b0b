"""The options of one model in a hall: each GPU under each power cap, with the deployment that `plan` finds for it.

A hall serves thousands of requests per second. The traffic of a model is divided into equal cells of about
`CELL_REPLICAS` replicas, each an independent deployment behind its own router. `plan` finds the deployment of one cell;
all cells of a model are equal. A model whose traffic needs one cell has the same deployment as from `plan`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from capacity.answers.costs import ServedLoad, max_requests_per_s
from capacity.answers.drawn_energy import DrawnEnergy
from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.keywords import split
from capacity.base.quantity import Quantity
from capacity.base.record import AnswerRecord
from capacity.deployment import Cost, Traffic, build
from capacity.hardware import load_profile
from capacity.hardware.power_cap import DEFAULT_CAPS, with_power_cap
from capacity.hardware.pricing import Price, billed_gpus, find_price_for_cost, usd_per_hour
from capacity.hardware.profile import HardwareProfile
from capacity.planning.evaluation.cost_bounds import SLACK
from capacity.planning.records import LaunchLine, Ranked
from capacity.planning.search.conditions import conditions_of
from capacity.planning.search.plan_answer import run_search
from capacity.planning.search.plan_request import PlanRequest, gpu_names
from capacity.planning.space import Search, pools
from capacity.pool.resolve import resolve

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


CELL_REPLICAS = 8
SEARCH_DEFAULTS: Mapping[str, Any] = {
    "power_cap": DEFAULT_CAPS,
    "speculators": "none",
    "max_num_batched_tokens": "default",
    "kv_cache_dtypes": "auto",
    "routers": "round-robin",
    "replications": 1,
}
"""Axes of a hall's search, smaller than those of `plan`; the user's settings replace them."""
FIXED_SEARCH: Mapping[str, Any] = {"objective": "gpus", "serving": "aggregated", "alternatives": False}
UNUSED_FIELDS = ("serving", "alternatives", "max_gpus", "budget", "latency_tolerance")
"""Search settings that a user cannot set for a hall, which is limited by power and keeps one deployment per option."""


@dataclass(frozen=True, kw_only=True)
class FoundOption:
    """A GPU under a power cap for one model, with the deployment that `plan` finds, or the reason why there is none.

    The traffic is divided into `cells` equal parts; `cell` is the deployment that serves one of them. `least_watts`:
    lower bound of the provisioned power for all of the traffic.
    """

    profile: HardwareProfile
    least_watts: float = 0.0
    cells: int = 1
    cell: Ranked | None = None
    price: Price | None = None
    reason: str = ""

    @property
    def found(self) -> tuple[Ranked, DrawnEnergy]:
        """Return the deployment of one cell and the power that it draws. Requires that a deployment was found."""
        assert self.cell is not None
        assert self.cell.drawn is not None
        return self.cell, self.cell.drawn

    @property
    def replicas(self) -> int:
        return self.found[0].replicas * self.cells

    @property
    def num_gpus(self) -> int:
        return self.found[0].num_gpus * self.cells

    @property
    def provisioned_watts(self) -> float:
        return self.found[0].watts * self.cells

    @property
    def drawn_watts(self) -> float:
        return self.found[1].facility_watts.value * self.cells

    @property
    def usd_per_hour(self) -> float | None:
        """Return the price of all GPUs in $/h; None without a price."""
        return (
            None if self.price is None else usd_per_hour(self.price, billed_gpus(self.price, self.num_gpus))
        )

    def value(self, objective: str) -> float:
        """Return the value that the objective minimizes, for all of the traffic."""
        match objective:
            case "cost":
                return math.inf if self.usd_per_hour is None else self.usd_per_hour
            case "gpus":
                return float(self.num_gpus)
            case "energy":
                return self.found[1].gpu_watts.value * self.cells
            case "carbon":
                return self.drawn_watts
            case _:
                return self.provisioned_watts

    def record(self, chosen: "FoundOption") -> HallOption:
        """Return the record of this option; `chosen` is the option that the hall uses for the model."""
        found = self.cell is not None
        own = self is chosen
        reason = self.reason
        if found and not own:
            ratio = self.provisioned_watts / chosen.provisioned_watts
            reason = f"{ratio:.2f} x the power of the chosen option" if ratio > 1 else "higher objective"
        return HallOption(
            gpu=self.profile.name,
            power_cap_watts=self.profile.power_cap_watts,
            engine=self.cell.candidate.engine_label if self.cell else None,
            replicas=self.replicas if found else None,
            num_gpus=self.num_gpus if found else None,
            provisioned_watts=self.provisioned_watts if found else self.least_watts or None,
            drawn_watts=self.drawn_watts if found else None,
            usd_per_hour=self.usd_per_hour if found else None,
            bound=not found and bool(self.least_watts),
            chosen=own,
            reason=reason,
        )


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One model of a hall: its traffic at a request rate, SLO, search space and prices."""

    model: str
    slo: Sequence[str] | str
    search: Search
    traffic: Traffic
    cost: Cost
    profiles: str | Path | None
    download: bool

    @classmethod
    def build(
        cls, fields: Mapping[str, Any], *, profiles: str | Path | None, download: bool
    ) -> "ModelRequest":
        """Build the request from `model`, `slo` and fields of Search, Traffic and Cost. Raises InvalidInput."""
        given = {name: value for name, value in fields.items() if name not in ("model", "slo")}
        search, traffic, cost = split(given, Search, Traffic, Cost)
        model = fields.get("model")
        if not isinstance(model, str):
            raise InvalidInput('a model of the hall has no name: add model = "llama-3.1-8b"')
        if wrong := next((name for name in UNUSED_FIELDS if name in search), None):
            raise InvalidInput(f"--{wrong.replace('_', '-')} has no effect on a hall: remove it")
        built = cls(
            model=model,
            slo=fields.get("slo", ()),
            search=build(Search, {**SEARCH_DEFAULTS, **search, **FIXED_SEARCH}),
            traffic=build(Traffic, traffic),
            cost=build(Cost, cost),
            profiles=profiles,
            download=download,
        )
        if not 0 < built.requests_per_s < math.inf:
            raise InvalidInput(
                f"{model} has no request rate: a hall needs request_rate, requests_per_day or users for each model"
            )
        return built

    @property
    def requests_per_s(self) -> float:
        """Return the request rate of the model's whole traffic; 0 if none is given."""
        return self.traffic.request_rate or 0.0

    @property
    def is_priced(self) -> bool:
        return self.cost.is_given

    def plan_request(self, requests_per_s: float, **search: Any) -> PlanRequest:
        """Return the input of `plan` at this request rate, with the `search` settings replaced. Raises InvalidInput."""
        return PlanRequest.build(
            self.model,
            self.search.model_copy(update=search),
            self.traffic.model_copy(update={"request_rate": requests_per_s}),
            self.cost,
            slo=self.slo,
            workload=None,
            profiles=self.profiles,
            download=self.download,
        )

    @property
    def num_options(self) -> int:
        """Return the number of GPUs times the number of power caps."""
        return len(self.search.power_cap) * len(self._gpus)

    @property
    def _gpus(self) -> tuple[str, ...]:
        return gpu_names(self.search, [str(self.profiles)] if self.profiles else [])

    def options(self, *, prune: bool, report: Callable[[int], None] | None = None) -> list[FoundOption]:
        """Return every GPU under every power cap, each with the deployment of one cell or the reason why there is none.

        With `prune`, options are not simulated if the lower bound on their power is not below the power of the best
        option. `report` is called with the number of options so far.
        """
        known = sorted(self._lower_bounds(), key=lambda option: option.least_watts)
        best, found = math.inf, list[FoundOption]()
        for option in known:
            if report is not None:
                report(len(found))
            if option.reason or (prune and option.least_watts >= best):
                least = f"needs at least {option.least_watts / 1e6:.3g} MW"
                found.append(option if option.reason else replace(option, reason=f"{least} for all requests"))
                continue
            found.append(planned := self._plan_cell(option))
            if planned.cell is not None:
                best = min(best, planned.provisioned_watts)
        return found

    def _lower_bounds(self) -> Iterator[FoundOption]:
        """Yield each GPU under each cap with a lower bound on power and the number of cells, or why it cannot run."""
        folders = [str(self.profiles)] if self.profiles else []
        asked = self.plan_request(self.requests_per_s)
        for gpu in self._gpus:
            card = load_profile(gpu, folders)
            for cap in self.search.power_cap:
                try:
                    capped = with_power_cap(card, cap)
                except InvalidInput as error:
                    yield FoundOption(profile=card, reason=str(error))
                    continue
                yield self._lower_bound(asked, capped, gpu, cap)

    def _lower_bound(
        self, asked: PlanRequest, capped: HardwareProfile, gpu: str, cap: float | str | None
    ) -> FoundOption:
        """Return this GPU under this power cap, with a lower bound on its provisioned power: that of the engine with
        the least power per request at its closed-form throughput, without an SLO."""
        load = ServedLoad(
            requests_per_s=math.inf,
            input_tokens=asked.load.computed_input_tokens,
            output_tokens=asked.load.output_tokens,
        )
        least, rate, reason = math.inf, 0.0, "no engine can run the model"
        for pool in pools(asked.search.model_copy(update={"power_cap": (cap,)}), gpu, asked.model):
            if conditions_of(asked.search, asked.model, pool):
                continue
            try:
                resolved = resolve(asked.model, pool, profiles=self.profiles)
                resolved.memory_without_advice.require_fit()
                per_replica = max_requests_per_s([(resolved, 1)], load)
            except CapacityError as error:
                reason = str(error)
                continue
            watts = capped.system_watts_per_gpu * pool.num_gpus / per_replica
            if watts < least:
                least, rate = watts, per_replica
        if math.isinf(least):
            return FoundOption(profile=capped, reason=reason)
        return FoundOption(
            profile=capped,
            least_watts=(1 - SLACK) * least * self.requests_per_s,
            cells=max(math.ceil(self.requests_per_s / (CELL_REPLICAS * rate)), 1),
        )

    def _plan_cell(self, option: FoundOption) -> FoundOption:
        """Return this GPU and power cap with the best deployment for one cell (an equal part of the model's traffic),
        or with the reason why no deployment meets the SLO."""
        cap, gpu = option.profile.power_cap_watts, option.profile.name
        asked = self.plan_request(
            self.requests_per_s / option.cells,
            gpus=(gpu,), power_cap=(cap,), max_gpus=MAX_CELL_GPUS,
        )  # fmt: skip
        try:
            price = find_price_for_cost(gpu, self.cost) if self.is_priced else None
            plan = run_search(asked, explain=False)
        except InvalidInput as error:
            return replace(option, reason=str(error))
        best = plan.best
        if best is None or best.drawn is None:
            missed = "; ".join(f"{miss.slo}: {miss.best} at best, limit {miss.limit}" for miss in plan.misses)
            return replace(option, least_watts=0.0, reason=missed or "no deployment meets the SLO")
        return replace(option, cell=best, price=price)


MAX_CELL_GPUS = 4096
"""Limit on the GPUs of one cell; so high that it has no effect, because the power budget limits the hall."""
