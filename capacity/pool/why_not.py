"""Why a model does not fit, in one line: thing, need, limit, and ways out that were tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from capacity.base.errors import InvalidInput
from capacity.model.quantization import scheme_for
from capacity.pool.memory import MemoryPlan, holds_longest_request
from capacity.pool.parallelism import largest_tensor_parallel_size, tensor_parallel_sizes
from capacity.pool.settings import PoolSettings

NARROWER_FORMATS = ("fp8", "int4")  # tried in this order where the weights are not quantized


def why_not(settings: PoolSettings, plan: MemoryPlan) -> str:
    """The reason of a plan that does not fit."""
    if plan.kv_cache_bytes < 0:
        return _weights_too_large(settings, plan)
    if settings.pool.num_gpu_blocks_override is not None:
        return _too_few_blocks(settings, plan)
    return _request_too_long(settings, plan)


def _weights_too_large(settings: PoolSettings, plan: MemoryPlan) -> str:
    text = (
        f"{_stored_model(settings)} needs {_gb(plan.weights_bytes)} of weights and "
        f"{_gb(plan.activations_bytes + plan.overhead_bytes)} of activations and overhead per GPU; "
        f"{settings.profile.name} has {_gb(plan.usable_bytes)} usable"
    )
    if settings.pool.kv_cache_memory_bytes is not None:
        text += f", and --kv-cache-memory-bytes asks for {_gb(settings.pool.kv_cache_memory_bytes)}"
    return f"{text}: {_gb(-plan.kv_cache_bytes)} too little. {_remedy(settings)}"


def _too_few_blocks(settings: PoolSettings, plan: MemoryPlan) -> str:
    needed = plan.layout.blocks_of_request(settings.max_model_len)
    shorter = f", or use --max-model-len {plan.max_context_tokens}" if plan.max_context_tokens else ""
    return (
        f"--num-gpu-blocks-override {plan.kv_capacity_blocks} holds no request of {settings.max_model_len:,} tokens: "
        f"it needs {needed:,} blocks, and one is kept free. Raise it{shorter}."
    )


def _request_too_long(settings: PoolSettings, plan: MemoryPlan) -> str:
    request_bytes = plan.layout.blocks_of_request(settings.max_model_len) * plan.kv_block_bytes
    shorter = [f"--max-model-len {plan.max_context_tokens}"] if plan.max_context_tokens >= 1 else []
    return (
        f"{_stored_model(settings)} leaves {_gb(plan.kv_cache_bytes)} per GPU for the KV cache on "
        f"{settings.profile.name}; one request of {settings.max_model_len:,} tokens needs {_gb(request_bytes)}. "
        f"{_remedy(settings, shorter)}"
    )


def _remedy(settings: PoolSettings, ways: Iterable[str] = ()) -> str:
    """Ways out that were tried and fit, the cheapest first, after `ways`."""
    ways = list(ways)
    most = largest_tensor_parallel_size(settings.profile)
    sizes = tensor_parallel_sizes(settings.model, most)
    larger = (size for size in sizes if size > settings.pool.tensor_parallel_size)
    enough = (size for size in larger if holds_longest_request(settings.with_tensor_parallel_size(size)))
    ways += [f"--tensor-parallel-size {size}" for size in (next(enough, None),) if size is not None]
    ways += _narrower(settings)
    if not ways:
        return f"No tensor parallelism up to {most} on this GPU fits; use GPUs with more memory or a smaller model."
    return f"Use {', or '.join(ways)}."


def _narrower(settings: PoolSettings) -> list[str]:
    """The widest narrower weight format that would fit here; none for models that are quantized already."""
    if settings.scheme.quantized:
        return []
    for name in NARROWER_FORMATS:
        try:
            scheme = scheme_for(settings.model, name)
        except InvalidInput:
            continue
        if holds_longest_request(replace(settings, scheme=scheme)):
            return [f"--quantization {name}"]
    return []


def _stored_model(settings: PoolSettings) -> str:
    return f"{settings.model.name} ({settings.scheme.name})"


def _gb(value: float) -> str:
    return f"{value / 1e9:.1f} GB"
