"""Valid parallel sizes of a model: divisors for tensor parallelism, and the number of pipeline stages."""

from capacity.base.errors import InvalidInput
from capacity.hardware import HardwareProfile
from capacity.model.feed_forward import DenseFeedForward
from capacity.model.spec import ModelSpec
from capacity.pool.settings import PoolSettings

CONTEXT_PARALLEL = ("vllm", "sglang")  # engines with decode context parallelism


def largest_tensor_parallel_size(profile: HardwareProfile) -> int:
    """Return the largest TP size: the number of GPUs of the scale-up domain or of the node, the larger of the two."""
    return max(profile.scale_up.domain_gpus, profile.gpus_per_node)


def tensor_parallel_sizes(model: ModelSpec, most: int) -> tuple[int, ...]:
    """Return the TP sizes up to `most` that divide the model's heads and widths."""
    return tuple(size for size in range(1, most + 1) if _find_undivided_size(model, size) is None)


def check_parallelism(settings: PoolSettings) -> None:
    """Raise InvalidInput if TP does not divide the heads, or if there are more pipeline stages than layers."""
    model, pool = settings.model, settings.pool
    tp, pp = pool.tensor_parallel_size, pool.pipeline_parallel_size
    problem = _find_undivided_size(model, tp)
    if problem is not None:
        fitting = ", ".join(str(size) for size in tensor_parallel_sizes(model, max(tp, 8)))
        raise InvalidInput(
            f"--tensor-parallel-size {tp} does not divide {problem} of {model.name}; use {fitting}"
        )
    if pp > model.num_layers:
        raise InvalidInput(
            f"--pipeline-parallel-size {pp} exceeds the {model.num_layers} layers of {model.name}; "
            f"use at most {model.num_layers}"
        )
    if pool.decode_context_parallel_size > 1:
        _check_context_ranks(settings)


def _check_context_ranks(settings: PoolSettings) -> None:
    """Raise InvalidInput if decode context parallelism is not possible.

    vLLM requires KV heads that TP replicates; SGLang supports only latents. Sources: vLLM docs,
    serving/context_parallel_deployment (tp // kv_heads), v1/core/kv_cache_coordinator.py (no hybrid caches); SGLang
    docs, advanced_features/dcp; read 2026-11.
    """
    model, pool, engine = settings.model, settings.pool, settings.engine
    ranks, tp = pool.decode_context_parallel_size, pool.tensor_parallel_size
    flag = f"--decode-context-parallel-size {ranks}"
    if engine.name not in CONTEXT_PARALLEL or engine.scheduler == "vllm-v0":
        raise InvalidInput(
            f"{flag}: {engine.label} does not support decode context parallelism; use "
            f"{' or '.join(CONTEXT_PARALLEL)}, or leave it out"
        )
    if (
        len({(group.kind, group.window_tokens) for group in model.kv_cache_groups()}) > 1
        or model.window_tokens
    ):
        raise InvalidInput(
            f"{flag}: {engine.label} does not support it for {model.name}, whose layers have different KV caches; "
            "leave it out"
        )
    if engine.name == "sglang" and not model.caches_latents:
        raise InvalidInput(
            f"{flag}: {engine.label} supports it only for models with latents (MLA); leave it out"
        )
    heads = max(group.mixer.num_kv_heads for group in model.layer_groups)
    if not shares_contexts(settings, tp):
        raise InvalidInput(
            f"{flag}: --tensor-parallel-size {tp} keeps {max(tp // heads, 1)} copies of {heads} KV heads; the "
            f"number of copies must be a multiple of {ranks}"
        )


def shares_contexts(settings: PoolSettings, tensor_parallel_size: int) -> bool:
    """Return whether decode context parallelism is possible at this TP size.

    The number of GPUs that share a context must divide the number of copies of each KV head.
    """
    heads = max(1, *(group.mixer.num_kv_heads for group in settings.model.layer_groups))
    ranks = settings.pool.decode_context_parallel_size
    return max(tensor_parallel_size // heads, 1) % ranks == 0


def _find_undivided_size(model: ModelSpec, tp: int) -> str | None:
    """Return text with the first size of the model (heads or width) that TP size `tp` cannot divide, or None."""
    for group in model.layer_groups:
        mixer, feed_forward = group.mixer, group.feed_forward
        heads, kv_heads = mixer.num_heads, mixer.num_kv_heads
        if heads % tp:
            return f"the {heads} attention heads"
        if kv_heads % tp and tp % kv_heads:
            return f"the {kv_heads} KV heads"
        if isinstance(feed_forward, DenseFeedForward) and feed_forward.intermediate_size % tp:
            return f"the feed-forward width {feed_forward.intermediate_size}"
    return None
