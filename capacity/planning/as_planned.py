"""The launch command of a server with every setting that its prediction depends on."""

from __future__ import annotations

from dataclasses import replace

from capacity.deployment import Pool
from capacity.deployment.launch import Launch
from capacity.deployment.launching import launch_command
from capacity.deployment.releases import release_of
from capacity.model.layers import LatentAttention
from capacity.pool.resolve import ResolvedPool

PINNED = ("vllm", "sglang")  # engines whose command line has all of these settings


def pinned(resolved: ResolvedPool) -> Pool:
    """The pool with its engine's defaults written out, as far as the engine's command line can say them."""
    if resolved.engine.name not in PINNED:
        return resolved.pool
    return resolved.pool.model_copy(
        update={
            "max_model_len": resolved.max_model_len,
            "max_num_seqs": resolved.max_num_seqs,
            "max_num_batched_tokens": resolved.max_num_batched_tokens,
            "gpu_memory_utilization": resolved.pool.gpu_memory_utilization
            or resolved.engine.gpu_memory_utilization,
            "enable_prefix_caching": resolved.prefix_caching,
        }
    )


def attention_backend(resolved: ResolvedPool) -> str | None:
    """The attention backend that the launch must name for the predicted times; None: the engine's own choice."""
    groups = resolved.model.layer_groups
    dense = any(isinstance(g.mixer, LatentAttention) and g.mixer.indexer is None for g in groups)
    if not dense or not resolved.kv_cache_dtype.startswith("fp8"):
        return None
    return resolved.engine.fp8_latent_backend.get(resolved.profile.architecture)


def launch_as_planned(model_id: str, resolved: ResolvedPool) -> Launch:
    """The command that starts one replica as it was simulated; its first note names the release."""
    pool = pinned(resolved)
    launch = launch_command(pool.engine, model_id, pool)
    words = launch.words
    backend = attention_backend(resolved)
    if backend is not None:
        words = (*words, "--attention-backend", backend)
    if resolved.engine.name in PINNED and "--kv-cache-dtype" not in words:
        at = words.index("--port")
        words = (*words[:at], "--kv-cache-dtype", "auto", *words[at:])
    release = release_of(pool.engine)
    ways = [
        *([] if release.requirement is None else [f'pip install "{release.requirement}"']),
        *([] if release.image is None else [f"image {release.image}"]),
    ]
    note = f"planned for {resolved.engine.name} {release.version}" + (
        f": {', or '.join(ways)}" if ways else ""
    )
    return replace(launch, words=words, notes=(note, *launch.notes))
