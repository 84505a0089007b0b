"""What the verbs answer: frozen records whose `to_dict()` is the JSON of the command line, versioned by `schema`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from capacity.answers.attribution import BoundTime, Response, Shares
from capacity.answers.interval_parts import ExplainedInterval
from capacity.base.latency_metrics import FURTHER_METRICS, METRICS
from capacity.base.quantity import Quantity as Quantity
from capacity.base.record import AnswerRecord, plain
from capacity.hardware.cost_estimate import CostEstimate
from capacity.step import Bound

if TYPE_CHECKING:
    from capacity.answers.pool_runs import PoolRun, PriorityClass
    from capacity.simulator import SimulationResult
    from capacity.simulator.levels import Goodput, SloLevel
    from capacity.simulator.replications import Replications
    from capacity.simulator.verdict import Verdict
    from capacity.workload.windows import Window

SIMULATION_SCHEMA = Path(__file__).with_name("simulation_schema.json")  # without the latencies, a metric each

Basis = Literal["analytic", "calibrated", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """The model; `active_params` are those that one token passes through, input embedding included."""

    name: str
    total_params: int
    active_params: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """The GPU profile, and how many of them one engine uses."""

    name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Bytes on the fullest GPU: `total` is what the engine sees, `usable` what it may take of it."""

    total_bytes: int
    usable_bytes: int
    weights_bytes: int
    activations_bytes: int
    overhead_bytes: int
    kv_cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(AnswerRecord):
    """Whether a model fits, and what is left for its KV cache.

    `kv_bytes_per_token` is the whole model's, over the layers whose cache grows with the context, without
    replication over tensor-parallel ranks; windowed and linear-attention layers are reported apart.
    `kv_capacity_tokens` is what the engine's log prints; `max_concurrency` is at `max_model_len`.
    """

    SCHEMA: ClassVar[str] = "capacity/fit/v1"

    fits: bool
    reason: str | None
    model: ModelSummary
    gpu: GpuSummary
    engine: str
    weight_format: str
    kv_cache_dtype: str
    max_model_len: int
    memory: MemorySummary
    kv_bytes_per_token: int
    kv_window_bytes_per_token: int
    linear_state_bytes_per_request: int
    kv_block_tokens: int
    kv_capacity_blocks: int
    kv_capacity_tokens: int
    max_context_tokens: int
    max_concurrency: float
    smallest_tensor_parallel_size: int | None
    startup: StartUp | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Seconds from the start of a replica to its first request, nothing cached, in all and by part.

    `weights_gb_per_s`: the rate per GPU at which its weights are read from disk or network in `parts_s`.
    """

    total_s: Quantity
    parts_s: Mapping[str, Quantity]
    weights_gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What takes the largest part of each phase's step."""

    prefill: Bound
    decode: Bound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """One operator of a step, all layers, on one GPU."""

    name: str
    seconds: float
    flops: float
    bytes: float
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The operators of one representative step a phase; their seconds add up to the step."""

    prefill: tuple[OperatorTime, ...]
    decode: tuple[OperatorTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """FLOPs per HBM byte of a phase's step, beside the ridge of the GPU where compute takes over from memory."""

    prefill_flops_per_byte: float
    decode_flops_per_byte: float | None
    ridge_flops_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Provisioned energy of one output token, prompts included: GPU, host and cooling at full power."""

    watts_per_gpu: float
    joules_per_output_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeans:
    """Means over all `num_prompts` requests of a run."""

    num_prompts: int
    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    requests_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCount:
    """A number of replicas and their bill; `requests_per_s_per_replica` is the load that each of them can take.

    Without a price the dollars are None.
    """

    replicas: int
    tensor_parallel_size: int
    num_gpus: int
    billed_gpus: int
    usd_per_hour: float | None
    usd_per_month: float | None
    requests_per_s_per_replica: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasNeeded:
    """The fewest replicas that serve a load: `stable` without a queue that grows, `within_slo` within `slos` as well.

    `busiest_requests_per_s`, where arrivals vary: the rate of the busiest 15 minutes, or of the part that was drawn.
    `stable` is None for a closed loop, whose load follows the service. `within_slo` is None without `slos`, and where
    no number of replicas meets them; `reason` then says why. `judged_in`: of longer traffic, the window that decides.
    """

    requests_per_s: float | None
    busiest_requests_per_s: float | None
    slos: tuple[str, ...]
    confidence: float
    stable: ReplicaCount | None
    within_slo: ReplicaCount | None
    reason: str | None
    judged_in: str | None = None

    @property
    def needed(self) -> ReplicaCount | None:
        """The replicas to rent: within the service levels where there are some."""
        return self.within_slo if self.slos else self.stable


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """The settings that a prediction assumes of its server, and the distance of its clients."""

    engine: str
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    client_latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Fit):
    """Everything of `Fit`, and how fast and how dear.

    `tpot_s` is None for a single output token. Of a load (`concurrency`, `request_rate`) the means are those of
    clients in its steady state, queueing included, by a simulated run; `ttft_s` and `e2e_s` are None where there is
    none, as `verdict` says in the words of `simulate`, and `requests_per_s` is then what is served at most.
    `whole_run` are the means over all requests of that run, warm-up and drain included: what `vllm bench serve`
    prints of as many. `in_step`: a closed loop of equal lengths, which synchronises. Of a batch, which
    has no queue, these are None. `tokens_per_step`: what a decode step, as the breakdown shows it, yields of a request
    on average: 1, or more with drafts. `ttft_parts_s` add up to `ttft_s`. `requests_in_flight` is `requests_per_s` *
    `e2e_s`. The $ quantities are those of `cost` with the interval of the throughput; None without a price. Intervals
    are of the deployment that `launch` describes; `as_found` has the latencies with those of a server whose settings
    and client are not known.
    `replicas_needed` is set for users, for service levels and for rates that this engine does not serve.
    """

    SCHEMA: ClassVar[str] = "capacity/estimate/v1"

    input_len: int
    output_len: int
    batch_size: int | None
    concurrency: int | None
    request_rate: float | None
    verdict: str | None
    verdict_reason: str | None
    in_step: bool | None
    launch: LaunchSettings
    ttft_s: Quantity | None
    ttft_parts_s: Mapping[str, float] | None
    tpot_s: Quantity | None
    e2e_s: Quantity | None
    as_found: Mapping[str, Quantity | None] | None
    tokens_per_step: float
    requests_in_flight: float | None
    whole_run: RunMeans | None
    output_tokens_per_s: Quantity
    output_tokens_per_s_per_gpu: Quantity
    output_tokens_per_s_per_user: Quantity | None
    requests_per_s: Quantity
    bound: Bounds
    arithmetic_intensity: Intensity
    breakdown: Breakdown
    cost: CostEstimate | None
    usd_per_million_input_tokens: Quantity | None
    usd_per_million_output_tokens: Quantity | None
    energy: Energy
    basis: Basis
    replicas_needed: ReplicasNeeded | None = None

    @property
    def further_latencies(self) -> dict[str, Quantity | None]:
        """The metrics beyond TTFT, TPOT and E2E, by title."""
        return {METRICS[key].title: getattr(self, f"{key}_s") for key in FURTHER_METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution(AnswerRecord):
    """Where an estimate's time goes, what would help, and why its intervals are as wide as they are.

    `decode` is None for a single output token.
    """

    SCHEMA: ClassVar[str] = "capacity/explain/v1"

    model: ModelSummary
    gpu: GpuSummary
    engine: str
    input_len: int
    output_len: int
    batch_size: int | None
    concurrency: int | None
    request_rate: float | None
    ttft_s: float
    tpot_s: float | None
    prefill: Shares
    decode: Shares | None
    breakdown: Breakdown
    responses: tuple[Response, ...]
    intervals: tuple[ExplainedInterval, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation(AnswerRecord):
    """What users of a deployment see: `run` holds the records and the time series, `to_dict()` the summary.

    The summary's keys are those of `vllm bench serve` (capacity/simulator/metrics.py), plus what only a simulator sees.
    `predicted_ms` has the means and high percentiles of latencies with their 90 % intervals, by the summary's names;
    `as_found_ms` the same of a server whose settings and client are not known. `slo_window`: of a longer run, the
    window that `slos` are of, which is the worst. `cost` is of the load that the steady part shows. `priorities`:
    classes of requests, the first served first; empty where all are alike. `pools`: where there are several.
    """

    SCHEMA: ClassVar[str] = "capacity/simulation/v1"

    model: ModelSummary
    gpu: GpuSummary
    engine: str
    kv_capacity_tokens: int
    kv_capacity_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    workload: str
    run: SimulationResult
    warnings: tuple[str, ...]
    verdict: Verdict | None = None
    slos: tuple[SloLevel, ...] = ()
    slo_window: Window | None = None
    goodput: Goodput | None = None
    replications: Replications | None = None
    time_parts: Mapping[str, Mapping[str, float]] | None = None
    step_bounds: tuple[BoundTime, ...] = ()
    predicted_ms: Mapping[str, Quantity] = field(default_factory=dict)
    as_found_ms: Mapping[str, Quantity] = field(default_factory=dict)
    cost: CostEstimate | None = None
    priorities: tuple[PriorityClass, ...] = ()
    pools: tuple[PoolRun, ...] = ()

    @property
    def mean_ttft_ms(self) -> Quantity | None:
        """The mean time to first token with its interval."""
        return self.predicted_ms.get("mean_ttft_ms")

    @property
    def mean_tpot_ms(self) -> Quantity | None:
        """The mean time per output token with its interval."""
        return self.predicted_ms.get("mean_tpot_ms")

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain JSON values, `schema` first; the keys of the run and of its verdict on one level."""

        def written(*names: str) -> dict[str, object]:
            return {name: plain(getattr(self, name)) for name in names}

        judged: dict[str, object] = dict.fromkeys(("verdict", "verdict_reason", "evidence", "intervals"))
        return {
            "schema": self.SCHEMA,
            **written("model", "gpu", "engine", "kv_capacity_tokens", "kv_capacity_blocks"),
            **written("max_num_seqs", "max_num_batched_tokens", "workload"),
            **self.run.to_dict(),
            **(judged if self.verdict is None else self.verdict.to_dict()),
            **written("slos", "slo_window", "replications", "goodput", "time_parts", "step_bounds"),
            "priorities": [each.to_dict() for each in self.priorities],
            "prediction_intervals": _intervals(self.predicted_ms),
            "prediction_intervals_as_found": _intervals(self.as_found_ms),
            **written("cost"),
            **({"pools": [pool.to_dict() for pool in self.pools]} if self.pools else {}),
            **written("warnings"),
        }

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of `to_dict()`: a metric that no request has (TPOT of one-token outputs) is null."""
        from capacity.simulator.distribution import flattened_latencies  # loads numpy

        schema = json.loads(SIMULATION_SCHEMA.read_bytes())
        latencies = {key: {"type": ["number", "null"]} for key in flattened_latencies(dict.fromkeys(METRICS))}
        schema["properties"] |= {"schema": {"const": cls.SCHEMA}, **latencies}
        schema["required"] += ["schema", *latencies]
        return dict(schema)


def _intervals(known: Mapping[str, Quantity]) -> dict[str, dict[str, float | None] | None]:
    return {
        name: None if found is None else {"low": found.low, "high": found.high}
        for name, found in {"mean_ttft_ms": None, "mean_tpot_ms": None, **known}.items()
    }
