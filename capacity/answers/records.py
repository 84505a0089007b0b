"""Answers of the verbs: frozen records whose `to_dict()` is the JSON of the command line, versioned by `schema`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from capacity.answers.attribution import BoundTime, ResourceEffect, Shares
from capacity.answers.drawn_energy import DrawnEnergy
from capacity.answers.interval_parts import ExplainedInterval
from capacity.base.latency_metrics import FURTHER_METRICS, METRICS
from capacity.base.quantity import Quantity as Quantity
from capacity.base.record import AnswerRecord, to_plain_values
from capacity.hardware.cost_estimate import CostEstimate
from capacity.step import Bound

if TYPE_CHECKING:
    from capacity.answers.pool_runs import PoolRun, PriorityClass
    from capacity.simulator import SimulationResult
    from capacity.simulator.levels import Goodput, SloLevel
    from capacity.simulator.replications import Replications
    from capacity.simulator.verdict import Verdict
    from capacity.workload.windows import Window

SIMULATION_SCHEMA = Path(__file__).with_name("simulation_schema.json")  # without the latency metrics

Basis = Literal["analytic", "calibrated", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """The model. `active_params`: parameters that one token uses, including the input embedding."""

    name: str
    total_params: int
    active_params: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """The GPU profile, and the number of GPUs of one engine."""

    name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Memory of the fullest GPU in bytes. `total`: memory that the engine can see; `usable`: memory that it may use."""

    total_bytes: int
    usable_bytes: int
    weights_bytes: int
    activations_bytes: int
    overhead_bytes: int
    kv_cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(AnswerRecord):
    """Whether a model fits, and the capacity of its KV cache.

    `kv_bytes_per_token` is for the whole model, without replication over tensor-parallel ranks. It includes the layers
    whose cache grows with the context; windowed and linear-attention layers are reported separately.
    `kv_capacity_tokens` is the number in the engine's log. `max_concurrency` is for requests of `max_model_len` tokens.
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
    """Seconds from the start of a replica with cold caches to its first request: in total and by phase (`parts_s`).

    `weights_gb_per_s`: assumed rate per GPU of reading weights from disk or network.
    """

    total_s: Quantity
    parts_s: Mapping[str, Quantity]
    weights_gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bound (compute, HBM, ...) that takes the largest part of a prefill step, and that of a decode step."""

    prefill: Bound
    decode: Bound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """One operator of a step, summed over all layers, on one GPU."""

    name: str
    seconds: float
    flops: float
    bytes: float
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Operators of a typical prefill step and a typical decode step; their seconds add up to the step's time."""

    prefill: tuple[OperatorTime, ...]
    decode: tuple[OperatorTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """FLOPs per HBM byte of a prefill and a decode step; steps above the ridge point of the GPU are compute bound."""

    prefill_flops_per_byte: float
    decode_flops_per_byte: float | None
    ridge_flops_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy per output token, including that of prompts.

    `watts_per_gpu` and `joules_per_output_token` assume GPU, host and cooling at full power. `drawn`: the power drawn
    at this load.
    """

    watts_per_gpu: float
    joules_per_output_token: float
    drawn: DrawnEnergy


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeans:
    """Means over all `num_prompts` requests of a run, including warm-up and drain."""

    num_prompts: int
    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    requests_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCount:
    """A number of replicas and its cost. `requests_per_s_per_replica`: maximum request rate of one replica.

    `usd_per_hour` and `usd_per_month` are None without a price.
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
    """Smallest numbers of replicas for a load: `stable` so that no queue grows, `within_slo` so that `slos` are met.

    `busiest_requests_per_s`, for varying arrivals: the rate of the busiest 15 minutes, or of the part that was
    simulated. `stable` is None for a closed loop, because its request rate depends on the speed of the deployment.
    `within_slo` is None without `slos`, or if no number of replicas meets them; `reason` then explains why.
    `judged_in`: the window of long traffic in which the SLOs apply.
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
        """Return the number of replicas to rent: `within_slo` if there are SLOs, else `stable`."""
        return self.within_slo if self.slos else self.stable


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """Server settings that a prediction assumes, and the latency between clients and server."""

    engine: str
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    client_latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Fit):
    """All fields of `Fit`, with latency, throughput and cost.

    `tpot_s` is None for a single output token. For a load (`concurrency`, `request_rate`) the means are those that
    clients see in the steady state of a simulated run, queueing included. Without a steady state `ttft_s` and `e2e_s`
    are None, `verdict` explains why as in `simulate`, and `requests_per_s` is the maximum throughput. `whole_run`:
    means over all requests of that run, including warm-up and drain, as `vllm bench serve` prints for the same number
    of requests. `in_step`: whether this is a closed loop of equal lengths, whose requests synchronise. `verdict`,
    `whole_run` and `in_step` are None for a batch, which has no queue. `tokens_per_step`: mean tokens per request and
    decode step, above 1 with drafts. `ttft_parts_s` add up to `ttft_s`. `requests_in_flight` is `requests_per_s` *
    `e2e_s`. The $ quantities are those of `cost` with an interval from the throughput; None without a price. Intervals
    apply to the deployment that `launch` describes; `as_found` has the latencies with intervals for a server with
    unknown settings and client. `replicas_needed` is set if the user gives a number of users or SLOs, or a rate above
    the engine's capacity.
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
        """Return all latency metrics except TTFT, TPOT and E2E, by title."""
        return {METRICS[key].title: getattr(self, f"{key}_s") for key in FURTHER_METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A run that a third party published, and its prediction with the interval of unknown server settings.

    Lengths are means in tokens; `concurrency` or `request_rate` is None. `ttft_s` and `tpot_s` are predictions, None
    without a steady state. Measured values are None if the source does not state them; the measured rate is that of all
    GPUs. `not_said`: settings that the source does not state.
    """

    source: str
    url: str
    date: str
    model: str
    gpu: str
    num_gpus: int
    engine: str
    settings: str
    input_len: int
    output_len: int
    concurrency: int | None
    request_rate: float | None
    ttft_measured_s: float | None
    ttft_s: Quantity | None
    tpot_measured_s: float | None
    tpot_s: Quantity | None
    output_tokens_per_s_measured: float | None
    not_said: str

    @property
    def label(self) -> str:
        """Return model, GPUs and engine in a few words."""
        return f"{self.model}, {self.num_gpus} x {self.gpu}, {self.engine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution(AnswerRecord):
    """Time attribution of an estimate, the effect of more resources, and the sources of error of its intervals.

    `decode` is None for a single output token. `evidence`: the nearest published runs, if requested.
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
    responses: tuple[ResourceEffect, ...]
    intervals: tuple[ExplainedInterval, ...]
    warnings: tuple[str, ...]
    evidence: tuple[PublishedRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation(AnswerRecord):
    """Result of `simulate`: `run` has the requests' records and the time series, `to_dict()` the summary.

    The keys of the summary are those of `vllm bench serve` (capacity/simulator/metrics.py), and further ones.
    `predicted_ms` has the means and percentiles of latencies with their 90 % intervals, by key of the summary
    (`mean_ttft_ms`); `as_found_ms` has the same for a server with unknown settings and client. `predicted_rates` and
    `as_found_rates` are the same for the duration (s) and the throughputs. `slo_window`: the worst window of a long
    run, to which `slos` apply. `cost` and `drawn_energy` are at the steady-state load. `priorities`: classes of
    requests in the order of service; empty if all have the same priority. `pools`: results by pool if there are
    several.
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
    predicted_rates: Mapping[str, Quantity] = field(default_factory=dict)
    as_found_rates: Mapping[str, Quantity] = field(default_factory=dict)
    cost: CostEstimate | None = None
    drawn_energy: DrawnEnergy | None = None
    priorities: tuple[PriorityClass, ...] = ()
    pools: tuple[PoolRun, ...] = ()

    @property
    def mean_ttft_ms(self) -> Quantity | None:
        """Return the mean time to first token with its interval."""
        return self.predicted_ms.get("mean_ttft_ms")

    @property
    def mean_tpot_ms(self) -> Quantity | None:
        """Return the mean time per output token with its interval."""
        return self.predicted_ms.get("mean_tpot_ms")

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain JSON values, `schema` first, with the keys of run and verdict on one level."""

        def plain_fields(*names: str) -> dict[str, object]:
            return {name: to_plain_values(getattr(self, name)) for name in names}

        judged: dict[str, object] = dict.fromkeys(("verdict", "verdict_reason", "evidence", "intervals"))
        return {
            "schema": self.SCHEMA,
            **plain_fields("model", "gpu", "engine", "kv_capacity_tokens", "kv_capacity_blocks"),
            **plain_fields("max_num_seqs", "max_num_batched_tokens", "workload"),
            **self.run.to_dict(),
            **(judged if self.verdict is None else self.verdict.to_dict()),
            **plain_fields("slos", "slo_window", "replications", "goodput", "time_parts", "step_bounds"),
            "priorities": [each.to_dict() for each in self.priorities],
            "prediction_intervals": _intervals({**self.predicted_ms, **self.predicted_rates}),
            "prediction_intervals_as_found": _intervals({**self.as_found_ms, **self.as_found_rates}),
            **plain_fields("cost", "drawn_energy"),
            **({"pools": [pool.to_dict() for pool in self.pools]} if self.pools else {}),
            **plain_fields("warnings"),
        }

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema of `to_dict()`. A metric that no request has (TPOT of one-token outputs) is null."""
        from capacity.simulator.distribution import flatten_latencies  # loads numpy

        schema = json.loads(SIMULATION_SCHEMA.read_bytes())
        latencies = {key: {"type": ["number", "null"]} for key in flatten_latencies(dict.fromkeys(METRICS))}
        schema["properties"] |= {"schema": {"const": cls.SCHEMA}, **latencies}
        schema["required"] += ["schema", *latencies]
        return dict(schema)


def _intervals(known: Mapping[str, Quantity]) -> dict[str, dict[str, float | None] | None]:
    return {
        name: None if found is None else {"low": found.low, "high": found.high}
        for name, found in {"mean_ttft_ms": None, "mean_tpot_ms": None, **known}.items()
    }
