"""Compare GPUs for a load by latency and cost: run `estimate` on every GPU with the replicas it needs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from capacity.answers.datasheet_comparison import TimedLoad, datasheet_notes
from capacity.answers.load_point import (
    EVERY_GPU,
    LoadField,
    LoadPoint,
    SizedPool,
    lengths_of,
    load_of,
    load_point,
    price_or_reason,
    raise_common_refusal,
    sizes_to_try,
    smallest_pool,
    smallest_pools,
    sort_points,
)
from capacity.answers.phases import estimate_fields, request_lengths
from capacity.answers.records import Quantity, ReplicaCount
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.keywords import document_options, split
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, make_deployment
from capacity.deployment.use_cases import service_levels
from capacity.hardware import load_profile, profile_names
from capacity.model import ModelSpec, load_model
from capacity.planning.sizing.replicas_needed import replicas_needed
from capacity.pool.resolve import ResolvedPool, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuComparison(AnswerRecord):
    """Results of `estimate` on every GPU, sorted by `order`.

    For a request rate, each GPU has the tensor-parallel size and the number of replicas with the lowest bill that meet
    `slos` or, without SLOs, that are stable. For a batch size or a concurrency, each GPU has the smallest
    tensor-parallel size that serves it, or the largest if none does. GPUs too small for the model come last; their
    reason is that of the largest tensor-parallel size.
    """

    SCHEMA: ClassVar[str] = "capacity/gpu-comparison/v1"

    model: str
    load_field: LoadField
    load: float
    input_len: int
    output_len: int
    order: str
    slos: tuple[str, ...]
    rows: tuple[LoadPoint, ...]
    notes: tuple[str, ...] = ()


@document_options(Pool, Traffic, Cost)
@validate_arguments
def compare_gpus(
    model: str | Path | ModelSpec | DeploymentFile,
    *,
    gpus: Sequence[str] | None = None,
    slo: Sequence[str] | str = (),
    order: str | None = None,
    profiles: str | Path | None = None,
    **options: Any,
) -> GpuComparison:
    """Run `estimate` on `gpus` (None: every profile) and sort the results, the best by `order` first.

    `gpu` in `options` is ignored. `slo`, or the SLO of the use case, applies to a request rate. `order`: price, month,
    ttft, tpot, throughput, throughput-per-gpu or gpus; None: price, or throughput-per-gpu without price options. A GPU
    that cannot run the model has a reason instead of results. Raises InvalidInput for an invalid order or load, and for
    settings that every GPU rejects.
    """
    pool, traffic, cost = split(options, Pool, Traffic, Cost)
    if not isinstance(model, DeploymentFile):
        pool = {**pool, "gpu": EVERY_GPU}
    deployment = make_deployment(
        model, pool=pool, traffic=estimate_fields(traffic), cost=cost, question="estimate"
    )
    asked, first = deployment.traffic, deployment.pools[0]
    load_field, load = load_of(asked)
    input_len, output_len = lengths_of(asked)
    named = deployment.model
    spec = named if isinstance(named, ModelSpec) else load_model(named)
    folder = None if profiles is None else str(profiles)
    names = profile_names([folder] if folder else []) if gpus is None else gpus
    pools = [first.model_copy(update={"gpu": gpu}) for gpu in names]
    slos = service_levels(slo, asked) if load_field == "request_rate" else ()
    if load_field == "request_rate":
        sized = [_with_replicas(each, spec, asked, slos, deployment.cost, folder) for each in pools]
        raise_common_refusal([each.refused for each in sized])
    else:
        sized = smallest_pools(spec, pools, asked, deployment.cost, profiles=folder)
    if order is None:
        order = "price" if deployment.cost.model_fields_set else "throughput-per-gpu"
    return GpuComparison(
        model=spec.name,
        load_field=load_field,
        load=float(load),
        input_len=input_len,
        output_len=output_len,
        order=order,
        slos=tuple(slos),
        rows=sort_points((each.point for each in sized), order),
        notes=datasheet_notes(
            [_timed_point(each.pool, each.point) for each in sized if each.pool is not None]
        ),
    )


def _with_replicas(
    pool: Pool, model: ModelSpec, traffic: Traffic, slos: Sequence[str], cost: Cost, profiles: str | None
) -> SizedPool:
    """Return the tensor-parallel size and replicas of a GPU that serve the request rate at the lowest bill.

    If no number of replicas serves the rate, return the result of `smallest_pool`.
    """
    profile = load_profile(pool.gpu, [profiles] if profiles else [])
    price, price_note = price_or_reason(profile.name, cost)
    rate = traffic.request_rate
    fitting = []
    for size in sizes_to_try(pool, model, profile):
        try:
            resolved = resolve(
                model, pool.model_copy(update={"tensor_parallel_size": size}), profiles=profiles
            )
            lengths = request_lengths(resolved, traffic)
        except InvalidInput:
            continue
        if resolved.memory_without_advice.fits and resolved.concurrent_requests(lengths.tokens):
            fitting.append(resolved)
    if not fitting or rate is None:
        return smallest_pool(model, pool, traffic, cost, profiles=profiles)
    answer = replicas_needed(fitting, traffic, slo=slos, price=price, profiles=profiles)
    count = None if answer is None else answer.needed or answer.stable
    if answer is None or count is None:
        return smallest_pool(model, pool, traffic, cost, profiles=profiles)
    chosen = next(each for each in fitting if each.pool.tensor_parallel_size == count.tensor_parallel_size)
    each_s = rate / count.replicas
    point = load_point(
        chosen, traffic.model_copy(update={"request_rate": each_s}), price, price_note=price_note
    )
    return SizedPool(pool=chosen, point=_scale_to_replicas(point, count, rate, misses=answer.reason))


def _scale_to_replicas(
    point: LoadPoint, count: ReplicaCount, rate: float, *, misses: str | None
) -> LoadPoint:
    """Return the results of all replicas: those of one replica (`point`) with rates and bills multiplied."""
    if count.replicas == 1:
        return replace(point, misses=misses)
    n = count.replicas
    bill = 1.0 if point.usd_per_hour is None else (count.usd_per_hour or 0.0) / (n * point.usd_per_hour)
    return make_from(
        LoadPoint,
        count,
        point,
        load=rate,
        misses=misses,
        requests_in_flight=None if point.requests_in_flight is None else n * point.requests_in_flight,
        requests_per_s=_scale(point.requests_per_s, n),
        output_tokens_per_s=_scale(point.output_tokens_per_s, n),
        usd_per_million_output_tokens=_scale(point.usd_per_million_output_tokens, bill),
        usd_per_thousand_requests=_scale(point.usd_per_thousand_requests, bill),
    )


def _scale(quantity: Quantity | None, factor: float) -> Quantity | None:
    return None if quantity is None else quantity.scale(factor)


def _timed_point(pool: ResolvedPool, point: LoadPoint) -> TimedLoad:
    each = {"TTFT": point.ttft_s, "TPOT": point.tpot_s}
    return TimedLoad(
        resolved=pool, seconds={name: None if value is None else value.value for name, value in each.items()}
    )
