"""KV eviction and compression methods: KV bytes, decode time, requests that fit, scoring time and quality loss."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.deployment.engines import engine_names, find_engine
from capacity.model import ModelSpec
from capacity.pool.kv_eviction import KvEviction, Published, find_eviction, kv_evictions
from capacity.pool.resolve import ResolvedPool
from capacity.step import StepShape
from capacity.step.shape import prefill_shape
from capacity.techniques.kv_bytes import request_kv_bytes
from capacity.techniques.quantization_methods import quantization_methods

BUDGET_TOKENS = 1024  # most papers report this budget
ALL = "all"
SCORE_BYTES = 4  # one FP32 sum for each KV head and kept token: assumed, 2026-11-22


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRow:
    """Results of one eviction method at one context length: KV bytes of a request, and on a GPU times and throughput.

    `score_bytes`: extra memory of a method that accumulates scores. `step_s`: a decode step of `batch_size` requests.
    `held`: how many requests of `context_tokens` fit; `tokens_per_s` is for these (at most max_num_seqs). `prefill_s`
    is for one whole prompt, and `score_s` is the time that selecting tokens adds. Times, `held` and throughput are None
    without a GPU.
    """

    model: str
    gpu: str | None
    method: str
    title: str
    context_tokens: int
    kept_tokens: int
    kv_bytes: float
    kept_share: float
    score_bytes: float
    batch_size: int
    step_s: float | None
    speedup: float | None
    held: int | None
    tokens_per_s: float | None
    prefill_s: float | None
    score_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionMethod:
    """An eviction or compression method: its effect on prompts, engines that support it, published results."""

    method: str
    title: str
    prompt: str
    scored: str
    engines: tuple[str, ...]
    note: str
    published: tuple[Published, ...]


def selected_methods(eviction: str | None) -> tuple[KvEviction, ...]:
    """Return the method with the given name, all methods for "all", or none for None. Raises UnknownName."""
    if eviction is None:
        return ()
    if eviction == ALL:
        return (*kv_evictions().values(), *_kv_formats())
    named = {way.name: way for way in _kv_formats()}
    return (named[eviction],) if eviction in named else (find_eviction(eviction),)


def _kv_formats() -> Iterator[KvEviction]:
    """Yield the KV formats of `quantization_methods`, with the engines that support them and their published scores."""
    for way in quantization_methods().values():
        if way.kind != "kv-cache" or way.kv_cache_dtype is None:
            continue
        dtype = way.kv_cache_dtype
        yield KvEviction(
            name=way.name,
            title=way.title,
            keeps="bits",
            scored="position",
            kv_cache_dtype=dtype,
            engines=tuple(name for name in engine_names() if find_engine(name).supports_kv_format(dtype)),
            note=f"--kv-cache-dtype {dtype}" + (f"; {way.note}" if way.note else ""),
            published=tuple(
                Published(
                    what=each.text.removesuffix(f" ({each.model})"),
                    model=each.model,
                    source=each.source,
                    date=each.date,
                )
                for each in way.quality
            ),
        )


def describe_methods(methods: Sequence[KvEviction]) -> tuple[EvictionMethod, ...]:
    return tuple(make_from(EvictionMethod, way, method=way.name) for way in methods)


def eviction_rows(
    model: ModelSpec,
    pool: ResolvedPool | None,
    methods: Sequence[KvEviction],
    *,
    context_tokens: int,
    budget_tokens: int,
    batch_size: int,
    kv_cache_dtype: str = "auto",
) -> Iterator[EvictionRow]:
    """Yield a row for the full KV cache, then one for each method. Methods do not change windowed and recurrent layers.

    Raises InvalidInput for a budget below 1.
    """
    if budget_tokens < 1:
        raise InvalidInput(f"--kv-budget {budget_tokens}: must be at least 1 token")
    whole_bytes = request_kv_bytes(model, context_tokens, kv_cache_dtype)
    heads = sum(g.num_kv_heads * g.num_layers for g in model.kv_cache_groups() if g.kind == "full")
    plain_s = None if pool is None else _step_s(pool, batch_size, context_tokens, context_tokens)
    for method in (None, *methods):
        kept = context_tokens if method is None else method.kept_tokens(context_tokens, budget_tokens)
        dtype = kv_cache_dtype if method is None else method.kv_cache_dtype or kv_cache_dtype
        cached = pool if pool is None or dtype == kv_cache_dtype else replace(pool, kv_cache_dtype=dtype)
        # bytes of a token over the layers that hold `kept` tokens, the others what they hold of the whole context
        growing = sum(g.bytes_per_token for g in model.kv_cache_groups(dtype) if g.kind == "full")
        kv_bytes = request_kv_bytes(model, context_tokens, dtype) - growing * context_tokens + growing * kept
        step_s = None if cached is None else _step_s(cached, batch_size, context_tokens, kept)
        held = None if cached is None else _requests_that_fit(cached, context_tokens, kept)
        batch = 0 if cached is None else min(held or 0, cached.max_num_seqs)
        prefill_s, score_s = (None, None) if pool is None else _prefill_s(pool, method, context_tokens, kept)
        yield EvictionRow(
            model=model.name,
            gpu=None if pool is None else pool.profile.name,
            method="none" if method is None else method.name,
            title="the whole KV" if method is None else method.title,
            context_tokens=context_tokens,
            kept_tokens=kept,
            kv_bytes=kv_bytes,
            kept_share=kv_bytes / whole_bytes if whole_bytes else 1.0,
            score_bytes=float(heads * kept * SCORE_BYTES) if method and method.scored == "all" else 0.0,
            batch_size=batch_size,
            step_s=step_s,
            speedup=None if step_s is None or plain_s is None else plain_s / step_s,
            held=held,
            tokens_per_s=batch / _step_s(cached, batch, context_tokens, kept) if cached and batch else None,
            prefill_s=prefill_s,
            score_s=score_s,
        )


def _step_s(pool: ResolvedPool, batch: int, context: int, kept: int) -> float:
    """Return the time (s) of a decode step of `batch` requests; layers without a window attend to `kept` tokens."""
    window = pool.model.window_tokens
    shape = StepShape(
        decode_sequences=batch,
        decode_context_tokens=batch * kept,
        decode_window_context_tokens=batch * (kept if window is None else min(context, window)),
    )
    return pool.step_model.step_seconds(shape)


def _requests_that_fit(pool: ResolvedPool, context: int, kept: int) -> int:
    """Return how many requests the KV blocks hold after eviction, with room to prefill one whole `context`."""
    plan = pool.memory
    layout, blocks = plan.layout, plan.usable_blocks
    whole = layout.blocks_of_request(context)
    saved = math.ceil(context / layout.block_tokens) - math.ceil(kept / layout.block_tokens)
    after = whole - layout.full_groups * saved
    return 0 if blocks < whole else 1 + (blocks - whole) // after


def _prefill_s(pool: ResolvedPool, method: KvEviction | None, context: int, kept: int) -> tuple[float, float]:
    """Return the prefill time (s) of one prompt, and the time (s) to score its tokens. The scoring time is proportional
    to the number of scored query-key pairs."""
    model = pool.model
    shape = prefill_shape(1, context, window_tokens=model.window_tokens)
    if method is not None and method.prompt == "kept":
        shape = shape._replace(prefill_pairs=method.prompt_pairs(context, kept))
    cost = pool.step_model.step_cost(shape)
    attention_s = sum(op.seconds for op in cost.operators if op.name == "attention prefill")
    pairs = 0 if method is None else method.scored_pairs(context)
    group, scores_part = next(iter(model.softmax_groups), None), 0.5  # where keys are as wide as values
    if group is not None and hasattr(group.mixer, "head_dim"):
        scores_part = group.mixer.head_dim / (group.mixer.head_dim + group.mixer.value_head_dim)
    return cost.seconds, attention_s * scores_part * pairs / (context * (context + 1) / 2)
