"""Size of the KV cache by model, context and attention kind, and the longest context on each GPU."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput, OutsideValidity
from capacity.base.flags import with_flags
from capacity.base.record import AnswerRecord
from capacity.deployment import Pool, build
from capacity.model import ModelSpec, load_model
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.techniques.kv_bytes import (
    KindComparison,
    LimitedAttention,
    compare_attention_kinds,
    limited_attention,
    request_kv_bytes,
)
from capacity.techniques.kv_eviction import (
    BUDGET_TOKENS,
    EvictionMethod,
    EvictionRow,
    describe_methods,
    eviction_rows,
    selected_methods,
)
from capacity.techniques.long_context import CONTEXTS, LongContext, long_context, prefill_crossover_tokens
from capacity.techniques.one_pool import Contexts, TensorParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAnswerRow:
    """KV sizes of a model, as it is and with MHA, MQA or MLA; prompt length at which attention is half of all FLOPs."""

    model: str
    attention: str
    kv_cache_dtype: str
    bytes_per_token: float  # of layers that grow without bound
    window_bytes_per_token: float  # of layers that stop at `window_tokens`
    window_tokens: int | None
    state_bytes_per_request: float
    max_position_embeddings: int
    request_bytes: dict[int, float]  # of one request, by context
    # the longest request on one engine of each GPU, at most the model's own limit; 0: the weights alone do not fit
    gpu_context_tokens: dict[str, int]
    kinds: KindComparison
    prefill_crossover_tokens: float | None  # None: no layer attends to its whole context


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRow:
    """KV bytes of one model at one context length, with each method that limits attention (window, sinks, chunks)."""

    model: str
    context_tokens: int
    ways: tuple[LimitedAttention, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAnswer(AnswerRecord):
    """KV sizes by model and context. `limited`: sizes with limited attention, if a window is given. `long_contexts`:
    long-context results of each model on each GPU."""

    SCHEMA: ClassVar[str] = "capacity/kv/v1"

    contexts: tuple[int, ...]
    gpus: tuple[str, ...]
    window_tokens: int | None
    sink_tokens: int
    rows: tuple[KvAnswerRow, ...]
    limited: tuple[LimitedRow, ...]
    evictions: tuple[EvictionRow, ...]  # only where a method was asked for
    eviction_methods: tuple[EvictionMethod, ...]
    long_contexts: tuple[LongContext, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; context lengths that are dict keys become strings."""
        answer = AnswerRecord.to_dict(self)
        for row in answer["rows"]:
            row["request_bytes"] = {str(context): size for context, size in row["request_bytes"].items()}
        return answer


@validate_arguments
@with_flags
def kv(
    models: Sequence[str | ModelSpec] | str | ModelSpec,
    *,
    gpus: Sequence[str] | str = (),
    contexts: Contexts = CONTEXTS,
    batch_size: int = 32,
    window_tokens: int | None = None,
    sink_tokens: int = 4,
    eviction: str | None = None,
    budget_tokens: int = BUDGET_TOKENS,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: TensorParallel = 1,
    quantization: str | None = None,
    engine: str = "vllm",
) -> KvAnswer:
    """Return KV sizes by model and context, those with MHA, MQA or MLA instead, and the longest context on each GPU.

    `batch_size`: requests of a decode step. `window_tokens` adds KV sizes with attention limited by windows, sinks and
    chunks of this size. `eviction` (a name or "all") adds methods that keep `budget_tokens` of a request by attention
    score, or that store fewer bits. A single model or GPU needs no list. Raises InvalidInput or UnknownName.
    """
    gpus = (gpus,) if isinstance(gpus, str) else gpus
    options = {
        "kv_cache_dtype": kv_cache_dtype,
        "tensor_parallel_size": tensor_parallel_size,
        "quantization": quantization,
        "engine": engine,
    }
    specs = _load_models(models)
    methods = selected_methods(eviction)
    evicting: Any = {
        "budget_tokens": budget_tokens,
        "batch_size": batch_size,
        "kv_cache_dtype": kv_cache_dtype,
    }
    pools = [{gpu: resolve(spec, build(Pool, {"gpu": gpu, **options})) for gpu in gpus} for spec in specs]
    return KvAnswer(
        contexts=tuple(contexts),
        gpus=tuple(gpus),
        window_tokens=window_tokens,
        sink_tokens=sink_tokens,
        rows=tuple(_row(*of, contexts, kv_cache_dtype) for of in zip(specs, pools, strict=True)),
        limited=()
        if window_tokens is None
        else tuple(_limited_rows(specs, contexts, window_tokens, sink_tokens, kv_cache_dtype)),
        evictions=tuple(
            row
            for spec, held in zip(specs, pools, strict=True)
            for pool in held.values() or (None,)
            for context in contexts
            if methods
            for row in eviction_rows(spec, pool, methods, context_tokens=context, **evicting)
        ),
        eviction_methods=describe_methods(methods),
        long_contexts=tuple(
            long_context(pool, batch_size=batch_size, prefix_tokens=min(contexts), contexts=contexts)
            for held in pools
            for pool in held.values()
        ),
    )


def _load_models(models: Sequence[str | ModelSpec] | str | ModelSpec) -> list[ModelSpec]:
    if not models:
        raise InvalidInput("no model: name one or more (`capacity models` lists them)")
    named = (models,) if isinstance(models, (str, ModelSpec)) else models
    return [load_model(model) if isinstance(model, str) else model for model in named]


def _limited_rows(
    models: Sequence[ModelSpec], contexts: Sequence[int], window: int, sinks: int, kv_cache_dtype: str
) -> Iterator[LimitedRow]:
    for model, context in product(models, contexts):
        ways = limited_attention(
            model, context, window_tokens=window, sink_tokens=sinks, kv_cache_dtype=kv_cache_dtype
        )
        yield LimitedRow(model=model.name, context_tokens=context, ways=ways)


def _row(
    model: ModelSpec, pools: Mapping[str, ResolvedPool], contexts: Sequence[int], kv_cache_dtype: str
) -> KvAnswerRow:
    """Return the KV sizes of one model. Contexts beyond the model's limit are also computed."""
    plans = {gpu: pool.memory for gpu, pool in pools.items()}
    try:
        crossover = prefill_crossover_tokens(model)
    except OutsideValidity:
        crossover = None
    return KvAnswerRow(
        model=model.name,
        attention=model.attention_kind,
        kv_cache_dtype=model.dtype if kv_cache_dtype == "auto" else kv_cache_dtype,
        bytes_per_token=model.kv_bytes_per_token(kv_cache_dtype),
        window_bytes_per_token=model.window_kv_bytes_per_token(kv_cache_dtype),
        window_tokens=model.window_tokens,
        state_bytes_per_request=model.state_bytes_per_sequence(),
        max_position_embeddings=model.max_position_embeddings,
        request_bytes={context: request_kv_bytes(model, context, kv_cache_dtype) for context in contexts},
        gpu_context_tokens={
            gpu: plan.max_context_tokens if plan.kv_cache_bytes > 0 else 0 for gpu, plan in plans.items()
        },
        kinds=compare_attention_kinds(model, kv_cache_dtype),
        prefill_crossover_tokens=crossover,
    )
