"""The launch command of a server with every setting that its prediction depends on."""

from __future__ import annotations

from dataclasses import replace

from capacity.deployment import Pool
from capacity.deployment.flag_table import release_of
from capacity.deployment.launched import Launch
from capacity.deployment.launching import launch_command
from capacity.model.layers import LatentAttention
from capacity.pool.memory import memory_fraction
from capacity.pool.resolve import ResolvedPool

KV_CACHE_FLAG = ("vllm", "sglang")  # engines with a flag for the default format of the KV cache, auto
KV_CACHE_WRITTEN = ("llama.cpp", "ollama")  # engines whose launch always states the format
MEMORY_FLAG = ("vllm", "sglang", "tensorrt-llm")  # engines whose flag sets the share of memory simulated


def pinned(resolved: ResolvedPool) -> Pool:
    """The pool with its engine's defaults written out, for every setting that its interval depends on."""
    settings: dict[str, object] = {
        "max_model_len": resolved.max_model_len,
        "max_num_seqs": resolved.max_num_seqs,
        "max_num_batched_tokens": resolved.max_num_batched_tokens,
        "enable_prefix_caching": resolved.prefix_caching,
    }
    if resolved.engine.name in MEMORY_FLAG:
        settings["gpu_memory_utilization"] = memory_fraction(resolved)
    return resolved.pool.model_copy(update=settings)


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
    notes = launch.notes
    if resolved.engine.name in KV_CACHE_FLAG and "--kv-cache-dtype" not in words:
        at = words.index("--port")
        words = (*words[:at], "--kv-cache-dtype", "auto", *words[at:])
    elif pool.kv_cache_dtype == "auto" and resolved.engine.name not in (*KV_CACHE_FLAG, *KV_CACHE_WRITTEN):
        notes += (
            f"KV cache in the model's format, the default of {resolved.engine.name}: no flag states it",
        )
    release = release_of(pool.engine)
    ways = [
        *([] if release.requirement is None else [f'pip install "{release.requirement}"']),
        *([] if release.image is None else [f"image {release.image}"]),
    ]
    note = f"planned for {resolved.engine.name} {release.version}" + (
        f": {', or '.join(ways)}" if ways else ""
    )
    return replace(launch, words=words, notes=(note, *notes))
