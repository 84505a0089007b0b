"""Defaults of engine settings that the user did not set: lengths, limits of a step, KV format, caching."""

import math

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.engines import EngineSpec
from capacity.model import ModelSpec
from capacity.model.layers import LatentAttention
from capacity.model.quantization import QuantizationScheme, find_kv_cache_format
from capacity.pool.kv_eviction import keeps_whole_prompts


def step_limits(pool: Pool, *, max_num_seqs: int, token_budget: int, longest_prefill: int) -> tuple[int, int]:
    """Return the maximum number of sequences and of tokens in a step: the pool's values, or defaults of the engine.

    The default token budget is at least `longest_prefill`, the longest prefill of one step. The number of sequences is
    at most the pool's token budget. Raises InvalidInput if the pool's own numbers contradict each other.
    """
    seqs, budget = pool.max_num_seqs or max_num_seqs, pool.max_num_batched_tokens
    if budget is None:
        return seqs, max(token_budget, longest_prefill)
    if budget < longest_prefill:
        raise InvalidInput(
            f"--max-num-batched-tokens {budget} is below --max-model-len {longest_prefill} without chunked "
            "prefill, so longer prompts could never run. Raise it, or use --enable-chunked-prefill."
        )
    if pool.max_num_seqs and budget < seqs:
        raise InvalidInput(
            f"--max-num-batched-tokens {budget} is below --max-num-seqs {seqs}: raise the first or lower the second"
        )
    return min(seqs, budget), budget


def longest_request(model: ModelSpec, pool: Pool) -> int:
    """Return the maximum tokens of a request: `max_model_len` (InvalidInput if too long), or the model's limit."""
    limit = model.max_position_embeddings
    if pool.max_model_len is None or pool.max_model_len == "auto":
        return limit
    if pool.max_model_len > limit:
        raise InvalidInput(
            f"--max-model-len {pool.max_model_len} exceeds the {limit} positions that {model.name} supports"
        )
    return pool.max_model_len


def kv_format(
    pool: Pool, scheme: QuantizationScheme, model: ModelSpec, engine: EngineSpec, architecture: str
) -> str:
    """Return the KV cache format: the pool's, else the one that the checkpoint requests, else `auto`.

    With sparse latent attention, the engine's default format replaces `auto`, and `fp8` may become `fp8_ds_mla`.
    """
    asked = (pool.kv_cache_dtype != "auto" and pool.kv_cache_dtype) or scheme.kv_cache_dtype or "auto"
    mixers = (group.mixer for group in model.layer_groups)
    latents = [mixer for mixer in mixers if isinstance(mixer, LatentAttention) and mixer.indexer]
    if not latents:
        return asked
    if asked == "auto":
        defaults = engine.sparse_kv_cache_dtype
        asked = defaults.get(f"{model.model_type}:{architecture}") or defaults.get(architecture, "auto")
    heads = math.ceil(latents[0].num_heads / pool.tensor_parallel_size)
    plain = heads <= engine.plain_sparse_fp8_heads.get(architecture, 0)
    known = asked if asked == "auto" else find_kv_cache_format(asked).name
    return "fp8_ds_mla" if known == "fp8" and not plain else asked


def chunks_prefill(pool: Pool, model: ModelSpec, engine: EngineSpec) -> bool:
    """Return whether prompts are computed in chunks; if not set, the default of the engine and the eviction method."""
    if pool.enable_chunked_prefill is not None:
        return pool.enable_chunked_prefill
    return engine.chunked_prefill and not keeps_whole_prompts(model)


def caches_prefixes(pool: Pool, model: ModelSpec, engine: EngineSpec) -> bool:
    """Return whether the engine reuses the KV of prefixes: the pool's setting, or the engine's default."""
    if not pool.use_cache:
        return False
    if pool.enable_prefix_caching is not None:
        return pool.enable_prefix_caching
    supported = engine.caches_hybrid_prefixes or not model.state_bytes_per_sequence()
    supported = supported and model.model_type not in engine.uncached_prefixes
    return engine.prefix_caching and pool.kv_eviction is None and supported


def conversion_notes(model: ModelSpec, scheme: QuantizationScheme) -> tuple[str, ...]:
    """Return a note if the checkpoint must be converted, because engines do not requantize at load time."""
    own = model.checkpoint
    if not own.quantized or scheme.name == own.name:
        return ()
    return (f"{model.name} is published in {own.name}; {scheme.name} needs a converted copy",)
