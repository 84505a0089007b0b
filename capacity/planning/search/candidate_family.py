"""An engine that might be an answer, with the replicas that are still open; what was simulated; and why it is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from capacity.deployment import Pool
from capacity.hardware.pricing import Price, billed_gpus, usd_per_hour
from capacity.planning.evaluation.cost_bounds import Bound
from capacity.planning.evaluation.evaluation_context import EvaluationRequest, first_look
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.quality import QualityChange
from capacity.planning.records import Kind, Rejection
from capacity.planning.space import ROUND_ROBIN, Candidate, Search

Order = tuple[float, ...]  # what is least is best: an objective, then loss of quality, oddness and replicas


def objective_of(search: Search, price: Price | None, watts_per_gpu: float, gpus: int) -> float:
    """What is minimised, as far as so many GPUs decide it; rises with them."""
    match search.objective:
        case "cost":
            assert price is not None
            return usd_per_hour(price, billed_gpus(price, gpus))
        case "energy":
            return watts_per_gpu * gpus
        case _:
            return float(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """An engine in its role, with its bounds."""

    pool: Pool
    bound: Bound
    quality: QualityChange
    watts_per_gpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFamily(Side):
    """An engine that might be an answer, with the replicas that its bounds leave open (`least` to `most`).

    With `prefill`, the engine only decodes, and `prefill_replicas` of that one prefill: options of one pair differ
    in them. `oddness`: how far it is from the engine's defaults.
    """

    price: Price | None
    least: int
    most: int
    search: Search
    prefill: Pool | None = None
    prefill_replicas: int = 0
    router: str = ROUND_ROBIN
    oddness: int = 0

    @property
    def family(self) -> tuple[str, str | None]:
        """Answers are given for each GPU and weight format."""
        return (self.pool.gpu, self.pool.quantization)

    @property
    def loss(self) -> float:
        """The worst published loss of quality; an unknown one is the worst there is."""
        loss = self.quality.worst_loss_fraction
        return 1.0 if loss is None else loss

    def gpus(self, replicas: int) -> int:
        """GPUs in use."""
        prefill = 0 if self.prefill is None else self.prefill.num_gpus * self.prefill_replicas
        return self.pool.num_gpus * replicas + prefill

    def billed_gpus(self, replicas: int) -> int:
        """GPUs of whole instances."""
        gpus = self.gpus(replicas)
        return billed_gpus(self.price, gpus) if self.price else gpus

    def usd_per_hour(self, replicas: int) -> float | None:
        """$ per hour of whole instances; None without a price."""
        return None if self.price is None else usd_per_hour(self.price, self.billed_gpus(replicas))

    def watts(self, replicas: int) -> float:
        """All in, at full use."""
        return self.watts_per_gpu * self.gpus(replicas)

    def objective(self, replicas: int) -> float:
        """What is minimised, as far as it is known without simulating; rises with replicas."""
        return objective_of(self.search, self.price, self.watts_per_gpu, self.gpus(replicas))

    def order(self, replicas: int) -> Order:
        """Its place among answers: the objective, then the published loss of quality, then the plainer engine."""
        return (self.objective(replicas), self.loss, self.oddness, replicas)

    def most_below(self, order: Order) -> int:
        """The most replicas, of those open, that come before that; 0 where none do."""
        low, high = self.least - 1, self.most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.order(middle) < order else (low, middle - 1)
        return 0 if low < self.least else low

    def at(self, replicas: int) -> Candidate:
        """The candidate with so many replicas."""
        return Candidate(
            pool=self.pool,
            replicas=replicas,
            prefill=self.prefill,
            prefill_replicas=self.prefill_replicas,
            router=self.router,
        )

    def first_look(self, replicas: int) -> EvaluationRequest:
        """The request with which the search begins on so many replicas."""
        return first_look(self.at(replicas), self.search.confidence)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why something is not an option; `ratio` of value to limit where a bound made it."""

    kind: Kind
    reason: str
    ratio: float | None = None


class EvaluatedCandidate(NamedTuple):
    """A deployment that was simulated."""

    option: CandidateFamily
    replicas: int
    trial: Evaluation

    @property
    def candidate(self) -> Candidate:
        return self.option.at(self.replicas)

    @property
    def objective(self) -> float:
        """What is minimised, as simulated."""
        if self.option.search.objective == "latency":
            return self.trial.ratio
        return self.option.objective(self.replicas)

    @property
    def order(self) -> Order:
        """Its place among answers."""
        return self.option.order(self.replicas)


@dataclass(slots=True, kw_only=True)
class Survey:
    """The options left after exclusion and bounds, and everything that is not among them, of those looked at so far."""

    options: list[CandidateFamily] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    engines: int = 0
    points: int = 0
    nearest: tuple[float, Candidate, str] | None = None  # miss, of the bounds that exclude for good

    def turn(self, candidate: Candidate, why: Exclusion) -> None:
        """Put an engine, or a pair, aside."""
        self.rejected.append(Rejection.of(candidate, why.kind, why.reason, replicas=None))
        if why.ratio is not None and (self.nearest is None or why.ratio < self.nearest[0]):
            self.nearest = (why.ratio, candidate, why.reason)


def amount(option: CandidateFamily, value: float) -> str:
    """An objective's value in words."""
    match option.search.objective:
        case "cost":
            return f"${value:,.2f}/h"
        case "energy":
            return f"{value / 1e3:,.1f} kW"
        case _:
            return f"{value:.0f} GPU{'s' if value != 1 else ''}"
