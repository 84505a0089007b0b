"""Compare GPUs for a model: `fit` with the smallest number of GPUs of every type, the cheapest first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.load_point import (
    EVERY_GPU,
    Profiles,
    price_or_reason,
    raise_common_refusal,
    sizes_to_try,
)
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cost, DeploymentFile, Pool, build, make_deployment
from capacity.hardware import load_profile, profile_names
from capacity.hardware.pricing import billed_gpus, usd_per_hour
from capacity.model import ModelSpec, load_model
from capacity.pool.drafting import memory_with_draft
from capacity.pool.memory import MemoryPlan
from capacity.pool.resolve import ResolvedPool, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoint:
    """A model on one GPU type, with the fewest GPUs that hold a request of `max_model_len` tokens, else the most.

    `fits`: whether they hold such a request. If not, `reason` explains why, and `max_context_tokens` is the longest
    context that fits (0: the weights do not fit). Memory is that of the fullest GPU. `usd_per_hour` is the price of
    whole instances; if it is None, `price_note` explains why.
    """

    gpu: str
    num_gpus: int | None = None
    tensor_parallel_size: int | None = None
    fits: bool = False
    reason: str | None = None
    weight_format: str | None = None
    max_model_len: int | None = None
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_capacity_tokens: int | None = None
    max_context_tokens: int = 0
    max_concurrency: float | None = None
    usd_per_hour: float | None = None
    price_note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitComparison(AnswerRecord):
    """`fit` on every GPU type: GPUs that hold the model, by price and then those without a price; GPUs that hold only
    shorter requests; GPUs that cannot run the model. `price_tier`: tier of the dated price table."""

    SCHEMA: ClassVar[str] = "capacity/fit-comparison/v1"

    model: str
    engine: str
    price_tier: str
    rows: tuple[FitPoint, ...]


@document_options(Pool)
@validate_arguments
def compare_fits(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    gpus: Sequence[str] | None = None,
    price_tier: str = "on-demand",
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> FitComparison:
    """Return `fit` of `model` on `gpus` (None: every profile), the cheapest first; `gpu` in `options` is ignored.

    Each GPU has the given tensor-parallel size, else the smallest size that holds the model. A GPU that cannot run the
    model is included with a reason. Raises InvalidInput for options that no GPU accepts.
    """
    (pool,) = split(options, Pool)
    if not isinstance(model, DeploymentFile):
        pool = {**pool, "gpu": EVERY_GPU}
    deployment = make_deployment(model, pool=pool, question="fit")
    asked, named = deployment.pools[0], deployment.model
    spec = named if isinstance(named, ModelSpec) else load_model(named, download=download)
    folder = None if profiles is None else str(profiles)
    cost = build(Cost, {"price_tier": price_tier})
    names = profile_names([folder] if folder else []) if gpus is None else gpus
    tried = [_point(spec, asked.model_copy(update={"gpu": gpu}), cost, profiles=folder) for gpu in names]
    raise_common_refusal([refused for _, refused in tried])
    return FitComparison(
        model=spec.name,
        engine=asked.engine,
        price_tier=price_tier,
        rows=tuple(sorted((point for point, _ in tried), key=_sort_key)),
    )


def _sort_key(point: FitPoint) -> tuple[bool, bool, float, str]:
    price = math.inf if point.usd_per_hour is None else point.usd_per_hour
    return not point.fits, point.max_context_tokens == 0, price, point.gpu


def _point(
    model: ModelSpec, pool: Pool, cost: Cost, *, profiles: Profiles
) -> tuple[FitPoint, InvalidInput | None]:
    """Return the result for one GPU type, and the error if the options do not apply to it."""
    profile = load_profile(pool.gpu, [profiles] if profiles else [])
    tried: ResolvedPool | None = None
    refused: InvalidInput | None = None
    for size in sizes_to_try(pool, model, profile):
        try:
            tried = resolve(model, pool.model_copy(update={"tensor_parallel_size": size}), profiles=profiles)
            if memory_without_suggestions(tried).fits:
                break
        except InvalidInput as error:
            refused = refused or error
    if tried is None:
        reason = "no tensor-parallel size divides the model evenly" if refused is None else str(refused)
        return FitPoint(gpu=profile.name, reason=reason), refused
    plan, gpus = memory_without_suggestions(tried), tried.pool.num_gpus
    price, price_note = price_or_reason(profile.name, cost)
    point = make_from(
        FitPoint,
        plan,
        gpu=profile.name,
        num_gpus=gpus,
        tensor_parallel_size=tried.pool.tensor_parallel_size,
        weight_format=tried.scheme.name,
        max_model_len=tried.max_model_len,
        kv_cache_bytes=max(plan.kv_cache_bytes, 0),
        usd_per_hour=None if price is None else usd_per_hour(price, billed_gpus(price, gpus)),
        price_note=price_note,
    )
    return point, None


def memory_without_suggestions(pool: ResolvedPool) -> MemoryPlan:
    """Return the memory plan, including the draft model if the model fits, but without suggestions, which take long."""
    return memory_with_draft(pool) if pool.memory_without_advice.fits else pool.memory_without_advice
