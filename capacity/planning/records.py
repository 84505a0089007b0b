"""What the planner answers: ranked deployments, what was turned down and why, and how far the search went."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from capacity.deployment import Pool
from capacity.hardware.pricing import CostEstimate
from capacity.planning.quality import QualityChange
from capacity.planning.space import Candidate, Objective
from capacity.planning.trial import Level, Trial

Kind = Literal[
    "impossible",
    "does not fit",
    "quality",
    "no price",
    "limit",
    "unmeetable",
    "slo",
    "costlier",
    "unresolved",
]
KINDS: dict[str, str] = {
    "impossible": "the engine or the GPU cannot run it",
    "does not fit": "the weights, or one request, exceed the memory",
    "quality": "a format loses more than --max-quality-loss",
    "no price": "no price of that GPU in this tier",
    "limit": "the load needs more than --max-gpus or --budget allow (bound)",
    "unmeetable": "an empty engine is too slow for the SLO (bound)",
    "slo": "misses the SLO in simulation",
    "costlier": "cannot beat the answer for its GPU and format",
    "unresolved": "the search ended before its turn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that is not an answer, with its reason; `replicas` None: at any number.

    `pool` decodes only where there is a `prefill`, `prefill_replicas` of which were tried (None: any number).
    """

    pool: Pool
    replicas: int | None
    kind: Kind
    reason: str
    prefill: Pool | None = None
    prefill_replicas: int | None = None

    @classmethod
    def of(cls, candidate: Candidate, kind: Kind, reason: str, *, replicas: int | None) -> Rejection:
        """That of a candidate."""
        return cls(
            pool=candidate.pool,
            replicas=replicas,
            kind=kind,
            reason=reason,
            prefill=candidate.prefill,
            prefill_replicas=candidate.prefill_replicas if candidate.prefill and replicas else None,
        )

    @property
    def engine(self) -> str:
        """The hardware that it is of, in a few words."""
        parts = [self.pool.gpu, f"TP{self.pool.tensor_parallel_size}"]
        if self.prefill is not None:
            parts[1] = f"TP{self.prefill.tensor_parallel_size} before {parts[1]}"
        parts += [text for text in (self.pool.quantization, self.pool.speculator) if text is not None]
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        settings = self.pool.model_dump(exclude_defaults=True)
        plain: dict[str, Any] = {
            "pool": settings,
            "replicas": self.replicas,
            "kind": self.kind,
            "reason": self.reason,
        }
        if self.prefill is not None:
            plain["prefill"] = self.prefill.model_dump(exclude_defaults=True)
            plain["prefill_replicas"] = self.prefill_replicas
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A deployment that meets the SLO.

    `trial` is with step times at the required confidence, `predicted` with step times as predicted (None where
    that was not run). `confidence` is the highest level of `step_error.LEVELS` at which the SLO still held.
    """

    candidate: Candidate
    num_gpus: int
    billed_gpus: int
    objective: float
    trial: Trial
    predicted: Trial | None
    confidence: float
    cost: CostEstimate | None
    watts: float
    joules_per_output_token: float | None
    quality: QualityChange
    basis: str
    step_error_assumed: bool
    best_of_its_kind: bool

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Output tokens, at the load that is served."""
        return self.trial.output_tokens_per_s / self.num_gpus

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        described = {name: getattr(self, name) for name in self.__slots__ if name != "candidate"}
        plain = {
            name: asdict(value) if hasattr(value, "__dataclass_fields__") else value
            for name, value in described.items()
        }
        return {
            "label": self.candidate.label,
            "pools": [pool.model_dump(exclude_defaults=True) for pool in self.candidate.pools],
            "pool": self.candidate.pool.model_dump(exclude_defaults=True),
            "replicas": self.candidate.replicas,
            "router": self.candidate.router,
            **plain,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One simulated deployment, for the fronts."""

    label: str
    gpu: str
    num_gpus: int
    usd_per_hour: float | None
    tokens_per_s_per_user: float | None
    tokens_per_s_per_gpu: float
    levels: tuple[Level, ...]
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A part of the SLO that nothing in the space meets: the best value that was found, and where."""

    slo: str
    limit: str
    best: str
    factor: float
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCounts:
    """How far the search went. `points` counts, over engines that fit, the replicas that the limits allow: what brute
    force would simulate. `excluded` and `bounded` are engines without a simulation, `simulated` is distinct points."""

    engines: int
    points: int
    excluded: int
    bounded: int
    simulated: int
    unresolved: int

    @property
    def simulated_fraction(self) -> float:
        """Of the points."""
        return self.simulated / self.points if self.points else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: `ranked` best first, empty where nothing meets the SLO (`misses` then says what is in the way).

    `proved`: every cheaper candidate was excluded, bounded away or simulated; otherwise the time limit ended the
    search and better ones may exist among the unresolved.
    """

    SCHEMA: ClassVar[str] = "capacity/plan/v1"

    model: str
    workload: str
    requests: int
    requests_per_s: float
    input_tokens: float
    output_tokens: float
    slos: tuple[str, ...]
    objective: Objective
    confidence: float
    ranked: tuple[Ranked, ...]
    misses: tuple[Miss, ...]
    rejected: tuple[Rejection, ...]
    speed_front: tuple[Point, ...]
    cost_front: tuple[Point, ...]
    counts: SearchCounts
    proved: bool
    first_answer_s: float | None
    elapsed_s: float
    prices: tuple[str, ...]
    not_searched: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def best(self) -> Ranked | None:
        """The answer, or None."""
        return self.ranked[0] if self.ranked else None

    @property
    def proof(self) -> str:
        """How far the answer can be trusted to be the best, in words."""
        if self.proved:
            return "nothing cheaper is in doubt"
        unresolved = self.counts.unresolved
        what = (
            f"{unresolved} engines were not reached" if unresolved else "answers were not simulated in full"
        )
        return f"the time limit ended the search: {what} (--time-limit-s 0 has none)"

    @property
    def reasons(self) -> dict[str, int]:
        """How many candidates were turned down for which kind of reason."""
        return dict(Counter(rejection.kind for rejection in self.rejected))

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, `schema` first."""
        plain = ("misses", "speed_front", "cost_front")
        described = {name: getattr(self, name) for name in self.__slots__}
        described |= {name: [asdict(item) for item in described[name]] for name in plain}
        described["ranked"] = [item.to_dict() for item in self.ranked]
        described["rejected"] = [item.to_dict() for item in self.rejected]
        described["counts"] = asdict(self.counts) | {"simulated_fraction": self.counts.simulated_fraction}
        return {"schema": self.SCHEMA, **described, "proof": self.proof, "reasons": self.reasons}
