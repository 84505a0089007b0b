"""The techniques' questions as functions: each answer a frozen record whose `to_dict()` is the command line's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from capacity.answers.records import GpuSummary
from capacity.base.errors import InvalidInput, OutsideValidity, UnknownName
from capacity.base.keywords import documented, split
from capacity.deployment import Cost, Pool, Traffic, build
from capacity.hardware.pricing import Price, find_price
from capacity.model import ModelSpec, load_model
from capacity.pool.drafting import (
    DraftMemory,
    Speculation,
    TextbookEntry,
    expected_tokens,
    find_speculator,
    speculators,
    textbook_speedup,
    textbook_table,
)
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.techniques.attention_io import AttentionIo, attention_io, shared_memory_bytes
from capacity.techniques.batching import (
    BatchingOption,
    SpreadGain,
    batching_comparison,
    contiguous_kv_waste,
    paged_kv_waste,
)
from capacity.techniques.engine_table import Claim, EngineRow, breakdown_claims, engine_rows, ladder_claims
from capacity.techniques.kv import (
    CONTEXTS,
    ContextParallelPrefill,
    KindComparison,
    KvRow,
    LimitedAttention,
    LongContext,
    compare_attention_kinds,
    context_parallel_prefill,
    kv_table,
    limited_attention,
    long_context,
    prefill_crossover_tokens,
)
from capacity.techniques.prefix_cache import (
    ROUTINGS,
    PrefillSavings,
    RoutedReuse,
    prefill_savings,
    reuse_curve,
    routed_reuse,
)
from capacity.techniques.prompt_prices import (
    PromptCacheBill,
    find_plan,
    prompt_cache_bill,
    prompt_cache_plans,
)
from capacity.techniques.quantize import QuantizedOption, quantization_options
from capacity.techniques.scaling import AXES, Layout, cheapest, scaling_curve
from capacity.techniques.speculate import simulate_speculation
from capacity.workload import Workload, random_requests, read_trace

BATCHES = (1, 4, 16, 64, 256)
LONGEST_DRAFT = 8
CAPACITIES = tuple(2**power for power in range(16, 27, 2))
SIMULATED_OUTPUT = 256  # tokens of each request in a simulation beside the formula
MOST_SIMULATED = 256  # requests of it


class _Answer:
    """Adds `to_dict()`; `SCHEMA` names the version of the record's shape, and so the verb."""

    __slots__ = ()
    SCHEMA: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, `schema` first."""
        return {"schema": self.SCHEMA, **asdict(self)}  # type: ignore[call-overload]


def _facts(resolved: ResolvedPool) -> dict[str, Any]:
    return {
        "model": resolved.model.name,
        "gpu": GpuSummary(name=resolved.profile.name, count=resolved.pool.num_gpus),
        "engine": resolved.engine.label,
        "warnings": (*resolved.notes, *resolved.step_model.notes),
    }


def _of_one_rank(pool: Pool, verb: str) -> Pool:
    """Raises InvalidInput for data-parallel ranks, which these formulas do not add up."""
    if pool.data_parallel_size > 1:
        raise InvalidInput(
            f"`{verb}` is of one data-parallel rank: leave out --data-parallel-size (`scale --axis data` adds ranks up)"
        )
    return pool


def _price(resolved: ResolvedPool, cost: Cost) -> Price | None:
    return find_price(
        resolved.profile.name, tier=cost.price_tier, provider=cost.price_provider, override=cost.price
    )


# quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizing(_Answer):
    """Every quantization method on one pool. `price`: what it counts with, in words; None: no price, no cost."""

    SCHEMA: ClassVar[str] = "capacity/quantize/v1"

    model: str
    gpu: GpuSummary
    engine: str
    input_len: int
    output_len: int
    large_batch: int
    price: str | None
    rows: tuple[QuantizedOption, ...]
    warnings: tuple[str, ...]


@documented(Pool, Cost)
def quantize(
    model: str | ModelSpec,
    *,
    input_len: int = 1024,
    output_len: int = 256,
    large_batch: int = 64,
    methods: Sequence[str] | None = None,
    **options: Any,
) -> Quantizing:
    """Memory, batch, latency, cost and published quality of every method (or those named). Raises InvalidInput."""
    pool, cost = split(options, Pool, Cost)
    resolved = resolve(model, _of_one_rank(build(Pool, pool), "quantize"))
    price = _price(resolved, build(Cost, cost))
    rows = quantization_options(
        resolved,
        input_len=input_len,
        output_len=output_len,
        large_batch=large_batch,
        price=price,
        methods=methods,
    )
    return Quantizing(
        **_facts(resolved),
        input_len=input_len,
        output_len=output_len,
        large_batch=large_batch,
        price=None if price is None else price.described,
        rows=rows,
    )


# speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRow:
    """One batch: a round as asked, the best one, and the textbook's. Times in seconds.

    `textbook_speedup` takes the mean acceptance by depth and the drafts' true cost, and verification as free.
    `simulated_speedup` is of output tokens per second in a closed loop of that batch, through the scheduler; None
    where it was not asked for.
    """

    batch_size: int
    draft_tokens: int
    verified_tokens: int
    tokens_per_round: float
    draft_s: float
    verify_s: float
    plain_step_s: float
    tpot_s: float
    speedup: float
    verify_cost: float
    output_tokens_per_s: float
    textbook_tokens: float
    textbook_speedup: float
    best_draft_tokens: int
    best_verified_tokens: int
    best_speedup: float
    simulated_speedup: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceSource:
    """Where an acceptance comes from."""

    text: str
    date: str
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Prefill of one prompt without and with the draft's own, seconds, queueing left out."""

    plain: float
    with_draft: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculating(_Answer):
    """Rounds by batch. `acceptance`: of each depth, given the one before; `break_even_batch` None: it always pays."""

    SCHEMA: ClassVar[str] = "capacity/speculate/v1"

    model: str
    gpu: GpuSummary
    engine: str
    method: str
    draft: str | None
    draft_tokens: int
    verified_tokens: int
    acceptance: tuple[float, ...]
    acceptance_source: AcceptanceSource
    context_tokens: int
    break_even_batch: int | None
    memory: DraftMemory
    ttft_s: FirstTokens
    rows: tuple[SpeculationRow, ...]
    warnings: tuple[str, ...]


@documented(Pool)
def speculate(
    model: str | ModelSpec,
    *,
    method: str | None = None,
    draft: str | None = None,
    draft_tokens: int | None = None,
    tree: bool = True,
    context_tokens: int = 1024,
    batches: Sequence[int] = BATCHES,
    simulate: bool = False,
    **options: Any,
) -> Speculating:
    """Rounds by batch at the asked and the best draft length, the break-even batch, memory and TTFT.

    `method` None: the pool's `speculator`, else eagle3. `draft` is the model of `draft-model`. `simulate` serves a
    closed loop of each batch twice beside the formula. Raises DoesNotFit or InvalidInput.
    """
    pool = _of_one_rank(build(Pool, split(options, Pool)[0]), "speculate")
    depth = pool.num_speculative_tokens if draft_tokens is None else draft_tokens
    if depth is not None and not 1 <= depth <= 64:
        raise InvalidInput(f"--draft-tokens {depth}: must be from 1 to 64")
    speculator = find_speculator(method or pool.speculator or "eagle3")
    if not tree:
        speculator = speculator.as_chain()
    if pool.acceptance is not None:
        speculator = speculator.accepting(pool.acceptance)
    resolved = resolve(model, pool)
    resolved.memory.require_fit()
    drafting = None
    if draft is not None:
        small = {"tensor_parallel_size": 1, "max_model_len": None, "quantization": None}
        drafting = resolve(draft, pool.model_copy(update=small))
    speculation = Speculation(resolved, speculator, draft=drafting)
    k = speculator.draft_tokens if depth is None else depth
    plain_ttft_s, drafted_ttft_s = speculation.ttft_s(context_tokens)
    return Speculating(
        **_facts(resolved),
        method=speculator.name,
        draft=draft,
        draft_tokens=k,
        verified_tokens=speculator.verified_tokens(k),
        acceptance=speculator.rates(k),
        acceptance_source=AcceptanceSource(
            text=speculator.source, date=speculator.date, basis=speculator.basis
        ),
        context_tokens=context_tokens,
        break_even_batch=speculation.break_even_batch(context_tokens, k),
        memory=speculation.memory(),
        ttft_s=FirstTokens(plain=plain_ttft_s, with_draft=drafted_ttft_s),
        rows=tuple(_speculation_row(speculation, batch, context_tokens, k, simulate) for batch in batches),
    )


def _speculation_row(
    speculation: Speculation, batch: int, context: int, k: int, simulate: bool
) -> SpeculationRow:
    asked = speculation.round(batch, context, k)
    best = speculation.best(batch, context, longest=max(k, LONGEST_DRAFT))
    rates = speculation.speculator.rates(k)
    uniform = sum(rates) / len(rates) if rates else 0.0
    cost = asked.draft_s / max(k, 1) / asked.plain_step_s
    return SpeculationRow(
        **asdict(asked),
        tpot_s=asked.tpot_s,
        speedup=asked.speedup,
        verify_cost=asked.verify_cost,
        output_tokens_per_s=asked.output_tokens_per_s,
        textbook_tokens=expected_tokens(uniform, k),
        textbook_speedup=textbook_speedup(uniform, k, cost),
        best_draft_tokens=best.draft_tokens,
        best_verified_tokens=best.verified_tokens,
        best_speedup=best.speedup,
        simulated_speedup=_simulated(speculation, batch, context, k) if simulate else None,
    )


def _simulated(speculation: Speculation, batch: int, context: int, k: int) -> float:
    """A closed loop of `batch` requests that reach `context` on average, through the scheduler."""
    prompt = max(1, context - SIMULATED_OUTPUT // 2)
    workload = random_requests(
        num_requests=max(batch, min(4 * batch, MOST_SIMULATED)),
        input_len=prompt,
        output_len=SIMULATED_OUTPUT,
        request_rate_per_s=float("inf"),
        concurrency=batch,
        seed=0,
    )
    return simulate_speculation(speculation, workload, draft_tokens=k).throughput_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorRow:
    """A way to draft that comes with the package, and the acceptance that was published for it."""

    method: str
    kind: str
    draft_tokens: int
    tree_tokens: int | None
    tokens_per_round: float
    acceptance_model: str
    source: str
    date: str
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculators(_Answer):
    """All ways to draft."""

    SCHEMA: ClassVar[str] = "capacity/speculators/v1"

    rows: tuple[SpeculatorRow, ...]


def speculation_methods() -> Speculators:
    """The presets, each with its published acceptance and source."""
    return Speculators(
        rows=tuple(
            SpeculatorRow(
                method=name,
                kind=way.kind,
                draft_tokens=way.draft_tokens,
                tree_tokens=way.tree_tokens,
                tokens_per_round=way.tokens_per_round(way.draft_tokens),
                acceptance_model=way.acceptance_model,
                source=way.source,
                date=way.date,
                basis=way.basis,
            )
            for name, way in speculators().items()
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Textbook(_Answer):
    """A published table beside the formulas."""

    SCHEMA: ClassVar[str] = "capacity/textbook/v1"

    rows: tuple[TextbookEntry, ...]


def textbook() -> Textbook:
    """The published textbook table beside the formulas."""
    return Textbook(rows=textbook_table())


# KV and long context


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
class KvAnswer(_Answer):
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
        answer = _Answer.to_dict(self)
        for row in answer["rows"]:
            row["request_bytes"] = {str(context): size for context, size in row["request_bytes"].items()}
        return answer


def kv(
    models: Sequence[str | ModelSpec],
    *,
    gpus: Sequence[str] = (),
    contexts: Sequence[int] = CONTEXTS,
    batch_size: int = 32,
    window_tokens: int | None = None,
    sink_tokens: int = 4,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    quantization: str | None = None,
    engine: str = "vllm",
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


# prefix caching


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCurveRow:
    """Hit rates at one size of cache; `capacity_tokens` None: without a limit."""

    capacity_tokens: int | None
    block_hit_fraction: float
    token_hit_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCurve(_Answer):
    """Hit rates by capacity and by routing, what a pool saves, and the bill under each provider's plan."""

    SCHEMA: ClassVar[str] = "capacity/cache-curve/v1"

    workload: str
    requests: int
    prompt_tokens: int
    block_tokens: int
    knee_tokens: int
    rows: tuple[CacheCurveRow, ...]
    routing: tuple[RoutedReuse, ...]
    savings: PrefillSavings | None
    plans: tuple[PromptCacheBill, ...]
    warnings: tuple[str, ...]


def cache_curve(
    trace: str,
    *,
    block_tokens: int | None = None,
    capacities_tokens: Sequence[int] = CAPACITIES,
    as_engine: bool = False,
    replicas: int = 1,
    limit: int | None = None,
    served_by: tuple[str, Pool] | None = None,
    price: str | None = None,
    plans: Sequence[str] | None = None,
) -> CacheCurve:
    """Hit rates of a trace at every cache size, over replicas, and what they save on a model and pool (`served_by`).

    `price` is $ per GPU-hour of that pool; `plans` are providers' (None: all). Raises InvalidInput or UnknownName.
    """
    workload = read_trace(trace, limit=limit)
    size = block_tokens or _block_tokens(workload)
    curve = reuse_curve(workload, size, as_engine=as_engine)
    sizes: list[int | None] = [*capacities_tokens, None]
    return CacheCurve(
        workload=workload.name,
        requests=len(workload),
        prompt_tokens=int(workload.prompt_tokens.sum()),
        block_tokens=size,
        knee_tokens=curve.knee_blocks * size,
        rows=tuple(
            CacheCurveRow(
                capacity_tokens=capacity,
                block_hit_fraction=curve.block_hit_fraction(None if capacity is None else capacity // size),
                token_hit_fraction=curve.token_hit_fraction(None if capacity is None else capacity // size),
            )
            for capacity in sizes
        ),
        routing=tuple(
            routed_reuse(
                workload,
                size,
                replicas=replicas,
                routing=routing,
                capacity_blocks=capacities_tokens[-1] // size,
                as_engine=as_engine,
            )
            for routing in (ROUTINGS if replicas > 1 else ())
        ),
        savings=None
        if served_by is None
        else prefill_savings(
            resolve(*served_by), curve, usd_per_gpu_hour=_usd_per_gpu_hour(served_by[1].gpu, price)
        ),
        plans=tuple(
            prompt_cache_bill(curve, find_plan(name))
            for name in (prompt_cache_plans() if plans is None else plans)
        ),
        warnings=workload.notices,
    )


def _usd_per_gpu_hour(gpu: str, price: str | None) -> float | None:
    found = None if price is None else find_price(gpu, override=price)
    return None if found is None else found.usd_per_gpu_hour


def _block_tokens(workload: Workload) -> int:
    """The block size that the trace was hashed with, where its segments are equal; else vLLM's 16."""
    content = workload.content
    if content is None:
        return 16
    largest = int(content.segment_tokens.max())
    return largest if (largest & (largest - 1)) == 0 and largest <= 4096 else 16


# engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines(_Answer):
    """Engines side by side; `claims`: published speed figures held against physics, where asked for."""

    SCHEMA: ClassVar[str] = "capacity/engines/v1"

    gpu: str
    rows: tuple[EngineRow, ...]
    claims: tuple[Claim, ...]


def engine_table(gpu: str = "h100", *, claims: bool = False) -> Engines:
    """What each engine does by default on `gpu`, and which formats it loads. Raises UnknownName."""
    published = (*ladder_claims(), *breakdown_claims()) if claims else ()
    return Engines(gpu=gpu, rows=engine_rows(gpu), claims=published)


# parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(_Answer):
    """Layouts along one axis, the cheapest that meets a TPOT, and one prompt's prefill over context-parallel ranks."""

    SCHEMA: ClassVar[str] = "capacity/scale/v1"

    model: str
    gpu: GpuSummary
    engine: str
    axis: str
    input_len: int
    output_len: int
    concurrency: int
    tpot_limit_s: float | None
    cheapest_num_gpus: int | None
    rows: tuple[Layout, ...]
    context_parallel: tuple[ContextParallelPrefill, ...]
    warnings: tuple[str, ...]


@documented(Pool, Cost)
def scale(
    model: str | ModelSpec,
    *,
    input_len: int = 1024,
    output_len: int = 256,
    concurrency: int = 32,
    axis: str = "tensor",
    most_gpus: int = 8,
    tpot_s: float | None = None,
    **options: Any,
) -> Scaling:
    """What more GPUs buy along one axis (tensor, pipeline, expert, data). Raises InvalidInput or UnknownName."""
    pool_fields, cost = split(options, Pool, Cost)
    pool: Pool = build(Pool, pool_fields)
    if pool.data_parallel_size > 1:
        raise InvalidInput(
            f"--data-parallel-size {pool.data_parallel_size}: leave it out; --axis data tries 1, 2, 4, ... ranks"
        )
    chosen = next((known for known in AXES if known == axis), None)
    if chosen is None:
        raise UnknownName("axis of parallelism", axis, AXES)
    resolved = resolve(model, pool)
    curve = scaling_curve(
        model,
        pool,
        input_len=input_len,
        output_len=output_len,
        concurrency=concurrency,
        axis=chosen,
        most_gpus=most_gpus,
        price=_price(resolved, build(Cost, cost)),
    )
    best = None if tpot_s is None else cheapest(curve, tpot_s=tpot_s)
    ranks = [count for count in (1, 2, 4, 8) if count <= most_gpus]
    return Scaling(
        **_facts(resolved),
        axis=axis,
        input_len=input_len,
        output_len=output_len,
        concurrency=concurrency,
        tpot_limit_s=tpot_s,
        cheapest_num_gpus=None if best is None else best.num_gpus,
        rows=curve,
        context_parallel=_context_parallel(resolved, input_len, ranks),
    )


def _context_parallel(
    resolved: ResolvedPool, tokens: int, ranks: Sequence[int]
) -> tuple[ContextParallelPrefill, ...]:
    """Prefill over ranks; none where the prompt has fewer tokens than ranks, or pipeline stages divide it already."""
    if tokens < max(ranks) or resolved.pool.pipeline_parallel_size > 1:
        return ()
    return context_parallel_prefill(resolved, tokens, ranks)


# attention's traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTrafficTable(_Answer):
    """Naive against tiled prefill attention at each context."""

    SCHEMA: ClassVar[str] = "capacity/attention-io/v1"

    model: str
    gpu: GpuSummary
    engine: str
    on_chip_bytes: int
    rows: tuple[AttentionIo, ...]
    warnings: tuple[str, ...]


@documented(Pool)
def attention_traffic(
    model: str | ModelSpec, *, contexts: Sequence[int] = (1024, 4096, 16384, 65536), **options: Any
) -> AttentionTrafficTable:
    """HBM traffic and memory of naive and tiled attention, and the measured kernel. Raises InvalidInput."""
    resolved = resolve(model, _of_one_rank(build(Pool, split(options, Pool)[0]), "attention-io"))
    return AttentionTrafficTable(
        **_facts(resolved),
        on_chip_bytes=shared_memory_bytes(resolved.profile),
        rows=tuple(attention_io(resolved, tokens) for tokens in contexts),
    )


# batching


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching(_Answer):
    """The same arrivals under every way of batching, beside what the lengths alone say.

    `contiguous_kv_waste_fraction` and `paged_kv_waste_fraction` are of requests at their final length.
    """

    SCHEMA: ClassVar[str] = "capacity/batching/v1"

    model: str
    gpu: GpuSummary
    engine: str
    workload: str
    requests: int
    max_model_len: int
    batch_size: int
    slot_waste_fraction: float
    padding_waste_fraction: float
    contiguous_kv_waste_fraction: float
    paged_kv_waste_fraction: float
    gain_bound: float
    rows: tuple[BatchingOption, ...]
    spread: tuple[SpreadGain, ...]
    warnings: tuple[str, ...]


@documented(Pool, Traffic)
def compare_batching(
    model: str | ModelSpec,
    *,
    workload: Workload | None = None,
    max_batch: int | None = None,
    batching_window_s: float = 0.1,
    spread: bool = True,
    **options: Any,
) -> Batching:
    """Static, windowed, continuous, chunked and disaggregated batching of the same arrivals, and what each wastes.

    `max_batch` limits all of them (None: the engine's). Waste is measured step by step: for thousands of requests.
    Raises DoesNotFit or InvalidInput.
    """
    from capacity.answers.engine_setup import make_workload

    if not 0 <= batching_window_s < float("inf"):
        raise InvalidInput(f"--batching-window {batching_window_s}: must be at least 0 s")
    pool, traffic = split(options, Pool, Traffic)
    resolved = resolve(model, build(Pool, pool))
    resolved.memory.require_fit()
    requests = workload if workload is not None else make_workload(build(Traffic, traffic))
    compared = batching_comparison(
        resolved, requests, batch_size=max_batch, batching_window_s=batching_window_s, spread=spread
    )
    facts, final = _facts(resolved), requests.prompt_tokens + requests.output_tokens
    return Batching(
        **facts | {"warnings": (*facts["warnings"], *requests.notices, *compared.notes)},
        workload=requests.name,
        requests=len(requests),
        max_model_len=resolved.max_model_len,
        batch_size=compared.batch_size,
        slot_waste_fraction=compared.slot_waste_fraction,
        padding_waste_fraction=compared.padding_waste_fraction,
        contiguous_kv_waste_fraction=contiguous_kv_waste(final, resolved.max_model_len),
        paged_kv_waste_fraction=paged_kv_waste(final, resolved.memory.kv_block_tokens),
        gain_bound=compared.gain_bound,
        rows=compared.options,
        spread=compared.spread,
    )
