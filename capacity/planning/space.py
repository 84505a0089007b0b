"""What a planner may choose from: the axes as a user writes them, and the engines that they span."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from capacity.deployment import Pool
from capacity.spec import Spec

Objective = Literal["cost", "gpus", "energy", "latency"]
NONE = ("none", "default", "checkpoint", "auto")


def _listed(value: Any) -> Any:
    """`a,b,c` as a tuple; anything else as it is."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return (value,) if isinstance(value, (int, float)) else value


def _listed_or_default(value: Any) -> Any:
    """As `_listed`, with `default` (none, checkpoint) standing for None."""
    listed = _listed(value)
    if not isinstance(listed, (tuple, list)):
        return listed
    return tuple(None if isinstance(part, str) and part.lower() in NONE else part for part in listed)


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Formats = Annotated[tuple[str | None, ...], BeforeValidator(_listed_or_default), Field(min_length=1)]
Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_listed), Field(min_length=1)]
Limits = Annotated[
    tuple[Annotated[int, Field(ge=1)] | None, ...], BeforeValidator(_listed_or_default), Field(min_length=1)
]
Switches = Annotated[tuple[bool | None, ...], BeforeValidator(_listed_or_default), Field(min_length=1)]


def _axis(default: Any, help_text: str, *aliases: str, **limits: Any) -> Any:
    return Field(default, description=help_text, json_schema_extra={"flags": list(aliases)}, **limits)


class Search(Spec):
    """The axes that `plan` searches, lists as `a,b,c`; `default` in a list stands for the engine's own choice."""

    gpus: Names = _axis((), "GPUs to choose from, as h100,h200; all: every profile.", min_length=1)
    tensor_parallel_sizes: Counts = _axis((1, 2, 4, 8), "Tensor-parallel sizes.")
    pipeline_parallel_sizes: Counts = _axis((1,), "Pipeline-parallel sizes.")
    expert_parallel: Switches = _axis(
        (False, True), "With and without expert parallelism (models with experts)."
    )
    quantizations: Formats = _axis((None, "fp8", "int4"), "Weight formats; default: as in the checkpoint.")
    kv_cache_dtypes: Annotated[Names, Field(min_length=1)] = _axis(("auto", "fp8"), "KV-cache formats.")
    engines: Annotated[Names, Field(min_length=1)] = _axis(("vllm",), "Engines, with an optional version.")
    max_num_seqs: Limits = _axis((None,), "Most requests in one step.")
    max_num_batched_tokens: Limits = _axis((None, 2048, 1024, 512), "Token budgets of one step.")
    chunked_prefill: Switches = _axis((None,), "Chunked prefill on and off.")
    prefix_caching: Switches = _axis((None,), "Prefix caching on and off.")
    max_model_len: int | None = _axis(
        None,
        "Longest request in tokens; default: the model's, or the traffic's where that does not fit.",
        ge=1,
    )
    gpu_memory_utilization: float | None = _axis(
        None, "Share of GPU memory that the engine may use.", gt=0, le=1
    )
    max_gpus: int = _axis(64, "Most GPUs of the whole deployment.", ge=1, le=1_000_000)
    budget: float | None = _axis(None, "Most $ per hour.", gt=0)
    max_quality_loss: float | None = _axis(
        None, "Largest published loss of task scores that is allowed, as a share: 0.01.", ge=0, le=1
    )
    objective: Objective = _axis("cost", "What to minimise: cost, gpus, energy or latency.")
    goodput_target: float = _axis(
        0.99, "Share of requests that must meet the limits owed to each.", gt=0, le=1
    )
    confidence: float = _axis(
        0.9, "Probability, by the error of the step model, with which the SLO must hold; 0.5: as predicted.",
        ge=0.5, lt=1,
    )  # fmt: skip
    alternatives: bool = _axis(
        True, "Find the best of every GPU and weight format, not only the best of all."
    )
    replications: int = _axis(
        3, "Runs with seeds of their own, where the traffic is generated.", ge=1, le=100
    )
    time_limit_s: float | None = _axis(
        None, "Stop searching after so long, and say what is not proved.", gt=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A pool and how many of it."""

    pool: Pool
    replicas: int

    @property
    def num_gpus(self) -> int:
        """GPUs in use, whole instances aside."""
        return self.pool.num_gpus * self.replicas

    @property
    def label(self) -> str:
        """What tells it from the others, in a line."""
        pool = self.pool
        parts = [f"{self.replicas} x {pool.gpu} TP{pool.tensor_parallel_size}"]
        if pool.pipeline_parallel_size > 1:
            parts[0] += f" PP{pool.pipeline_parallel_size}"
        if pool.enable_expert_parallel:
            parts[0] += " EP"
        parts += [pool.quantization or "checkpoint's weights"]
        if pool.kv_cache_dtype != "auto":
            parts.append(f"{pool.kv_cache_dtype} KV")
        parts += [
            f"{name} {value}"
            for name, value in (("seqs", pool.max_num_seqs), ("budget", pool.max_num_batched_tokens))
            if value is not None
        ]
        switches = (("chunked", pool.enable_chunked_prefill), ("prefix cache", pool.enable_prefix_caching))
        parts += [f"{name} {'on' if value else 'off'}" for name, value in switches if value is not None]
        if pool.engine != "vllm":
            parts.append(pool.engine)
        return ", ".join(parts)


def pools(search: Search, gpu: str, *, has_experts: bool) -> Iterator[Pool]:
    """Every engine of the space on one GPU type, those without tuning first."""
    expert_parallel = search.expert_parallel if has_experts else (False,)
    axes = itertools.product(
        search.engines,
        search.tensor_parallel_sizes,
        search.pipeline_parallel_sizes,
        expert_parallel,
        search.quantizations,
        search.kv_cache_dtypes,
        search.max_num_seqs,
        search.max_num_batched_tokens,
        search.chunked_prefill,
        search.prefix_caching,
    )
    for engine, tp, pp, ep, weights, cache, seqs, budget, chunked, prefix in axes:
        if ep and tp == 1:
            continue  # the same engine as without
        yield Pool(
            gpu=gpu,
            engine=engine,
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            enable_expert_parallel=bool(ep),
            quantization=weights,
            kv_cache_dtype=cache,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            enable_chunked_prefill=chunked,
            enable_prefix_caching=prefix,
            max_model_len=search.max_model_len,
            gpu_memory_utilization=search.gpu_memory_utilization,
        )
