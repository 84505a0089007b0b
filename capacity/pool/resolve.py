"""From names to objects: a model and a pool, as a user writes them, become everything that a question needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.engines import EngineSpec, engine_names, find_engine
from capacity.hardware import HardwareProfile, load_profile
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import (
    QuantizationScheme,
    find_format,
    find_kv_cache_format,
    scheme_for,
    uniform_scheme,
)
from capacity.pool.memory import MemoryPlan, memory_plan, smallest_tensor_parallel_size
from capacity.step.closed_form import EngineLimits
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting


@dataclass(frozen=True, kw_only=True)
class ResolvedPool:
    """One engine of a pool: the model, the GPU, the engine's release, and its limits with defaults filled in."""

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

    @property
    def memory_settings(self) -> dict[str, Any]:
        """The keywords of `memory_plan`, save for the tensor-parallel size."""
        return {
            "scheme": self.scheme,
            "kv_cache_dtype": self.kv_cache_dtype,
            "pipeline_parallel_size": self.pool.pipeline_parallel_size,
            "data_parallel_size": self.pool.data_parallel_size,
            "enable_expert_parallel": self.pool.enable_expert_parallel,
            "max_model_len": self.max_model_len,
            "gpu_memory_utilization": self.pool.gpu_memory_utilization,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "block_size": self.pool.block_size,
            "enforce_eager": self.pool.enforce_eager,
            "num_gpu_blocks_override": self.pool.num_gpu_blocks_override,
            "kv_cache_memory_bytes": self.pool.kv_cache_memory_bytes,
        }

    @cached_property
    def memory(self) -> MemoryPlan:
        """What the weights leave for the KV cache."""
        return memory_plan(
            self.model,
            self.profile,
            self.engine,
            tensor_parallel_size=self.pool.tensor_parallel_size,
            **self.memory_settings,
        )

    def concurrent_requests(self, tokens: int) -> int:
        """Requests of `tokens` tokens that the KV cache holds at once."""
        return (self.memory.kv_capacity_blocks - 1) // self.memory.layout.blocks_of_request(tokens)

    @property
    def lockstep_ranks(self) -> int:
        """Data-parallel ranks that take every step together, because they share experts; 1 for a dense model."""
        return self.pool.data_parallel_size if self.model.is_moe else 1

    @property
    def independent_ranks(self) -> int:
        """Data-parallel ranks that have nothing to do with each other: replicas under another name."""
        return 1 if self.model.is_moe else self.pool.data_parallel_size

    @property
    def more_memory(self) -> str:
        """The ways out of a KV cache that is too small."""
        return "use more GPUs (--tensor-parallel-size), --kv-cache-dtype fp8, or smaller weights (--quantization)"

    @property
    def ridge_flops_per_byte(self) -> float:
        """Where compute takes over from HBM, at the rate that the layers' weights multiply in."""
        dtype = self.scheme.format_of("dense_ffn").execution(self.profile.dense_flops_per_s).compute_dtype
        rates = self.profile.dense_flops_per_s
        return rates.get(dtype, rates["bf16"]) / self.profile.hbm_bytes_per_s

    @cached_property
    def smallest_tensor_parallel_size(self) -> int | None:
        """The least TP at which this would fit, all else equal; None where none does."""
        return smallest_tensor_parallel_size(self.model, self.profile, self.engine, **self.memory_settings)

    @property
    def step_setting(self) -> StepSetting:
        """What the step model is made of."""
        return StepSetting(
            model=self.model,
            profile=self.profile,
            engine=self.engine,
            scheme=self.scheme,
            kv_cache_dtype=self.kv_cache_dtype,
            tensor_parallel_size=self.pool.tensor_parallel_size,
            pipeline_parallel_size=self.pool.pipeline_parallel_size,
            data_parallel_size=self.lockstep_ranks,
            enable_expert_parallel=self.pool.enable_expert_parallel,
            enforce_eager=self.pool.enforce_eager,
            max_num_seqs=self.max_num_seqs,
        )

    @cached_property
    def step_model(self) -> StepModel:
        """What each step costs."""
        return StepModel(self.step_setting)

    @property
    def max_num_scheduled_tokens(self) -> int:
        """Most tokens in a step."""
        return self.pool.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def limits(self) -> EngineLimits:
        """What bounds the composition of a step, for the closed-form estimator."""
        return EngineLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_scheduled_tokens,
            chunked_prefill=self.chunked_prefill,
            mixes_prefill_with_decode=self.engine.mixes_prefill_with_decode,
            window_tokens=self.model.window_tokens,
            request_latency_s=self.engine.request_latency_s + self.engine.response_latency_s,
        )


def resolve(
    model: str | Path | ModelSpec, pool: Pool, *, profiles: str | Path | None = None, download: bool = False
) -> ResolvedPool:
    """Look up every name of a pool and fill in the engine's defaults.

    `profiles`: a folder of further GPU profiles. Raises UnknownName, UnsupportedModel, MalformedFile or
    InvalidInput, each in one line.
    """
    directories: Sequence[Path | str] = [profiles] if profiles else []
    spec = model if isinstance(model, ModelSpec) else load_model(model, download=download)
    if pool.max_model_len == "auto":
        return _longest_that_fits(spec, pool, profiles)
    spec = _in_dtype(spec, pool.dtype)
    profile = load_profile(pool.gpu, directories)
    engine = find_engine(pool.engine)
    defaults = engine.default_limits(profile.memory_engine_bytes, profile.architecture)
    scheme = scheme_for(spec, pool.quantization)
    max_model_len, notes = _max_model_len(spec, pool)
    max_num_seqs = pool.max_num_seqs or defaults.max_num_seqs
    chunked = engine.chunked_prefill if pool.enable_chunked_prefill is None else pool.enable_chunked_prefill
    budget = pool.max_num_batched_tokens or defaults.max_num_batched_tokens
    if (
        engine.name == "sglang" and spec.is_moe
    ):  # its DP attention divides its defaults: server_args.py, 0.5.23
        budget = pool.max_num_batched_tokens or max(budget // pool.data_parallel_size, 1)
        max_num_seqs = pool.max_num_seqs or max(max_num_seqs // pool.data_parallel_size, 1)
    if not chunked and not pool.max_num_batched_tokens:
        budget = max(budget, max_model_len)
    if not chunked and budget < max_model_len:
        raise InvalidInput(
            f"--max-num-batched-tokens {budget} is below --max-model-len {max_model_len} without chunked prefill: "
            "longer prompts could never run. Raise it, or use --enable-chunked-prefill."
        )
    if pool.max_num_batched_tokens and budget < max_num_seqs:
        if pool.max_num_seqs:
            raise InvalidInput(
                f"--max-num-batched-tokens {budget} is below --max-num-seqs {max_num_seqs}: "
                "raise the one or lower the other"
            )
        max_num_seqs = budget
    kv_cache_dtype = _kv_cache_dtype(pool, scheme)
    _check_formats(engine, scheme, kv_cache_dtype, spec.dtype)
    if pool.max_num_scheduled_tokens is not None and pool.max_num_scheduled_tokens > budget:
        raise InvalidInput(
            f"--max-num-scheduled-tokens {pool.max_num_scheduled_tokens} is above --max-num-batched-tokens {budget}: "
            "lower the one or raise the other"
        )
    caching = engine.prefix_caching if pool.enable_prefix_caching is None else pool.enable_prefix_caching
    return ResolvedPool(
        pool=pool,
        model=spec,
        profile=profile,
        engine=engine,
        scheme=scheme,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        chunked_prefill=chunked,
        prefix_caching=caching,
        notes=(*engine.notes, *spec.notes, *_converted(spec, scheme), *notes),
    )


def _converted(model: ModelSpec, scheme: QuantizationScheme) -> tuple[str, ...]:
    """That a quantized checkpoint is asked for in another format: no engine does that while loading."""
    own = model.checkpoint
    if scheme is own or not own.quantized or scheme.name == own.name:
        return ()
    return (f"{model.name} is published in {own.name}: {scheme.name} means a copy converted beforehand",)


def _longest_that_fits(model: ModelSpec, pool: Pool, profiles: str | Path | None) -> ResolvedPool:
    """`--max-model-len auto`: the model's own length, or the longest request that the KV cache holds."""
    found = resolve(model, pool.model_copy(update={"max_model_len": None}), profiles=profiles)
    longest = found.memory.max_context_tokens
    if found.memory.fits or longest < 1:
        return found
    note = f"--max-model-len auto: {longest} of the model's {found.max_model_len} tokens"
    shorter = resolve(model, pool.model_copy(update={"max_model_len": longest}), profiles=profiles)
    return replace(shorter, notes=(*shorter.notes, note))


DTYPES: dict[str, Literal["bf16", "fp16", "fp32"]] = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float": "fp32",
    "float32": "fp32",
}


def _in_dtype(model: ModelSpec, dtype: str) -> ModelSpec:
    """The model loaded with `--dtype`: activations, KV, and the weights of a checkpoint that is not quantized."""
    if dtype == "auto" or DTYPES[dtype] == model.dtype:
        return model
    name = DTYPES[dtype]
    if model.checkpoint.quantized:
        return replace(model, dtype=name)
    return replace(
        model, dtype=name, checkpoint=uniform_scheme(name, find_format(name), base=find_format(name))
    )


def _max_model_len(model: ModelSpec, pool: Pool) -> tuple[int, tuple[str, ...]]:
    limit = model.max_position_embeddings
    if pool.max_model_len is None or pool.max_model_len == "auto":
        return limit, ()
    if pool.max_model_len > limit:
        raise InvalidInput(
            f"--max-model-len {pool.max_model_len} is beyond the {limit} positions that {model.name} was made for"
        )
    return pool.max_model_len, ()


def _check_formats(
    engine: EngineSpec, scheme: QuantizationScheme, kv_cache_dtype: str, model_dtype: str
) -> None:
    """Raises InvalidInput where the engine cannot load the weights, or keep KV in that format."""
    if not engine.loads(scheme.families):
        missing = ", ".join(family for family in scheme.families if family not in engine.weight_formats)
        raise InvalidInput(
            f"{engine.label} does not load {missing} weights ({scheme.name}), it loads "
            f"{', '.join(engine.weight_formats)}: use another --quantization, or "
            f"{_engines_that(lambda other: other.loads(scheme.families))}"
        )
    kv = find_kv_cache_format(kv_cache_dtype, model_dtype=model_dtype).name
    if not engine.caches_in(kv):
        raise InvalidInput(
            f"{engine.label} keeps no KV cache in {kv}, only in "
            f"{', '.join(('16 bit', *engine.kv_cache_formats))}: use another --kv-cache-dtype, or "
            f"{_engines_that(lambda other: other.caches_in(kv))}"
        )


def _engines_that(can: Callable[[EngineSpec], bool]) -> str:
    """The engines whose newest release can do it, as a flag to give."""
    able = [name for name in engine_names() if name not in ("naive", "static") and can(find_engine(name))]
    return f"--engine {' or '.join(able)}" if able else "no engine that is listed here"


def _kv_cache_dtype(pool: Pool, scheme: QuantizationScheme) -> str:
    """`auto` is the checkpoint's wish, where it has one."""
    if pool.kv_cache_dtype == "auto" and scheme.kv_cache_dtype:
        return scheme.kv_cache_dtype
    return pool.kv_cache_dtype
