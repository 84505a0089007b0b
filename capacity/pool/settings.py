"""Settings of one engine with all defaults filled in, for the memory plan and the step model."""

from dataclasses import dataclass, replace
from typing import Self

from capacity.deployment import Pool
from capacity.deployment.engines import EngineSpec
from capacity.hardware import HardwareProfile
from capacity.model import ModelSpec
from capacity.model.quantization import QuantizationScheme, scheme_for


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """Inputs of the memory plan and step model: model, GPU, engine, and all limits with defaults filled in.

    `pool` is as the user wrote it; the other fields have the resolved values. A `kv_cache_dtype` of "auto" means 16
    bit.
    """

    pool: Pool
    model: ModelSpec
    profile: HardwareProfile
    engine: EngineSpec
    scheme: QuantizationScheme
    kv_cache_dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    prefix_caching: bool
    notes: tuple[str, ...]
    host_cpu: HardwareProfile | None = None  # computes or stores layers that are not on the GPU

    @property
    def max_num_scheduled_tokens(self) -> int:
        """Return the maximum tokens of a step; memory is reserved for steps of `max_num_batched_tokens`."""
        return self.pool.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def gpu_memory_utilization(self) -> float:
        return self.pool.gpu_memory_utilization or self.engine.gpu_memory_utilization

    @property
    def reserve_full_isl(self) -> bool:
        """Return whether the engine admits a request only if the KV of its whole prompt fits."""
        chosen = self.pool.scheduler_reserve_full_isl
        return self.engine.reserve_full_isl if chosen is None else chosen

    @property
    def expert_parallel(self) -> bool:
        return self.pool.enable_expert_parallel and self.model.is_moe

    @property
    def lockstep_ranks(self) -> int:
        """Return the data-parallel ranks that share experts and run in lockstep; 1 for a dense model."""
        return self.pool.data_parallel_size if self.model.is_moe else 1

    @property
    def overlapping_stages(self) -> int:
        """Return the pipeline stages that compute different steps at the same time."""
        return 1 if self.engine.serial_stages else self.pool.pipeline_parallel_size

    @property
    def independent_ranks(self) -> int:
        """Return the number of data-parallel ranks that run independently, like replicas."""
        return 1 if self.model.is_moe else self.pool.data_parallel_size

    def with_tensor_parallel_size(self, size: int) -> Self:
        """Return the settings with another tensor-parallel size and the same limits."""
        return replace(self, pool=self.pool.model_copy(update={"tensor_parallel_size": size}))


# xgrammar in vLLM with Llama-3.1-8B: TTFT of 312 ms instead of 204 ms (pull request 10835, 2024-12)
COMPILE_S = 0.108
# filling a row's bitmask during the forward pass: 103.2 to 85.3 requests/s of 128 tokens at up to 800 streams, all with
# the same JSON schema (pull request 26866, 2025-10; Qwen3-1.7B); 37 us before that change
MASK_S = 16e-6


def add_grammar_cost(engine: EngineSpec, *, compiled_each: bool) -> EngineSpec:
    """Return the engine with the host time of guided decoding; `compiled_each`: every request has a new grammar.

    The grammar mask adds host time per sequence. Not modelled: grammar compilation delays other requests, and grammar
    states use memory.
    """
    return engine.model_copy(
        update={
            "host_per_sequence_s": engine.host_per_sequence_s + MASK_S,
            "request_latency_s": engine.request_latency_s + (COMPILE_S if compiled_each else 0.0),
        }
    )


def select_model_runner(
    engine: EngineSpec, model: ModelSpec, quantization: str | None, platform: str
) -> EngineSpec:
    """Return the engine as on vLLM's Model Runner V2, if its release runs the model on that by default, or as on V1.

    Model Runner V2 schedules pipeline stages asynchronously, and counts the tokens of penalties on the GPU. For models
    that are exceptions from V2, this time of penalties is not added.
    """
    formats, rule = engine.runner_v2_models, "asynchronous_stages"
    hybrid = model.is_moe or model.state_bytes_per_sequence()
    chosen = formats.get(f"{model.model_type}:{platform}") or formats.get(model.model_type)
    chosen = chosen or (None if hybrid else formats.get("dense"))
    missing = [name for name in engine.missing_scheduling_rules if name != rule]
    quantized = chosen == "16-bit" and scheme_for(model, quantization).quantized
    if chosen == "never":
        return engine.model_copy(update={"missing_scheduling_rules": (*missing, rule)})
    if chosen is None or model.task != "generate" or quantized:
        return engine.model_copy(update={"serial_stages": False}) if engine.serial_stages else engine
    return engine.model_copy(
        update={
            "missing_scheduling_rules": engine.missing_scheduling_rules
            if engine.serial_stages
            else tuple(missing),
            "penalty_host_s": 0.0,
            "penalty_host_per_sequence_s": 0.0,
        }
    )


def add_penalty_cost(engine: EngineSpec) -> EngineSpec:
    """Return the engine with the host time of token penalties, for which each step rebuilds a table of output tokens.

    The time grows with the length of the outputs; the constants apply to outputs of about 600 tokens.
    """
    return engine.model_copy(
        update={
            "host_serial_s": engine.host_serial_s + engine.penalty_host_s,
            "host_serial_per_sequence_s": engine.penalty_host_per_sequence_s,
        }
    )
