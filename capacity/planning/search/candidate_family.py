"""Candidate families (an engine with a range of replica counts), evaluated candidates, and exclusions with reasons."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from capacity.base.money import usd_text
from capacity.deployment import Pool
from capacity.hardware.pricing import Price, billed_gpus, usd_per_hour
from capacity.planning.evaluation.cost_bounds import Bound
from capacity.planning.evaluation.evaluation_context import EvaluationRequest, first_request
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.quality import QualityChange
from capacity.planning.records import Kind, Rejection
from capacity.planning.space import ROUND_ROBIN, Candidate, Objective, Search

Order = tuple[float, ...]  # lowest first: objective, quality loss, complexity penalty, replicas


def objective_of(search: Search, price: Price | None, gpus: int, drawn: Callable[[], float]) -> float:
    """Return the value to minimise for this many GPUs; `search.objective` selects $/h, number of GPUs, or drawn energy
    or carbon per output token. `drawn` is called only for the last two."""
    match search.objective:
        case "cost":
            assert price is not None
            return usd_per_hour(price, billed_gpus(price, gpus))
        case "energy" | "carbon":
            return drawn()
        case _:
            return float(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Engine in one role (prefill, decode or both) with its bounds and quality loss."""

    pool: Pool
    bound: Bound
    quality: QualityChange
    watts_per_gpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFamily(Side):
    """Engine with the range of replica counts, `least` to `most`, that its bounds and the limits allow.

    With `prefill`, the engine only decodes, and `prefill_replicas` replicas of the engine `prefill` compute the
    prompts; each number of prefill replicas is a separate family. `complexity` is the engine's `complexity_penalty`.
    `drawn` returns the energy or carbon per output token for a number of replicas.
    """

    price: Price | None
    least: int
    most: int
    search: Search
    drawn: Callable[[int], float]
    prefill: Pool | None = None
    prefill_replicas: int = 0
    router: str = ROUND_ROBIN
    complexity: int = 0

    @property
    def family(self) -> tuple[str, str | None]:
        """Return the GPU and the weight format; the plan reports the best deployment of each such combination."""
        return (self.pool.gpu, self.pool.quantization)

    @property
    def loss(self) -> float:
        """Return the worst published quality loss as a fraction; 1.0 if it is unknown."""
        loss = self.quality.worst_loss_fraction
        return 1.0 if loss is None else loss

    def gpus(self, replicas: int) -> int:
        prefill = 0 if self.prefill is None else self.prefill.num_gpus * self.prefill_replicas
        return self.pool.num_gpus * replicas + prefill

    def billed_gpus(self, replicas: int) -> int:
        """Return the number of GPUs billed with this many replicas, rounded up to whole instances."""
        gpus = self.gpus(replicas)
        return billed_gpus(self.price, gpus) if self.price else gpus

    def usd_per_hour(self, replicas: int) -> float | None:
        """Return the price of the billed GPUs in $/h; None without a price."""
        return None if self.price is None else usd_per_hour(self.price, self.billed_gpus(replicas))

    def watts(self, replicas: int) -> float:
        return self.watts_per_gpu * self.gpus(replicas)

    def objective(self, replicas: int) -> float:
        """Return the value to minimise, computed without simulation; it rises with the number of replicas."""
        return objective_of(self.search, self.price, self.gpus(replicas), lambda: self.drawn(replicas))

    def order(self, replicas: int) -> Order:
        """Return the sort key, the lowest being the best: objective, quality loss, complexity penalty, replicas."""
        return (self.objective(replicas), self.loss, self.complexity, replicas)

    def most_below(self, order: Order) -> int:
        """Return the largest allowed number of replicas whose sort key is before `order`; 0 if there is none."""
        low, high = self.least - 1, self.most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.order(middle) < order else (low, middle - 1)
        return 0 if low < self.least else low

    def candidate_at(self, replicas: int) -> Candidate:
        return Candidate(
            pool=self.pool,
            replicas=replicas,
            prefill=self.prefill,
            prefill_replicas=self.prefill_replicas,
            router=self.router,
        )

    def first_look(self, replicas: int) -> EvaluationRequest:
        """Return the request for a quick first evaluation with this number of replicas."""
        return first_request(self.candidate_at(replicas), self.search.confidence)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Reason why a candidate is excluded; `ratio`: its bound on latency or GPUs divided by the limit."""

    kind: Kind
    reason: str
    ratio: float | None = None


class EvaluatedCandidate(NamedTuple):
    """Candidate with the result of its simulation."""

    option: CandidateFamily
    replicas: int
    trial: Evaluation

    @property
    def candidate(self) -> Candidate:
        return self.option.candidate_at(self.replicas)

    @property
    def objective(self) -> float:
        """Return the minimised value: simulated latency divided by its limit, $/h, energy, carbon or GPUs."""
        if self.option.search.objective == "latency":
            return self.trial.ratio
        return self.option.objective(self.replicas)

    @property
    def order(self) -> Order:
        """Return the sort key of the candidate; the best candidate has the lowest."""
        return self.option.order(self.replicas)


@dataclass(slots=True, kw_only=True)
class CandidateRecord:
    """Candidate families that exact checks and bounds do not exclude, and the rejected candidates."""

    options: list[CandidateFamily] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    engines: int = 0
    points: int = 0
    # by kind of exclusion: lowest ratio of the bounds that excluded a candidate without conditions
    nearest: dict[Kind, tuple[float, Candidate, str]] = field(default_factory=dict)

    def reject(self, candidate: Candidate, why: Exclusion, *, recommendable: bool = True) -> None:
        """Record the rejection of an engine or a prefill-decode pair.

        `recommendable`: the candidate loses no quality and uses no unmeasured drafts (`conditions_of` is empty).
        """
        self.rejected.append(Rejection.from_candidate(candidate, why.kind, why.reason, replicas=None))
        known = self.nearest.get(why.kind)
        if recommendable and why.ratio is not None and (known is None or why.ratio < known[0]):
            self.nearest[why.kind] = (why.ratio, candidate, why.reason)


def format_objective(objective: Objective, value: float) -> str:
    """Format the value of an objective with its unit: $/h, J, g CO2 or, also for `latency`, GPUs."""
    match objective:
        case "cost":
            return f"{usd_text(value)}/h"
        case "energy":
            return f"{value:,.3f} J/output token"
        case "carbon":
            return f"{value:,.1f} g CO2/1M output tokens"
        case _:
            return f"{value:g} GPU{'s' if value != 1 else ''}"
