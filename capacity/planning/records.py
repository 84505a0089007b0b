"""Records of the planner: ranked deployments, rejected candidates with reasons, and counts of the search."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from capacity.answers.drawn_energy import DrawnEnergy
from capacity.base.record import NOT_WRITTEN, AnswerRecord, WrittenRecord, make_from
from capacity.deployment import Pool
from capacity.hardware.cost_estimate import CostEstimate
from capacity.planning.evaluation.slo_evaluation import Evaluation, Level
from capacity.planning.quality import QualityChange
from capacity.planning.space import Candidate, Objective
from capacity.workload.windows import Window

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
    "conditional",
]
Ended = Literal["done", "time limit", "interrupted"]
KINDS: dict[str, str] = {
    "impossible": "not supported by the engine or the GPU",
    "does not fit": "the weights or a single request exceed the memory",
    "quality": "quality loss above --max-quality-loss",
    "no price": "no price for the GPU in this tier",
    "limit": "a lower bound on its GPUs or cost exceeds --max-gpus or --budget",
    "unmeetable": "misses the SLO even on an empty engine",
    "slo": "misses the SLO in simulation",
    "costlier": "dominated by the best candidate of its GPU and format",
    "unresolved": "not simulated in full when the search ended",
    "conditional": "loses quality, or its drafts were not measured for this model",
}
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Rejected candidate with the reason; `replicas` None: rejected with any number of replicas."""

    pool: Pool
    replicas: int | None
    kind: Kind
    reason: str

    @classmethod
    def from_candidate(
        cls, candidate: Candidate, kind: Kind, reason: str, *, replicas: int | None
    ) -> "Rejection":
        """Return the rejection record of an engine or of a prefill-decode pair."""
        alone = Rejection(pool=candidate.pool, replicas=replicas, kind=kind, reason=reason)
        if candidate.prefill is None:
            return alone
        count = candidate.prefill_replicas if replicas else None
        return make_from(PairRejection, alone, prefill=candidate.prefill, prefill_replicas=count)

    @property
    def engine(self) -> str:
        """Return a short description of the engine: GPU, parallelism, weight format, and draft method."""
        parts = [self.pool.gpu, self._parallelism]
        parts += [text for text in (self.pool.quantization, self.pool.speculator) if text is not None]
        return " ".join(parts)

    @property
    def _parallelism(self) -> str:
        return f"TP{self.pool.tensor_parallel_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRejection(Rejection):
    """Rejected pair of prefill engine `prefill` and decode engine `pool`; `prefill_replicas` None: with any number."""

    prefill: Pool
    prefill_replicas: int | None

    @property
    def _parallelism(self) -> str:
        return f"TP{self.prefill.tensor_parallel_size} before TP{self.pool.tensor_parallel_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """Launch of one replica: shell command, notes on settings that it cannot express, and files that it reads."""

    role: str
    replicas: Count
    command: str
    notes: tuple[str, ...]
    files: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked(WrittenRecord):
    """Deployment that meets the SLO.

    `trial` is the simulation result with step times at the required confidence (quantile of their prediction error),
    `predicted` the one with predicted step times (None if not run). `launch` has a command for each kind of server; it
    is empty if the engine is only a baseline that cannot be launched. `watts` and `joules_per_output_token` count every
    GPU at full power; `drawn` is the power drawn at the served load. `confidence` is the highest tested confidence
    (`step_error.LEVELS`) at which the SLO is still met.
    """

    FIRST: ClassVar[tuple[str, ...]] = ("label", "pools", "pool", "replicas", "router")
    LAST: ClassVar[tuple[str, ...]] = ("tokens_per_s_per_gpu",)

    candidate: Candidate = field(metadata=NOT_WRITTEN)
    num_gpus: Count
    billed_gpus: Count
    objective: float
    trial: Evaluation
    predicted: Evaluation | None
    confidence: Share
    cost: CostEstimate | None
    watts: float
    joules_per_output_token: float | None
    drawn: DrawnEnergy | None
    quality: QualityChange
    launch: tuple[LaunchLine, ...]
    basis: str
    step_error_assumed: bool
    best_of_its_kind: bool

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.trial.output_tokens_per_s / self.num_gpus

    @property
    def label(self) -> str:
        return self.candidate.label

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self.candidate.pools

    @property
    def pool(self) -> Pool:
        return self.candidate.pool

    @property
    def replicas(self) -> int:
        return self.candidate.replicas

    @property
    def router(self) -> str:
        return self.candidate.router


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional(WrittenRecord):
    """Deployment with a lower value of the objective than the recommended one, and the conditions that the user has to
    accept: formats that lose quality, or drafts not measured for the model."""

    conditions: tuple[str, ...]
    answer: Ranked


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Simulated deployment, as a point of a Pareto front."""

    label: str
    gpu: str
    num_gpus: int
    usd_per_hour: float | None
    tokens_per_s_per_user: float | None
    tokens_per_s_per_gpu: float
    levels: tuple[Level, ...]
    met: bool

    @property
    def worst_ratio(self) -> float:
        """Return the highest ratio of latency to limit over all SLOs."""
        return max((level.ratio for level in self.levels), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """SLO that no deployment in the search space meets: the best value found, and the candidate with this value."""

    slo: str
    limit: str
    best: str
    factor: float
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Deployment that meets the SLO after `change`: new values of `max_gpus`, `budget` ($/h), `confidence`,
    `request_rate` (requests/s) or `slo`. Verified by simulation."""

    change: dict[str, float | str]
    label: str
    pools: tuple[Pool, ...]
    num_gpus: Count
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMiss(WrittenRecord):
    """Deployment within the limits of the search that comes closest to meeting the SLO but misses it.

    `trial` is the simulation result with step times at the required confidence (quantile of their prediction error),
    `predicted` the one with predicted step times (None if not run). `reason` states the bound by which the search
    excluded the deployment; None if the search simulated it.
    """

    FIRST: ClassVar[tuple[str, ...]] = ("label", "pools")

    candidate: Candidate = field(metadata=NOT_WRITTEN)
    num_gpus: Count
    usd_per_hour: float | None
    trial: Evaluation
    predicted: Evaluation | None
    reason: str | None

    @property
    def label(self) -> str:
        return self.candidate.label

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self.candidate.pools


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCounts(WrittenRecord):
    """Counts of the search.

    `points` is the number of combinations of an engine and a number of replicas within the limits, over all engines
    that can run; an exhaustive search would simulate each. `excluded` and `bounded` count engines that exact checks
    and bounds rejected without simulation; `simulated` counts distinct deployments.
    """

    LAST: ClassVar[tuple[str, ...]] = ("simulated_fraction",)

    engines: int
    points: int
    excluded: int
    bounded: int
    simulated: int
    unresolved: int

    @property
    def simulated_fraction(self) -> float:
        return self.simulated / self.points if self.points else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(AnswerRecord):
    """Result of `plan`: deployments that meet the SLO in `ranked`, the best first; if there are none, `misses` has the
    cause, `nearest` the deployment nearest to the SLO, and `remedies` changes with which the SLO is met.

    `conditional` are deployments with a lower objective that lose quality or use drafts whose acceptance is not
    measured for this model; they are in `ranked` only if the user names the format or draft method.

    `proved`: every candidate with a lower objective was excluded, rejected by a bound, or simulated. Otherwise the
    search ended early (`ended`), and better candidates may exist among the `unresolved` ones.
    """

    SCHEMA: ClassVar[str] = "capacity/plan/v1"
    ROWS: ClassVar[str] = "ranked"
    LAST: ClassVar[tuple[str, ...]] = ("proof", "reasons")

    model: str
    workload: str
    requests: int
    requests_per_s: float  # infinite for requests without arrival times
    concurrency: int | None  # requests in flight of a closed loop
    input_tokens: float
    output_tokens: float
    slos: tuple[str, ...]
    slo_window: str  # window in which the SLO must hold; trace: over all requests, as for shorter traffic
    busiest_window: Window | None  # window with the most offered work; None: all requests are judged together
    objective: Objective
    confidence: float
    ranked: tuple[Ranked, ...]
    misses: tuple[Miss, ...]
    nearest: NearestMiss | None
    remedies: tuple[Remedy, ...]
    conditional: tuple[Conditional, ...]
    rejected: tuple[PairRejection | Rejection, ...]
    speed_front: tuple[Point, ...]
    cost_front: tuple[Point, ...]
    counts: SearchCounts
    proved: bool
    ended: Ended
    first_answer_s: float | None
    elapsed_s: float
    prices: tuple[str, ...]
    not_searched: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def best(self) -> Ranked | None:
        """Return the best deployment; None if none meets the SLO."""
        return self.ranked[0] if self.ranked else None

    @property
    def proof(self) -> str:
        """Return text that states whether no better deployment can exist, and if not proved, why."""
        if self.proved:
            return "every cheaper candidate was excluded by a bound or simulated"
        unresolved = self.counts.unresolved
        what = (
            f"{unresolved} engines were not evaluated"
            if unresolved
            else "some deployments were not simulated in full"
        )
        if self.ended == "interrupted":
            return f"the search was interrupted: {what}"
        return f"the time limit ended the search: {what} (--time-limit-s 0: no limit)"

    @property
    def reasons(self) -> dict[str, int]:
        """Return the number of rejected candidates for each kind of reason."""
        return dict(Counter(rejection.kind for rejection in self.rejected))
