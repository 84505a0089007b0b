"""How large the KV cache is: by model, context and kind of attention, and what each GPU holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from capacity.base.errors import InvalidInput, OutsideValidity
from capacity.base.flags import Flag
from capacity.base.record import AnswerRecord
from capacity.deployment import Pool, build
from capacity.model import ModelSpec, load_model
from capacity.pool.resolve import resolve
from capacity.techniques.kv_bytes import (
    KindComparison,
    LimitedAttention,
    compare_attention_kinds,
    limited_attention,
    request_kv_bytes,
)
from capacity.techniques.long_context import CONTEXTS, LongContext, long_context, prefill_crossover_tokens
from capacity.techniques.one_pool import Contexts, TensorParallel


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


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAnswerRow(KvRow):
    """A model's KV, what other kinds of attention would take, and the prompt at which attention overtakes matrices."""

    kinds: KindComparison
    prefill_crossover_tokens: float | None  # None: no layer attends to its whole context


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRow:
    """Ways to forget, at one context of one model."""

    model: str
    context_tokens: int
    ways: tuple[LimitedAttention, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAnswer(AnswerRecord):
    """KV by model and context; `limited` only where a window was given, `long_contexts` for each GPU."""

    SCHEMA: ClassVar[str] = "capacity/kv/v1"

    contexts: tuple[int, ...]
    gpus: tuple[str, ...]
    window_tokens: int | None
    sink_tokens: int
    rows: tuple[KvAnswerRow, ...]
    limited: tuple[LimitedRow, ...]
    long_contexts: tuple[LongContext, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values: contexts become text where they are keys."""
        answer = AnswerRecord.to_dict(self)
        for row in answer["rows"]:
            row["request_bytes"] = {str(context): size for context, size in row["request_bytes"].items()}
        return answer


def kv(
    models: Annotated[Sequence[str | ModelSpec], Flag("One or more models.")],
    *,
    gpus: Annotated[
        Sequence[str], Flag("Also the context that this GPU holds; may be repeated.", "--gpu")
    ] = (),
    kv_cache_dtype: Annotated[str, Flag("auto, fp8, int8, int4, ...")] = "auto",
    contexts: Contexts = CONTEXTS,
    batch_size: Annotated[int, Flag("Of the decode step in which attention overtakes.", least=1)] = 32,
    window_tokens: Annotated[
        int | None,
        Flag("Also attention limited to windows, sinks or chunks of so many.", "--window", least=1),
    ] = None,
    sink_tokens: Annotated[int, Flag("First tokens kept besides the window.", "--sinks", least=0)] = 4,
    tensor_parallel_size: TensorParallel = 1,
    quantization: Annotated[str | None, Flag("Weight format.", "--quantization -q")] = None,
    engine: Annotated[str, Flag("Engine, with an optional version.")] = "vllm",
) -> KvAnswer:
    """KV by model and context, kinds of attention and ways to forget side by side, and what each GPU holds.

    `batch_size` is of the decode crossover; `window_tokens` asks for windows, sinks and chunks of that size.
    Raises InvalidInput or UnknownName.
    """
    if not models:
        raise InvalidInput("no model: name one or more (`capacity models` lists them)")
    options = {
        "kv_cache_dtype": kv_cache_dtype,
        "tensor_parallel_size": tensor_parallel_size,
        "quantization": quantization,
        "engine": engine,
    }
    specs = [load_model(model) if isinstance(model, str) else model for model in models]
    table = kv_table(specs, gpus=gpus, contexts=contexts, **options)  # type: ignore[arg-type]
    limited = () if window_tokens is None else tuple(
        LimitedRow(
            model=spec.name,
            context_tokens=context,
            ways=limited_attention(
                spec, context, window_tokens=window_tokens, sink_tokens=sink_tokens, kv_cache_dtype=kv_cache_dtype
            ),
        )
        for spec in specs
        for context in contexts
    )  # fmt: skip
    return KvAnswer(
        contexts=tuple(contexts),
        gpus=tuple(gpus),
        window_tokens=window_tokens,
        sink_tokens=sink_tokens,
        rows=tuple(
            KvAnswerRow(
                **{name: getattr(row, name) for name in KvRow.__dataclass_fields__},
                kinds=compare_attention_kinds(spec, kv_cache_dtype),
                prefill_crossover_tokens=_crossover(spec),
            )
            for row, spec in zip(table, specs, strict=True)
        ),
        limited=limited,
        long_contexts=tuple(
            long_context(
                resolve(spec, build(Pool, {"gpu": gpu, **options})),
                batch_size=batch_size,
                prefix_tokens=min(contexts),
                contexts=contexts,
            )
            for spec in specs
            for gpu in gpus
        ),
    )


def _crossover(model: ModelSpec) -> float | None:
    try:
        return prefill_crossover_tokens(model)
    except OutsideValidity:
        return None
