"""`fit`: whether a model fits on the GPUs of an engine, and how many tokens the KV cache then holds."""

from pathlib import Path
from typing import Any

from capacity.answers.records import Fit, GpuSummary, MemorySummary, ModelSummary
from capacity.answers.startup import startup_of
from capacity.base.checked import validate_arguments
from capacity.base.keywords import document_options, split
from capacity.base.record import make_from
from capacity.deployment import DeploymentFile, Pool, make_deployment
from capacity.deployment.drafts import TREE
from capacity.model import ModelSpec
from capacity.pool.drafting import Speculation, check_draft_settings, memory_with_draft, pool_speculator
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.pool.shortfall import Change


@document_options(Pool)
@validate_arguments
def fit(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Fit:
    """Return whether `model` fits on the GPUs of an engine, and the capacity of its KV cache. A misfit raises no error.

    Raises InvalidInput (or a subclass) for an invalid name, value or combination.
    """
    (pool,) = split(options, Pool)
    deployment = make_deployment(model, pool=pool, question="fit")
    return fit_of(resolve(deployment.model, deployment.pool, profiles=profiles, download=download))


def ways_to_fit(
    model: str | Path | ModelSpec, *, profiles: str | Path | None = None, **options: Any
) -> tuple[Change, ...]:
    """Return changes of pool settings that each make `model` fit, as `fit` suggests: the smallest change of each
    setting. Empty if the model fits, or if no change helps. Raises as `fit`."""
    (pool,) = split(options, Pool)
    deployment = make_deployment(model, pool=pool, question="fit")
    resolved = resolve(deployment.model, deployment.pool, profiles=profiles)
    return resolved.suggested_changes


def fit_of(resolved: ResolvedPool) -> Fit:
    """Return `fit` for a resolved pool. Raises InvalidInput if draft tokens are set without a draft method."""
    check_draft_settings(resolved.pool)
    return fit_with(resolved, (*host_memory_notes(resolved), *draft_memory_notes(resolved)))


def fit_with(resolved: ResolvedPool, warnings: tuple[str, ...]) -> Fit:
    """Return the `Fit` record of a pool; its notes are those of the memory plan, followed by `warnings`."""
    plan = memory_with_draft(resolved)
    return make_from(
        Fit,
        plan,
        model=model_summary(resolved),
        gpu=gpu_summary(resolved),
        engine=resolved.engine.label,
        weight_format=resolved.scheme.name,
        kv_cache_dtype=stored_kv_format(resolved),
        max_model_len=resolved.max_model_len,
        memory=make_from(MemorySummary, plan, kv_cache_bytes=max(plan.kv_cache_bytes, 0)),
        smallest_tensor_parallel_size=resolved.smallest_tensor_parallel_size,
        startup=startup_of(resolved) if plan.fits else None,
        warnings=(
            *resolved.notes,
            *one_replica_notes(resolved),
            *window_pool_notes(resolved),
            *plan.warnings,
            *warnings,
        ),
    )


def stored_kv_format(resolved: ResolvedPool) -> str:
    """Return the format of the KV cache: the model's format unless another one is set."""
    return resolved.model.dtype if resolved.kv_cache_dtype == "auto" else resolved.kv_cache_dtype


def model_summary(resolved: ResolvedPool) -> ModelSummary:
    return make_from(ModelSummary, resolved.model)


def gpu_summary(resolved: ResolvedPool) -> GpuSummary:
    return GpuSummary(name=resolved.profile.name, count=resolved.pool.num_gpus)


def one_replica_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """Return notes that memory and KV cache are those of one replica or data-parallel rank; empty if there is one."""
    replicas, ranks = resolved.pool.replicas, resolved.pool.data_parallel_size
    notes: tuple[str, ...] = (
        ()
        if replicas == 1
        else (f"Results for one of {replicas} replicas; `capacity simulate` covers all of them.",)
    )
    if ranks > 1:
        what = "share the experts and step together" if resolved.model.is_moe else "are independent engines"
        notes += (
            f"Memory and KV cache are for one of {ranks} data-parallel ranks, which {what}; all ranks together hold "
            f"{ranks * memory_with_draft(resolved).kv_capacity_tokens:,} tokens.",
        )
    return notes


def window_pool_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """Return a note with the size of the separate pool for layers with a window; empty without such a pool."""
    plan = resolved.memory
    if not plan.layout.window_share:
        return ()
    tokens = int(plan.kv_capacity_tokens * plan.layout.window_share)
    return (
        f"The KV capacity is that of the layers without a window. Layers with a window of "
        f"{plan.layout.pool_window:,} tokens have a pool of their own for {tokens:,} tokens.",
    )


def drafting_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """Return notes on the drafts of the pool: their acceptance and its source, and whether they form a tree."""
    pool = resolved.pool
    if pool.speculator is None:
        return ()
    way = pool_speculator(pool, resolved.model)
    depth = way.depth(pool.num_speculative_tokens)
    notes: tuple[str, ...] = (
        f"Drafts by {pool.draft or way.name} with {depth} tokens: on average {way.tokens_per_round(depth):.2f} tokens "
        f"per request and step; acceptance rate: {way.provenance}.",
    )
    if pool.acceptance_spread:
        notes += (
            f"Acceptance rates of requests vary with a standard deviation of {pool.acceptance_spread:g} in log-odds.",
        )
    if way.tree_tokens is None:
        return notes
    if not way.name.endswith(TREE):
        return (
            *notes,
            f"{resolved.engine.label} drafts a tree of depth {depth} by default and verifies "
            f"{way.verified_tokens(depth)} tokens of it; set --num-speculative-tokens for a chain.",
        )
    return (
        *notes,
        f"{way.name} drafts a tree of {way.verified_tokens(depth)} tokens and depth {depth}. vLLM drafts a chain "
        f"(`--speculator {way.name.removesuffix(TREE)}`) unless its speculative config has a speculative_token_tree.",
    )


def draft_memory_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """Return notes on the memory that drafting takes. Raises InvalidInput for an unsuitable draft method."""
    pool = resolved.pool
    if pool.speculator is None or memory_with_draft(resolved).kv_cache_bytes <= 0:
        return ()
    memory = Speculation(resolved, pool_speculator(pool, resolved.model)).memory()
    weights, per_token = memory.draft_weights_bytes / 2**30, memory.draft_kv_bytes_per_token / 2**10
    return (
        f"Drafting by {pool.draft or pool.speculator} takes {weights:.2f} GiB for weights and {per_token:.1f} KiB of "
        f"KV per token in total: the KV cache holds {memory.kv_capacity_tokens_after:,} tokens with drafting and "
        f"{memory.kv_capacity_tokens_before:,} without.",
    )


def host_memory_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """Return a note on the capacity of host memory for offloaded KV; empty without offloading."""
    pool, plan = resolved.pool, resolved.memory
    size = pool.kv_offloading_size
    if size is None or plan.layout.kv_windows != (None,):
        return ()
    engine_gpus = pool.tensor_parallel_size * pool.pipeline_parallel_size
    tokens = int(size * 2**30 // (plan.kv_block_bytes * engine_gpus)) * plan.kv_block_tokens
    what = "engine" if pool.data_parallel_size == 1 else "data-parallel rank"
    return (
        f"{size:g} GiB of host memory per {what} hold {tokens:,} further tokens of KV, which later requests read back; "
        "running requests cannot use them.",
    )
