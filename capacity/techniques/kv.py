"""KV caches and long context: bytes by attention kind, what windows, sinks and offloading do, where attention wins.

Closed forms with units; the step model's times beside them where a fitted kernel exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from capacity.base.errors import CapacityError, InvalidInput, OutsideValidity
from capacity.deployment import Pool
from capacity.model import ModelSpec, load_model
from capacity.model.layers import KvCacheGroup
from capacity.model.quantization import find_kv_cache_format
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import decode_shape, prefill_shape, windowed_pairs

CONTEXTS = (4096, 32768, 131072, 1048576)
LATENT_VALUES = 512 + 64  # of DeepSeek-V2 and V3: kv_lora_rank and rotary key; arXiv 2405.04434
LONGEST_CONTEXT = 1 << 40
MOST_RANKS = 8


def request_kv_bytes(model: ModelSpec, tokens: int, kv_cache_dtype: str = "auto") -> float:
    """KV of one request of `tokens` tokens, one copy: windowed layers stop growing, linear ones never grow."""
    if not 1 <= tokens <= LONGEST_CONTEXT:
        raise InvalidInput(f"a context of {tokens} tokens: must be from 1 to {LONGEST_CONTEXT}")
    return sum(_group_bytes(group, tokens) for group in model.kv_cache_groups(kv_cache_dtype))


def _group_bytes(group: KvCacheGroup, tokens: int) -> float:
    if group.kind == "linear":
        return group.state_bytes_per_sequence
    held = tokens if group.window_tokens is None else min(tokens, group.window_tokens)
    return group.bytes_per_token * held


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedAttention:
    """What one request costs if every layer forgets so: KV bytes, and prefill's query x key pairs over causal ones.

    `seen_tokens`: how many tokens the last one can attend to.
    """

    name: str
    kv_bytes: float
    pair_fraction: float
    seen_tokens: int


def limited_attention(
    model: ModelSpec,
    tokens: int,
    *,
    window_tokens: int,
    sink_tokens: int = 4,
    kv_cache_dtype: str = "auto",
) -> tuple[LimitedAttention, ...]:
    """Full, sliding-window, sink-and-window (StreamingLLM) and chunked attention, at `tokens` of one request.

    A window keeps the last `window_tokens`; StreamingLLM besides them the first `sink_tokens` (4), without which
    quality collapses once they leave (Xiao et al., arXiv 2309.17453); chunks of `window_tokens` attend inside
    themselves only (Llama 4), and are held whole at most. What lies between is forgotten, not compressed. Layers
    with a window of their own keep the smaller one. Raises InvalidInput.
    """
    if sink_tokens < 0 or window_tokens < 1 or tokens < 1:
        raise InvalidInput(
            f"{sink_tokens} sinks and a window of {window_tokens} at {tokens} tokens: at least 0, 1 and 1"
        )
    streaming = sink_tokens + window_tokens
    whole, rest = divmod(tokens, window_tokens)
    causal = windowed_pairs(tokens, 0, None)
    chunked = whole * windowed_pairs(window_tokens, 0, None) + windowed_pairs(rest, 0, None)
    ways = (
        ("full", tokens, causal, tokens),
        ("window", window_tokens, windowed_pairs(tokens, 0, window_tokens), window_tokens),
        ("sinks and window", streaming, windowed_pairs(tokens, 0, streaming), streaming),
        ("chunks", window_tokens, chunked, rest or window_tokens),
    )
    return tuple(
        LimitedAttention(
            name=name,
            kv_bytes=request_kv_bytes(model, min(tokens, held), kv_cache_dtype),
            pair_fraction=pairs / causal,
            seen_tokens=min(tokens, seen),
        )
        for name, held, pairs, seen in ways
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KindComparison:
    """KV bytes per token if every softmax layer of the model were of another kind; linear layers stay."""

    model: str
    actual: str
    actual_bytes_per_token: float
    mha_bytes_per_token: float  # one KV head for each query head
    mqa_bytes_per_token: float  # one for all
    mla_bytes_per_token: float  # DeepSeek's latent of 512 + 64 values, whatever the heads


def compare_attention_kinds(model: ModelSpec, kv_cache_dtype: str = "auto") -> KindComparison:
    """MHA, the model's own kind, MQA and MLA side by side, windows left out of account."""
    kv = find_kv_cache_format(kv_cache_dtype, model_dtype=model.dtype)
    mha = mqa = mla = own = 0.0
    for group in model.softmax_groups:
        layers, mixer = group.num_layers, group.mixer
        head = kv.vector_bytes(mixer.value_head_dim)
        own += layers * mixer.kv_bytes_per_token(kv)
        mha += layers * 2 * mixer.num_heads * head
        mqa += layers * 2 * head
        mla += layers * kv.vector_bytes(LATENT_VALUES)
    return KindComparison(
        model=model.name,
        actual=model.attention_kind,
        actual_bytes_per_token=own,
        mha_bytes_per_token=mha,
        mqa_bytes_per_token=mqa,
        mla_bytes_per_token=mla,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRow:
    """One model: KV per token, KV of one request at each context, and the context that each GPU holds.

    `gpu_context_tokens`: the longest single request on one engine of that GPU, at most the model's own limit;
    0: the weights alone do not fit.
    """

    model: str
    attention: str
    kv_cache_dtype: str
    bytes_per_token: float  # of layers that grow without bound
    window_bytes_per_token: float  # of layers that stop at `window_tokens`
    window_tokens: int | None
    state_bytes_per_request: float
    max_position_embeddings: int
    request_bytes: dict[int, float]
    gpu_context_tokens: dict[str, int]


def kv_table(
    models: Sequence[str | ModelSpec],
    *,
    gpus: Sequence[str] = (),
    kv_cache_dtype: str = "auto",
    contexts: Sequence[int] = CONTEXTS,
    tensor_parallel_size: int = 1,
    quantization: str | None = None,
    engine: str = "vllm",
) -> tuple[KvRow, ...]:
    """A row for each model. Contexts beyond a model's own limit are arithmetic all the same. Raises InvalidInput."""
    return tuple(
        _row(
            load_model(model) if isinstance(model, str) else model,
            gpus,
            Pool(
                gpu="-",
                kv_cache_dtype=kv_cache_dtype,
                tensor_parallel_size=tensor_parallel_size,
                quantization=quantization,
                engine=engine,
            ),
            contexts,
        )
        for model in models
    )


def _row(model: ModelSpec, gpus: Iterable[str], pool: Pool, contexts: Iterable[int]) -> KvRow:
    dtype = pool.kv_cache_dtype
    held: dict[str, int] = {}
    for gpu in gpus:
        plan = resolve(model, pool.model_copy(update={"gpu": gpu})).memory
        held[gpu] = plan.max_context_tokens if plan.kv_cache_bytes > 0 else 0
    return KvRow(
        model=model.name,
        attention=model.attention_kind,
        kv_cache_dtype=model.dtype if dtype == "auto" else dtype,
        bytes_per_token=model.kv_bytes_per_token(dtype),
        window_bytes_per_token=model.window_kv_bytes_per_token(dtype),
        window_tokens=model.window_tokens,
        state_bytes_per_request=model.state_bytes_per_sequence(),
        max_position_embeddings=model.max_position_embeddings,
        request_bytes={context: request_kv_bytes(model, context, dtype) for context in contexts},
        gpu_context_tokens=held,
    )


# where attention overtakes the weights


def prefill_crossover_tokens(model: ModelSpec) -> float:
    """Prompt length at which causal attention needs as many FLOPs as all matrices: active matrix parameters / (L·q·d).

    Per token: 2 FLOPs a parameter, and 4·q·d a layer for each of N/2 tokens attended. Layers with a window or a
    state are left out of the growing part. Raises OutsideValidity where no layer grows.
    """
    width = sum(
        group.num_layers * group.mixer.flops_per_pair / 4
        for group in model.softmax_groups
        if group.mixer.window_tokens is None
    )
    if width == 0:
        raise OutsideValidity(
            f"no layer of {model.name} attends to its whole context: attention never overtakes"
        )
    embeddings = sum(p.params for p in model.parameter_parts() if p.kind in ("embedding", "lm_head"))
    return (model.active_params - embeddings) / width


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPoint:
    """One decode step at a context: which part of it is attention."""

    context_tokens: int
    step_s: float
    attention_s: float
    attention_share: float
    kv_read_bytes: float


def decode_growth(
    resolved: ResolvedPool, batch_size: int, contexts: Sequence[int] = CONTEXTS
) -> tuple[ContextPoint, ...]:
    """Decode steps of `batch_size` requests at each context, through the step model; memory is not checked here."""
    return tuple(_decode_point(resolved, batch_size, context) for context in contexts)


def _decode_point(resolved: ResolvedPool, batch_size: int, context: int) -> ContextPoint:
    if batch_size < 1 or not 1 <= context <= LONGEST_CONTEXT:
        raise InvalidInput(f"a batch of {batch_size} at {context} tokens: both must be at least 1")
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
    """The smallest context at which attention takes half of a decode step; None: not below 2**24 tokens."""
    low, high = 0, 1
    while _decode_point(resolved, batch_size, high).attention_share < 0.5:
        if high >= 1 << 24:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _decode_point(resolved, batch_size, middle).attention_share < 0.5:
            low = middle
        else:
            high = middle
    return high


# offloading, and prefill over several GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """A cached prefix fetched from CPU memory, beside computing it again: seconds, nothing else running."""

    tokens: int
    bytes: float
    load_s: float
    recompute_s: float

    @property
    def worth_it(self) -> bool:
        return self.load_s < self.recompute_s


def offload(resolved: ResolvedPool, tokens: int) -> Offload:
    """KV of `tokens` tokens over PCIe, each GPU of the group fetching its part, against prefill of them.

    Leaves out overlap of layers (load while computing) and contention for the link.
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
    """One prompt prefilled by `ranks` groups of GPUs, each with a part of the sequence (ring attention)."""

    ranks: int
    seconds: float
    exposed_communication_s: float
    efficiency: float  # speed-up over ranks


def context_parallel_prefill(
    resolved: ResolvedPool, tokens: int, rank_counts: Sequence[int] = (1, 2, 4, 8)
) -> tuple[ContextParallelPrefill, ...]:
    """Prefill time over ranks: matrices and attention divided evenly (zigzag parts), KV passed round the ring.

    Each rank sends its part of K and V on n - 1 times a layer, hidden behind its own attention as far as that
    lasts. Matrix steps keep their per-kernel latency. Source: Liu et al., Ring Attention, arXiv 2310.01889.
    Raises InvalidInput for fewer tokens than ranks.
    """
    window = resolved.model.window_tokens
    whole = resolved.step_model.step_cost(prefill_shape(1, tokens, window_tokens=window))
    attention_s = sum(op.seconds for op in whole.operators if op.name.startswith("attention prefill"))
    kv_bytes = request_kv_bytes(resolved.model, tokens, resolved.kv_cache_dtype)
    found = []
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
        found.append(
            ContextParallelPrefill(
                ranks=ranks,
                seconds=seconds,
                exposed_communication_s=exposed if ranks > 1 else 0.0,
                efficiency=whole.seconds / seconds / ranks,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongContext:
    """A model on one GPU (or group): what it holds, where attention overtakes, what fetching a prefix is worth.

    None where the model does not fit, or its times are not modelled there; `reason` then says why.
    """

    model: str
    gpu: str
    held_tokens: int
    decode_crossover_tokens: int | None  # at `batch_size`: attention is half of a step; None: never
    batch_size: int
    growth: tuple[
        ContextPoint, ...
    ]  # a decode step of `batch_size` at each context, memory left out of account
    offload: Offload | None  # of a prefix of the first context
    prefill: tuple[ContextParallelPrefill, ...]  # of the longest context held, over ranks
    prefill_tokens: int
    reason: str | None


def long_context(
    resolved: ResolvedPool, *, batch_size: int, prefix_tokens: int, contexts: Sequence[int] = CONTEXTS
) -> LongContext:
    """Everything of a long context on one pool: held tokens, crossover, a fetched prefix, prefill over ranks."""
    plan = resolved.memory
    held = plan.max_context_tokens if plan.kv_cache_bytes > 0 else 0
    nothing = LongContext(
        model=resolved.model.name,
        gpu=resolved.profile.name,
        held_tokens=held,
        decode_crossover_tokens=None,
        batch_size=batch_size,
        growth=(),
        offload=None,
        prefill=(),
        prefill_tokens=held,
        reason=plan.reason,
    )
    if not held:
        return nothing
    try:
        return replace(
            nothing,
            decode_crossover_tokens=decode_crossover_tokens(resolved, batch_size),
            growth=decode_growth(resolved, batch_size, contexts),
            offload=offload(resolved, prefix_tokens),
            prefill=context_parallel_prefill(resolved, held) if held >= MOST_RANKS else (),
        )
    except CapacityError as error:
        return replace(nothing, reason=str(error))
