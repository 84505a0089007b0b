"""Parallelism: the speedup and efficiency of more GPUs, and the cheapest layout that meets a TPOT limit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from capacity.answers.costs import ServedLoad, cost_of
from capacity.answers.intervals import batch_ends
from capacity.answers.phases import RequestLengths, load_times
from capacity.base.checked import validate_arguments
from capacity.base.errors import CapacityError, InvalidInput, UnknownName
from capacity.base.flags import with_flags
from capacity.base.keywords import document_options, split
from capacity.base.record import make_from
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, make_deployment
from capacity.hardware.pricing import Price, find_price_for_cost
from capacity.model import ModelSpec
from capacity.model.feed_forward import MoEFeedForward
from capacity.pool.parallelism import tensor_parallel_sizes
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step.closed_form import PhaseTimes
from capacity.step.expert_load import ROUTING_GAMMA_SHAPE, busiest_rank_pairs, distinct_experts
from capacity.step.layers.feed_forward import routing_gamma_shape
from capacity.techniques.long_context import ContextParallelPrefill, context_parallel_prefill
from capacity.techniques.one_pool import InputLen, OutputLen, PoolAnswer, pool_notes, shared_fields

LARGEST_GROUP = 64
Axis = Literal["tensor", "pipeline", "expert", "data"]
AXES: tuple[Axis, ...] = get_args(Axis)
DOUBLINGS = (1, 2, 4, 8, 16, 32, 64)
SIZE_FIELDS = {
    "tensor": "tensor_parallel_size",
    "expert": "tensor_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "data": "data_parallel_size",
}


def pipeline_bubble_fraction(stages: int, micro_batches: int) -> float:
    """Return the idle fraction of p stages that are filled with m micro-batches and drained once: (p-1)/(m+p-1).

    This is an upper bound for continuous serving, where micro-batches follow each other without a drain and only
    unequal sizes leave idle time. Source: Huang et al., GPipe, arXiv 1811.06965.
    """
    if stages < 1 or micro_batches < 1:
        raise InvalidInput(f"{stages} stages and {micro_batches} micro-batches: both must be at least 1")
    return (stages - 1) / (micro_batches + stages - 1)


def pipeline_idle_fraction(stages: int, micro_batches: int) -> float:
    """Return the idle fraction of a pipeline of p stages in which m micro-batches circulate: 1 - m/p, at least 0.

    This applies to decode: each micro-batch needs its own token before its next step, so fewer than p micro-batches
    leave stages empty.
    """
    if stages < 1 or micro_batches < 1:
        raise InvalidInput(f"{stages} stages and {micro_batches} micro-batches: both must be at least 1")
    return max(0.0, 1.0 - micro_batches / stages)


def all_reduce_bytes_per_token(
    hidden_size: int, layers: int, ranks: int, *, value_bytes: float = 2.0
) -> float:
    """Return the bytes that one of n ranks sends per token: two all-reduces per layer, 2(n-1)/n hidden states each."""
    if ranks < 1:
        raise InvalidInput(f"{ranks} ranks: must be at least 1")
    return 2 * layers * 2 * (ranks - 1) / ranks * hidden_size * value_bytes


def expert_imbalance(
    num_experts: int, experts_per_token: int, tokens: int, ranks: int, evenness: float = ROUTING_GAMMA_SHAPE
) -> float:
    """Return the token-expert pairs of the busiest expert-parallel rank divided by the mean of all ranks. Causes of
    the imbalance are chance and the unequal popularity of experts.

    The value is the same as in the step model (`busiest_rank_pairs`, and `routing_gamma_shape` of a model's experts),
    without replicas of popular experts.
    """
    if tokens < 1 or ranks < 1 or not 1 <= experts_per_token <= num_experts:
        raise InvalidInput(
            f"{tokens} tokens and {ranks} ranks: must be at least 1; "
            f"{experts_per_token} experts per token: must be from 1 to {num_experts}"
        )
    pairs = float(tokens * experts_per_token)
    return busiest_rank_pairs(pairs, ranks, num_experts / ranks, evenness) / (pairs / ranks)


def routed_experts(model: ModelSpec) -> MoEFeedForward | None:
    """Return the feed-forward layer with routed experts of a mixture-of-experts model; None for a dense model."""
    parts = (group.feed_forward for group in model.layer_groups)
    return next((part for part in parts if isinstance(part, MoEFeedForward)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout of the model over GPUs, in a closed loop of `concurrency` requests for each engine.

    TTFT, TPOT and throughput are those that clients see, queueing included, as in `estimate`.

    `efficiency`: output tokens per second and GPU, relative to the smallest layout that fits. `speedup`: TPOT of that
    smallest layout divided by TPOT of this one. If the layout does not fit or is rejected, `reason` explains why and
    all times are None. `bubble_fraction`: idle fraction of the stages while one prompt is prefilled in chunks, with
    nothing else running. `idle_fraction`: idle fraction in decode if there are fewer requests than stages.
    `expert_imbalance`: token-expert pairs of the busiest expert-parallel GPU in a decode step, divided by the mean.
    `experts_read`: number of different experts that a decode step reads. `all_reduce_bytes_per_token`: bytes that each
    GPU sends. Fields that do not apply are None. `intervals_s`: the 90 % intervals of `ttft_s` and `tpot_s`.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    expert_parallel: bool
    num_gpus: int
    concurrency: int
    max_batch: int
    ttft_s: float | None = None
    tpot_s: float | None = None
    output_tokens_per_s_per_gpu: float | None = None
    communication_share: float | None = None  # of a decode step
    usd_per_million_tokens: float | None = None
    efficiency: float | None = None
    speedup: float | None = None
    bubble_fraction: float | None = None
    idle_fraction: float | None = None
    expert_imbalance: float | None = None
    experts_read: float | None = None
    all_reduce_bytes_per_token: float | None = None
    reason: str | None
    intervals_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def scaling_curve(
    base: ResolvedPool,
    *,
    input_len: int,
    output_len: int,
    concurrency: int,
    axis: Axis = "tensor",
    most_gpus: int = 8,
    price: Price | None = None,
) -> tuple[Layout, ...]:
    """Return layouts of 1 to `most_gpus` GPUs along one axis; `base` gives all other settings.

    `pipeline`: as many micro-batches as stages, each with its share of the requests; bubbles from micro-batches of
    different sizes are left out. `expert`: tensor parallelism of attention, whole experts on each GPU. `data`:
    attention replicated on every rank with its own requests, whole experts over all ranks, in lockstep. Raises
    InvalidInput for impossible lengths or loads; an impossible layout is included with a reason.
    """
    if min(input_len, concurrency) < 1 or output_len < 2 or not 1 <= most_gpus <= LARGEST_GROUP:
        raise InvalidInput(
            f"{input_len} tokens in, {output_len} out, {concurrency} in flight, {most_gpus} GPUs: must be at "
            f"least 1, 2, 1 and 1, and at most {LARGEST_GROUP} GPUs"
        )
    if axis in ("expert", "data") and not base.model.is_moe:
        raise InvalidInput(
            f"{base.model.name} has no experts to distribute; use --axis tensor or pipeline, or replicas"
        )
    load = _Load(input_len=input_len, output_len=output_len, concurrency=concurrency, price=price)
    if load.tokens > base.max_model_len:
        raise InvalidInput(
            f"a request of {load.tokens} tokens exceeds max_model_len {base.max_model_len}: raise the limit"
        )
    return _add_efficiency([_layout(base, axis, size, load) for size in _sizes(base.model, axis, most_gpus)])


def _sizes(model: ModelSpec, axis: Axis, most_gpus: int) -> tuple[int, ...]:
    if axis in ("tensor", "expert"):
        return tensor_parallel_sizes(model, most_gpus)
    most = min(most_gpus, model.num_layers) if axis == "pipeline" else most_gpus
    return tuple(size for size in DOUBLINGS if size <= most)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """A closed loop of equal requests, and the price of a GPU-hour."""

    input_len: int
    output_len: int
    concurrency: int
    price: Price | None

    @property
    def tokens(self) -> int:
        return self.input_len + self.output_len

    @property
    def lengths(self) -> RequestLengths:
        return RequestLengths(input_len=self.input_len, output_len=self.output_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A closed loop of requests: `held` fit the KV cache of one rank, `served` run at once on all ranks."""

    held: int
    served: int
    load: ServedLoad
    times: PhaseTimes


def _layout(base: ResolvedPool, axis: Axis, size: int, load: _Load) -> Layout:
    changed: dict[str, int] = {SIZE_FIELDS[axis]: size}
    if axis in ("expert", "data"):
        changed["enable_expert_parallel"] = True
    resolved = replace(base, pool=base.pool.model_copy(update=changed))
    try:
        loop = _closed_loop(resolved, load)
    except CapacityError as error:
        return _layout_without_times(resolved, load, str(error))
    return _layout_with_times(resolved, load, loop)


def _closed_loop(resolved: ResolvedPool, load: _Load) -> _Loop:
    """Return how many requests of the load fit and run. Raises DoesNotFit, or InvalidInput if no request fits."""
    resolved.memory.require_fit()
    ranks = resolved.lockstep_ranks
    held = resolved.largest_batch(load.tokens)
    served = min(load.concurrency, ranks * held)
    if served < 1:
        raise InvalidInput(f"no request of {load.tokens} tokens fits the KV cache")
    traffic = Traffic(input_len=load.input_len, output_len=load.output_len, concurrency=load.concurrency)
    times, run = load_times(resolved, traffic, load.lengths)
    billed = run.load or ServedLoad(
        requests_per_s=times.requests_per_s,
        input_tokens=load.input_len,
        output_tokens=load.output_len,
        in_flight=float(served),
    )
    return _Loop(held=held, served=served, times=times, load=billed)


def _layout_without_times(resolved: ResolvedPool, load: _Load, reason: str | None) -> Layout:
    """Return the layout without times. `reason`: why it does not fit or is rejected; None if times will be added."""
    return make_from(
        Layout,
        resolved.pool,
        expert_parallel=resolved.pool.enable_expert_parallel,
        concurrency=load.concurrency,
        max_batch=0,
        reason=reason,
    )


def _layout_with_times(resolved: ResolvedPool, load: _Load, loop: _Loop) -> Layout:
    pool, model = resolved.pool, resolved.model
    read, imbalance = _experts(resolved, loop.served)
    cost = cost_of(load.price, [(resolved, 1)], loop.load)
    decode = resolved.step_model.step_cost(loop.times.decode_shape)
    communication_s = sum(op.seconds for op in decode.operators if op.bound == "communication")
    chunks = math.ceil(load.input_len / resolved.max_num_batched_tokens)
    stages = pool.pipeline_parallel_size
    return replace(
        _layout_without_times(resolved, load, None),
        max_batch=resolved.lockstep_ranks * loop.held,
        bubble_fraction=pipeline_bubble_fraction(stages, chunks),
        idle_fraction=pipeline_idle_fraction(stages, loop.served),
        expert_imbalance=imbalance,
        experts_read=read,
        all_reduce_bytes_per_token=all_reduce_bytes_per_token(
            model.hidden_size, model.num_layers, pool.tensor_parallel_size
        ),
        ttft_s=loop.times.ttft_s,
        tpot_s=loop.times.tpot_s,
        intervals_s=batch_ends(resolved, loop.times, load.lengths, max(loop.served, 1)),
        output_tokens_per_s_per_gpu=loop.times.requests_per_s * loop.load.output_tokens / pool.num_gpus,
        communication_share=communication_s / decode.seconds,
        usd_per_million_tokens=None if cost is None else cost.usd_per_million_tokens,
    )


def _experts(resolved: ResolvedPool, served: int) -> tuple[float | None, float | None]:
    """Return the number of different experts that a decode step of `served` requests reads, and the token-expert pairs
    of the busiest GPU divided by the mean. Each is None if it does not apply."""
    part = routed_experts(resolved.model)
    if part is None:
        return None, None
    evenness = routing_gamma_shape(part)
    read = distinct_experts(part.num_experts, part.experts_per_token, served, evenness)
    if not resolved.pool.enable_expert_parallel:
        return read, None
    ranks = resolved.pool.tensor_parallel_size * resolved.lockstep_ranks
    return read, expert_imbalance(part.num_experts, part.experts_per_token, served, ranks, evenness)


def _add_efficiency(layouts: list[Layout]) -> tuple[Layout, ...]:
    compared: list[Layout] = []
    first = None
    for layout in layouts:
        rate, tpot_s = layout.output_tokens_per_s_per_gpu, layout.tpot_s
        if rate is not None and tpot_s is not None:
            first = first or (rate, tpot_s)
            layout = replace(layout, efficiency=rate / first[0], speedup=first[1] / tpot_s)
        compared.append(layout)
    return tuple(compared)


def cheapest_layout(layouts: tuple[Layout, ...], *, tpot_s: float) -> Layout | None:
    """Return the layout with the most tokens/s per GPU among those that meet a TPOT limit (s); None if none does."""
    meeting = [x for x in layouts if x.tpot_s is not None and x.tpot_s <= tpot_s]
    return max(meeting, key=lambda x: x.output_tokens_per_s_per_gpu or 0.0, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(PoolAnswer):
    """Layouts along one axis, the cheapest for a TPOT limit, and one prompt's prefill over context-parallel ranks."""

    SCHEMA: ClassVar[str] = "capacity/scale/v1"

    axis: str
    input_len: int
    output_len: int
    concurrency: int
    tpot_limit_s: float | None
    cheapest_num_gpus: int | None
    rows: tuple[Layout, ...]
    context_parallel: tuple[ContextParallelPrefill, ...]
    warnings: tuple[str, ...]


@document_options(Pool, Cost)
@validate_arguments
@with_flags
def scale(
    model: str | ModelSpec | DeploymentFile,
    *,
    input_len: InputLen = 1024,
    output_len: OutputLen = 256,
    concurrency: int = 32,
    axis: str = "tensor",
    most_gpus: int = 8,
    tpot_s: float | None = None,
    **options: Any,
) -> Scaling:
    """Return speedup and cost of more GPUs along one axis (tensor, pipeline, expert, data). Raises InvalidInput."""
    pool_fields, cost = split(options, Pool, Cost)
    deployment = make_deployment(model, pool=pool_fields, cost=cost, question="scale")
    pool = deployment.pool
    if pool.data_parallel_size > 1:
        raise InvalidInput(
            f"--data-parallel-size {pool.data_parallel_size}: leave it out; --axis data tries 1, 2, 4, ... ranks"
        )
    chosen = next((known for known in AXES if known == axis), None)
    if chosen is None:
        raise UnknownName("axis of parallelism", axis, AXES)
    resolved = resolve(deployment.model, pool)
    curve = scaling_curve(
        resolved,
        input_len=input_len,
        output_len=output_len,
        concurrency=concurrency,
        axis=chosen,
        most_gpus=most_gpus,
        price=find_price_for_cost(resolved.profile.name, deployment.cost),
    )
    best = None if tpot_s is None else cheapest_layout(curve, tpot_s=tpot_s)
    ranks = [count for count in (1, 2, 4, 8) if count <= most_gpus]
    divisible = input_len >= max(ranks) and pool.pipeline_parallel_size == 1  # stages divide a prompt already
    return Scaling(
        **shared_fields(resolved),
        axis=axis,
        input_len=input_len,
        output_len=output_len,
        concurrency=concurrency,
        tpot_limit_s=tpot_s,
        cheapest_num_gpus=None if best is None else best.num_gpus,
        rows=curve,
        context_parallel=context_parallel_prefill(resolved, input_len, ranks) if divisible else (),
        warnings=pool_notes(resolved),
    )
