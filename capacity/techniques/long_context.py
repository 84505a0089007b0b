"""Long contexts: length where attention needs more FLOPs than the weights, KV offloading, prefill over several GPUs.

The formulas are in closed form; times are from the step model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.base.errors import CapacityError, InvalidInput, OutsideValidity
from capacity.model import ModelSpec
from capacity.pool.resolve import ResolvedPool
from capacity.step import decode_shape, prefill_shape
from capacity.step.closed_form import first_failing
from capacity.techniques.kv_bytes import LONGEST_CONTEXT, request_kv_bytes

CONTEXTS = (4096, 32768, 131072, 1048576)
MAX_RANKS = 8


def prefill_crossover_tokens(model: ModelSpec) -> float:
    """Return the prompt length at which causal attention needs as many FLOPs as all weight matrices: active matrix
    parameters / (L·q·d) for L layers, q query heads and head dimension d.

    FLOPs per token: 2 per parameter, and 4·q·d per layer for each of N/2 attended tokens. Layers with a window or a
    recurrent state are not counted, because their attention does not grow. Raises OutsideValidity if no layer grows.
    """
    width = sum(
        group.num_layers * group.mixer.flops_per_pair / 4
        for group in model.softmax_groups
        if group.mixer.window_tokens is None
    )
    if width == 0:
        raise OutsideValidity(
            f"no layer of {model.name} attends to its whole context, so attention never exceeds the weights"
        )
    embeddings = sum(p.params for p in model.parameter_parts() if p.kind in ("embedding", "lm_head"))
    return (model.active_params - embeddings) / width


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPoint:
    """Time of one decode step at one context length, and attention's fraction of it."""

    context_tokens: int
    step_s: float
    attention_s: float
    attention_share: float
    kv_read_bytes: float


def decode_point(resolved: ResolvedPool, batch_size: int, context: int) -> ContextPoint:
    """Return the time of a decode step of `batch_size` requests of `context` tokens, even if they do not fit."""
    if batch_size < 1 or not 1 <= context <= LONGEST_CONTEXT:
        raise InvalidInput(
            f"a batch of {batch_size} must be at least 1, and a context of {context} from 1 to {LONGEST_CONTEXT}"
        )
    shape = decode_shape(batch_size, context, window_tokens=resolved.model.window_tokens)
    cost = resolved.step_model.step_cost(shape)
    attention_s = sum(op.seconds for op in cost.operators if op.name.startswith("attention decode"))
    return ContextPoint(
        context_tokens=context,
        step_s=cost.seconds,
        attention_s=attention_s,
        attention_share=attention_s / cost.seconds,
        kv_read_bytes=batch_size * request_kv_bytes(resolved.model, context, resolved.kv_cache_dtype),
    )


def decode_crossover_tokens(resolved: ResolvedPool, batch_size: int) -> int | None:
    """Return the smallest context at which attention takes half of a decode step; None above 2**24 tokens."""
    return first_failing(
        lambda tokens: decode_point(resolved, batch_size, tokens).attention_share < 0.5, 1 << 24
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Time (s) to load the KV of a prefix from CPU memory, and time (s) to recompute it, on an idle GPU."""

    tokens: int
    bytes: float
    load_s: float
    recompute_s: float

    @property
    def worth_it(self) -> bool:
        return self.load_s < self.recompute_s


def offload(resolved: ResolvedPool, tokens: int) -> Offload:
    """Return the time to load the KV of `tokens` tokens over PCIe (each GPU its part), and the time to prefill them.

    Not modelled: computing while layers load, and contention for the link.
    """
    kv_bytes = request_kv_bytes(resolved.model, tokens, resolved.kv_cache_dtype)
    ranks = min(resolved.pool.tensor_parallel_size, max(1, resolved.model.num_kv_heads))
    link = resolved.profile.pcie
    shape = prefill_shape(1, tokens, window_tokens=resolved.model.window_tokens)
    return Offload(
        tokens=tokens,
        bytes=kv_bytes,
        load_s=link.latency_s + kv_bytes / ranks / link.bytes_per_s,
        recompute_s=resolved.step_model.step_seconds(shape),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallelPrefill:
    """Prefill of one prompt by `ranks` groups of GPUs, each with a part of the sequence (ring attention)."""

    ranks: int
    seconds: float
    exposed_communication_s: float
    efficiency: float  # speed-up over ranks


def context_parallel_prefill(
    resolved: ResolvedPool, tokens: int, rank_counts: Sequence[int] = (1, 2, 4, 8)
) -> tuple[ContextParallelPrefill, ...]:
    """Return the prefill time of one prompt for each number of ranks. Ranks divide matrices and attention evenly and
    pass KV around a ring.

    Each of n ranks sends its (zigzag) part of K and V n - 1 times per layer. This transfer adds to the prefill time
    only if it takes longer than the rank's attention. Matrix multiplications keep their per-kernel latency. Source:
    Liu et al., Ring Attention, arXiv 2310.01889. Raises InvalidInput for fewer tokens than ranks.
    """
    window = resolved.model.window_tokens
    whole = resolved.step_model.step_cost(prefill_shape(1, tokens, window_tokens=window))
    attention_s = sum(op.seconds for op in whole.operators if op.name.startswith("attention prefill"))
    kv_bytes = request_kv_bytes(resolved.model, tokens, resolved.kv_cache_dtype)
    prefills = []
    for ranks in rank_counts:
        if not 1 <= ranks <= tokens:
            raise InvalidInput(
                f"{ranks} context-parallel ranks for {tokens} tokens: must be from 1 to {tokens}"
            )
        part = prefill_shape(1, -(-tokens // ranks), window_tokens=window)
        cost = resolved.step_model.step_cost(part)
        rest_s = sum(op.seconds for op in cost.operators if not op.name.startswith("attention prefill"))
        link = resolved.profile.link_for(ranks * resolved.pool.tensor_parallel_size)
        sent = kv_bytes / ranks * (ranks - 1) / resolved.pool.tensor_parallel_size
        hops = resolved.model.num_layers * (ranks - 1)
        exposed = max(0.0, sent / link.bytes_per_s + hops * link.latency_s - attention_s / ranks)
        seconds = whole.seconds if ranks == 1 else rest_s + attention_s / ranks + exposed
        prefills.append(
            ContextParallelPrefill(
                ranks=ranks,
                seconds=seconds,
                exposed_communication_s=exposed if ranks > 1 else 0.0,
                efficiency=whole.seconds / seconds / ranks,
            )
        )
    return tuple(prefills)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongContext:
    """A model on one GPU (or group): the longest context that fits, the context at which attention takes half of a
    decode step, and the time that loading a prefix saves.

    Results are empty or None if the model does not fit or its times are not modelled; `reason` explains why.
    """

    model: str
    gpu: str
    held_tokens: int
    decode_crossover_tokens: int | None = None  # at `batch_size`: attention is half of a step; None: never
    batch_size: int
    growth: tuple[
        ContextPoint, ...
    ] = ()  # a decode step of `batch_size` at each context, without a memory check
    offload: Offload | None = None  # of a prefix of the first context
    prefill: tuple[ContextParallelPrefill, ...] = ()  # of the longest context held, over ranks
    prefill_tokens: int
    reason: str | None


def long_context(
    resolved: ResolvedPool, *, batch_size: int, prefix_tokens: int, contexts: Sequence[int] = CONTEXTS
) -> LongContext:
    """Return the longest context, attention crossover, loading of a prefix, and ring-attention prefill of a pool."""
    plan = resolved.memory
    held = plan.max_context_tokens if plan.kv_cache_bytes > 0 else 0
    nothing = LongContext(
        model=resolved.model.name,
        gpu=resolved.profile.name,
        held_tokens=held,
        batch_size=batch_size,
        prefill_tokens=held,
        reason=plan.reason,
    )
    if not held:
        return nothing
    try:
        return replace(
            nothing,
            decode_crossover_tokens=decode_crossover_tokens(resolved, batch_size),
            growth=tuple(decode_point(resolved, batch_size, context) for context in contexts),
            offload=offload(resolved, prefix_tokens),
            prefill=context_parallel_prefill(resolved, held) if held >= MAX_RANKS else (),
        )
    except CapacityError as error:
        return replace(nothing, reason=str(error))
