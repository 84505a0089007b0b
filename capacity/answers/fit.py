"""`fit`: whether a model fits a pool, and what its KV cache then holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capacity.answers.records import Fit, GpuSummary, MemorySummary, ModelSummary
from capacity.answers.startup import startup_of
from capacity.base.checked import checked
from capacity.base.keywords import documented, split
from capacity.base.record import make_from
from capacity.deployment import DeploymentFile, Pool, deployment_of
from capacity.deployment.drafts import TREE
from capacity.model import ModelSpec
from capacity.pool.drafting import Speculation, check_drafts_said, memory_with_draft, speculator_of
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.pool.why_not import Change


@documented(Pool)
@checked
def fit(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> Fit:
    """Whether `model` fits the pool, and what its KV cache then holds. Does not raise where it does not fit.

    Raises InvalidInput (and its kinds) for a name, value or combination that cannot be.
    """
    (pool,) = split(options, Pool)
    deployment = deployment_of(model, pool=pool, question="fit")
    return fit_of(resolve(deployment.model, deployment.pool, profiles=profiles, download=download))


def ways_to_fit(
    model: str | Path | ModelSpec, *, profiles: str | Path | None = None, **options: Any
) -> tuple[Change, ...]:
    """Changes of the pool's fields with which `model` fits, the smallest of each kind: those that a refusal of `fit`
    names. Empty where it fits, or where nothing that was tried does. Raises as `fit`."""
    (pool,) = split(options, Pool)
    deployment = deployment_of(model, pool=pool, question="fit")
    resolved = resolve(deployment.model, deployment.pool, profiles=profiles)
    return resolved.ways_out


def fit_of(resolved: ResolvedPool) -> Fit:
    """`fit` of what was looked up before. Raises InvalidInput for a number of drafts without a way to draft."""
    check_drafts_said(resolved.pool)
    return fit_with(resolved, (*host_memory_notes(resolved), *draft_memory_notes(resolved)))


def fit_with(resolved: ResolvedPool, warnings: tuple[str, ...]) -> Fit:
    """The record of a pool's memory, with further warnings behind its own."""
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
        warnings=(*resolved.notes, *one_replica_notes(resolved), *plan.warnings, *warnings),
    )


def stored_kv_format(resolved: ResolvedPool) -> str:
    """Return the format of the KV cache: that of the model where nothing else is set."""
    return resolved.model.dtype if resolved.kv_cache_dtype == "auto" else resolved.kv_cache_dtype


def model_summary(resolved: ResolvedPool) -> ModelSummary:
    """The model of an answer."""
    return make_from(ModelSummary, resolved.model)


def gpu_summary(resolved: ResolvedPool) -> GpuSummary:
    """The GPUs of an answer."""
    return GpuSummary(name=resolved.profile.name, count=resolved.pool.num_gpus)


def one_replica_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """That a question about an engine was answered for one of several."""
    replicas, ranks = resolved.pool.replicas, resolved.pool.data_parallel_size
    notes: tuple[str, ...] = (
        () if replicas == 1 else (f"of one of the {replicas} replicas; `capacity simulate` answers for all",)
    )
    if ranks > 1:
        what = (
            "share the experts and take every step together"
            if resolved.model.is_moe
            else "are independent engines"
        )
        notes += (
            f"memory and KV cache are of one of the {ranks} data-parallel ranks, which {what}; all of them hold "
            f"{ranks * memory_with_draft(resolved).kv_capacity_tokens:,} tokens",
        )
    return notes


def drafting_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """What a reader must know of the pool's drafts: how many are accepted and by whose word; that a tree is one."""
    pool = resolved.pool
    if pool.speculator is None:
        return ()
    way = speculator_of(pool, resolved.model)
    depth = way.depth(pool.num_speculative_tokens)
    notes: tuple[str, ...] = (
        f"drafts by {pool.draft or way.name}, {depth} deep: {way.tokens_per_round(depth):.2f} tokens a step of a "
        f"request on average, by an acceptance that is {way.provenance}",
    )
    if pool.acceptance_spread:
        notes += (
            f"acceptance differs between requests, by a spread of {pool.acceptance_spread:g} in log-odds",
        )
    if way.tree_tokens is None:
        return notes
    if not way.name.endswith(TREE):
        return (
            *notes,
            f"{resolved.engine.label} drafts a tree by default, {depth} deep, of which it verifies "
            f"{way.verified_tokens(depth)}: --num-speculative-tokens makes it a chain",
        )
    return (
        *notes,
        f"{way.name} drafts a tree of {way.verified_tokens(depth)}, {depth} deep, for every request; vLLM drafts a "
        f"chain, which is `--speculator {way.name.removesuffix(TREE)}`, unless its speculative config has a "
        "speculative_token_tree",
    )


def draft_memory_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """What drafting takes from the KV cache. Raises InvalidInput where the way to draft does not suit the model."""
    pool = resolved.pool
    if pool.speculator is None or memory_with_draft(resolved).kv_cache_bytes <= 0:
        return ()
    memory = Speculation(resolved, speculator_of(pool, resolved.model)).memory()
    weights, per_token = memory.draft_weights_bytes / 2**30, memory.draft_kv_bytes_per_token / 2**10
    return (
        f"drafting by {pool.draft or pool.speculator} takes {weights:.2f} GiB of weights and {per_token:.1f} KiB of KV "
        f"a token, over the GPUs that it is on: {memory.kv_capacity_tokens_after:,} tokens fit with it, "
        f"{memory.kv_capacity_tokens_before:,} without",
    )


def host_memory_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """What host memory holds of KV that leaves the GPU."""
    pool, plan = resolved.pool, resolved.memory
    size = pool.kv_offloading_size
    if size is None or plan.layout.kv_windows != (None,):
        return ()
    engine_gpus = pool.tensor_parallel_size * pool.pipeline_parallel_size
    tokens = int(size * 2**30 // (plan.kv_block_bytes * engine_gpus)) * plan.kv_block_tokens
    what = "engine" if pool.data_parallel_size == 1 else "data-parallel rank"
    return (
        f"{size:g} GiB of host memory hold {tokens:,} tokens of KV beside the GPU's, of each {what}: to be read back "
        "by later requests, not for running ones",
    )
