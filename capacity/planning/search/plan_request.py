"""Validated input of `plan` and `fleet`: model, traffic, SLO, search space and prices."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capacity.answers.deployment_run import NO_SERVICE
from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.deployment import Cost, Service, Traffic
from capacity.deployment.images import add_encoder_tokens, check_language_model_only
from capacity.deployment.use_cases import service_levels
from capacity.hardware import load_profile, profile_names
from capacity.hardware.grid_carbon import co2_g_per_kwh
from capacity.hardware.pricing import Price, billed_gpus, find_price_for_cost, usd_per_hour
from capacity.model import ModelSpec, load_model
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.evaluation_context import EvaluationContext
from capacity.planning.evaluation.resampling import SteadyTraffic, resample_traffic
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.space import DRAFT_MODEL, Search
from capacity.pool.drafting import find_speculator
from capacity.workload import Slo, Workload, parse_slos


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Candidate GPUs, each with its price or the reason why a required price is missing."""

    quotes: dict[str, Price | None]
    unpriced: dict[str, str]

    @classmethod
    def look_up(cls, search: Search, cost: Cost, profiles: list[str]) -> "Market":
        """Find the candidate GPUs and their prices. Raises UnknownName, InvalidInput."""
        needed = search.objective == "cost" or search.budget is not None
        quotes: dict[str, Price | None] = {}
        unpriced: dict[str, str] = {}
        for gpu in gpu_names(search, profiles):
            try:
                quotes[gpu] = find_price_for_cost(gpu, cost)
            except InvalidInput as error:
                quotes[gpu] = None
                if needed:
                    unpriced[gpu] = str(error)
        if needed:
            if any(quote is not None and not quote.has_few_providers for quote in quotes.values()):
                # a price from a thin market must not win against regular prices
                cautions = {gpu: quote.caution for gpu, quote in quotes.items() if quote is not None}
                unpriced |= {gpu: caution for gpu, caution in cautions.items() if caution is not None}
            quotes |= dict.fromkeys(unpriced)
        return cls(quotes=quotes, unpriced=unpriced)

    def usd_per_hour(self, gpu: str, gpus: int) -> float | None:
        """Return the price of this many GPUs in $/h, rounded up to whole instances; None without a price."""
        quote = self.quotes[gpu]
        return None if quote is None else usd_per_hour(quote, billed_gpus(quote, gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Input of a search; `workloads` are samples of one traffic, `steady` is set if the traffic has no fixed length."""

    model: ModelSpec
    workloads: Sequence[Workload]
    goal: Goal
    search: Search
    cost: Cost
    profiles: str | Path | None
    steady: SteadyTraffic | None = None
    service: Service = NO_SERVICE

    @classmethod
    def build(
        cls,
        model: str | Path | ModelSpec,
        search: Search,
        traffic: Traffic,
        cost: Cost,
        *,
        slo: Sequence[str] | str,
        workload: Workload | None,
        profiles: str | Path | None,
        download: bool,
    ) -> "PlanRequest":
        """Build the input of a search; without `slo`, use the SLO of the traffic's use case. Raises InvalidInput."""
        levels = service_levels(slo, traffic)
        parse_slos(levels)  # reports errors in the SLO before a missing price
        check_search(search, cost)
        check_language_model_only(search.language_model_only, traffic)
        spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
        goal = Goal(slos=parsed_slos(levels), goodput_target=search.goodput_target)
        longest = search.max_model_len or spec.max_position_embeddings
        asked = add_encoder_tokens(traffic, spec)
        workloads = resample_traffic(asked, workload, search.replications, longest)
        check_goal(goal.slos, workloads[0])
        return cls(
            model=spec,
            workloads=workloads,
            goal=goal,
            search=search,
            cost=cost,
            profiles=profiles,
            steady=SteadyTraffic.from_traffic(asked, workload, longest, search.confidence),
        )

    @property
    def load(self) -> Load:
        """Return the totals and means of the whole traffic, for the bounds."""
        return Load.average(self.workloads, endless=self.steady is not None)

    def context(self) -> EvaluationContext:
        """Return the context that evaluates candidates on the busiest window, and final deployments on all traffic."""
        return make_from(EvaluationContext, self, slo_window=self.search.slo_window).for_workloads(
            self.workloads
        )

    def market(self) -> Market:
        """Return the candidate GPUs and their prices. Raises UnknownName, InvalidInput."""
        return Market.look_up(self.search, self.cost, [str(self.profiles)] if self.profiles else [])


def parsed_slos(texts: Sequence[str] | str) -> tuple[Slo, ...]:
    """Parse SLOs such as "ttft:p95:500ms". Raises InvalidInput if there are none."""
    slos = parse_slos(texts)
    if not slos:
        raise InvalidInput(
            "no service level: give --use-case, or --slo, such as --slo ttft:p95:500ms --slo tpot:p99:50ms"
        )
    return slos


PRICE_OPTIONS = (
    "--price-tier on-demand (reserved-1y, spot, owned, ...), --price h100=2.50, --price-file "
    "or --objective gpus"
)


def check_search(search: Search, cost: Cost) -> None:
    """Raise InvalidInput for missing or conflicting settings that would otherwise reject all candidates, and
    UnknownName for an unknown region."""
    if search.draft is None and DRAFT_MODEL in search.speculators:
        raise InvalidInput("--speculators draft-model needs a draft model: add --draft MODEL")
    if search.draft is not None and search.speculators and DRAFT_MODEL not in search.speculators:
        raise InvalidInput("--draft needs --speculators draft-model: add it, or leave --draft out")
    for name in search.speculators or ("eagle3",):
        if name is not None:
            way = find_speculator(name)
            if search.acceptance is not None:
                way.with_acceptance(search.acceptance)
    if not search.gpus:
        price = "" if search.objective != "cost" or cost.is_given else f", and {PRICE_OPTIONS}"
        raise InvalidInput(f"no GPUs: give --gpus h100,h200 or --gpus all{price}")
    if search.objective == "cost" and not cost.is_given:
        raise InvalidInput(f"the objective is cost, but there is no price: give {PRICE_OPTIONS}")
    if search.grid_region is not None:
        co2_g_per_kwh(search.grid_region)
    if search.budget is not None and not cost.is_given:
        raise InvalidInput("--budget needs a price: give --price-tier or --price")


def check_goal(slos: Sequence[Slo], workload: Workload) -> None:
    """Raise InvalidInput for an open loop (arrivals do not wait for answers) without an SLO on TTFT or E2E latency."""
    waits = any(slo.includes_wait for slo in slos)
    if not waits and not workload.is_closed_loop:
        raise InvalidInput("no limit on ttft or e2el, so queues grow without bound: add --slo ttft:p95:2s")


def gpu_names(search: Search, profiles: list[str]) -> tuple[str, ...]:
    """Return the profile names of the candidate GPUs, of all GPUs for `all`. Raises UnknownName."""
    if [name.lower() for name in search.gpus] == ["all"]:
        return tuple(name for name in profile_names(profiles) if "@" not in name)
    return tuple(dict.fromkeys(load_profile(name, profiles).name for name in search.gpus))
