"""Comparison of quantization methods for one model and GPU: memory, batch, latency, cost, and published quality."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

from capacity.answers.costs import cost_of
from capacity.answers.engine_setup import make_workload
from capacity.answers.full_load import full_load
from capacity.answers.intervals import batch_ends
from capacity.answers.phases import RequestLengths
from capacity.base.checked import validate_arguments
from capacity.base.errors import CapacityError, InvalidInput
from capacity.base.flags import with_flags
from capacity.base.keywords import document_options, split
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic, build, make_deployment
from capacity.deployment.use_cases import filled_notes
from capacity.hardware.pricing import Price, find_price_for_cost, price_cautions
from capacity.hardware.weight_kernels import weight_kernels
from capacity.model import ModelSpec, load_model
from capacity.model.quantization import (
    bits_per_weight,
    find_kv_cache_format,
    quantization_spellings,
    scheme_for,
    weight_bytes,
)
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import decode_shape, prefill_shape
from capacity.step.closed_form import batch_times, first_failing
from capacity.techniques.one_pool import (
    InputLen,
    OutputLen,
    PoolAnswer,
    pool_notes,
    require_one_rank,
    shared_fields,
)
from capacity.techniques.quantization_methods import QuantizationMethod, find_method, quantization_methods
from capacity.workload import Workload

PLAIN = "bf16"
SMALL_BATCH = 1
LARGE_BATCH = 64
LARGEST_BATCH = 1 << 14
ROOF_ROWS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedOption:
    """Results of one quantization method. Times are in seconds. If the model does not fit or run, they are None and
    `reason` explains why.

    `tpot_small_s` is for a batch of 1, `tpot_large_s` for `large_batch`. `max_batch` requests of input + output tokens
    run at once: max_num_seqs, or the capacity of the KV cache. `output_tokens_per_s` and the cost are at full load,
    computed as by `capacity cost`, for lengths that vary around these means. `intervals_s`: the 90 % intervals of the
    times, by field name.
    """

    method: str
    title: str
    kind: str
    bits_per_weight: float | None  # 8 x bytes / parameters of what is quantized; None for KV methods
    weights_bytes: float  # of the whole model
    compute: str
    native: bool  # the GPU multiplies in this format; otherwise it dequantizes to 16 bit
    kernel: str  # family of GEMM that runs here
    kernel_roof_fraction: float  # of the dense FLOP/s in `compute`, by the largest matrix at ROOF_ROWS rows
    min_compute_capability: float  # NVIDIA's, for the native product; 0: any
    max_batch: int
    ttft_s: float | None = None
    tpot_small_s: float | None = None
    tpot_large_s: float | None = None
    large_batch: int
    output_tokens_per_s: float | None = None
    usd_per_million_output_tokens: float | None = None
    usd_per_million_tokens: float | None = None  # input and output together
    calibration: str
    gpu_hours_to_quantize: float | None  # of this model, as published for others and scaled by parameters
    quality: tuple[str, ...]
    note: str
    engine_loads: bool  # the pool's engine has this format; otherwise the row is what it would do
    pays_below_batch: int | None = (
        None  # decode steps are no faster than 16-bit ones from here on; None: always are
    )
    reason: str | None = None
    intervals_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def quantization_options(
    resolved: ResolvedPool,
    *,
    input_len: int,
    output_len: int,
    large_batch: int = LARGE_BATCH,
    price: Price | None = None,
    methods: Sequence[str] | None = None,
) -> tuple[QuantizedOption, ...]:
    """Return the results of all methods (or those in `methods`) on the pool. Raises InvalidInput or UnknownName."""
    if input_len < 1 or output_len < 2 or large_batch < 1:
        raise InvalidInput(
            f"input_len {input_len}, output_len {output_len}, large_batch {large_batch}: must be at least 1, 2 and 1"
        )
    if input_len + output_len > resolved.max_model_len:
        raise InvalidInput(
            f"a request of {input_len + output_len} tokens exceeds max_model_len {resolved.max_model_len}: raise "
            "the limit"
        )
    _ = resolved.memory  # raises for impossible parallelism with any format
    traffic = varying_traffic(input_len, output_len)
    requests = make_workload(traffic, resolved.max_model_len)
    load = _Load(
        input_len=input_len, output_len=output_len, large_batch=large_batch, price=price, requests=requests
    )
    chosen = quantization_methods().values() if methods is None else map(find_method, methods)
    plain = cache(lambda: find_method(PLAIN).apply(resolved))
    return tuple(_option(resolved, method, load, plain) for method in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Traffic and price for the comparison; `large_batch`: batch of `tpot_large_s`. `requests` have varying lengths."""

    input_len: int
    output_len: int
    large_batch: int
    price: Price | None
    requests: Workload


@cache
def varying_traffic(input_len: int, output_len: int) -> Traffic:
    """Return traffic with these mean lengths, and otherwise the defaults that `capacity cost` also uses."""
    return build(Traffic, {"input_len": input_len, "output_len": output_len, "request_rate": 1.0})


def _option(
    resolved: ResolvedPool, method: QuantizationMethod, load: _Load, plain: Callable[[], ResolvedPool]
) -> QuantizedOption:
    """Return the results of one quantization method. `plain()` returns the pool with 16-bit weights."""
    pool = method.apply(resolved)
    option = _option_without_times(pool, method, load)
    try:
        pool.memory.require_fit()
        tokens = load.input_len + load.output_len
        held = pool.largest_batch(tokens)
        if held < 1:
            raise InvalidInput(f"no request of {tokens} tokens fits the KV cache")
        option = replace(option, max_batch=held)
        timed = _add_times(pool, option, load)
        if option.kind not in ("weight-only", "weights and activations"):
            return timed
        batch = break_even_batch(plain(), pool, load.input_len)
        return replace(timed, pays_below_batch=batch if batch is not None and batch <= held else None)
    except CapacityError as error:
        return replace(option, reason=str(error))


def _option_without_times(pool: ResolvedPool, method: QuantizationMethod, load: _Load) -> QuantizedOption:
    """Return the size, kernel and quality of a quantization method, with all times None."""
    stored = pool.scheme.format_of("experts" if pool.model.is_moe else "dense_ffn")
    execution = pool.step_setting.execution(stored)
    remarks = pool.step_setting.remarks
    kv_format = find_kv_cache_format(pool.kv_cache_dtype, model_dtype=pool.model.dtype)
    rate = method.gpu_hours_per_billion
    return make_from(
        QuantizedOption,
        method,
        method=method.name,
        bits_per_weight=None if method.kind == "kv-cache" else bits_per_weight(pool.model, pool.scheme),
        weights_bytes=weight_bytes(pool.model, pool.scheme),
        compute=execution.compute_dtype,
        native=execution.note is None,
        kernel=execution.kernel,
        kernel_roof_fraction=_roof_fraction(pool, execution.compute_dtype),
        min_compute_capability=stored.min_compute_capability,
        max_batch=0,
        large_batch=load.large_batch,
        gpu_hours_to_quantize=None if rate is None else rate * pool.model.total_params / 1e9,
        quality=tuple(quality.text for quality in method.quality),
        note="; ".join(text for text in (method.note, *remarks) if text),
        engine_loads=pool.engine.loads_formats(pool.scheme.families)
        and pool.engine.supports_kv_format(kv_format.name),
    )


def _roof_fraction(pool: ResolvedPool, compute_dtype: str) -> float:
    """Return the fraction of peak FLOP/s of `compute_dtype` that the largest GEMM of a large step reaches."""
    rows = prefill_shape(1, ROOF_ROWS, window_tokens=pool.model.window_tokens)
    operators = pool.step_model.step_cost(rows).operators
    products = (op for op in operators if not op.name.startswith("attention prefill"))
    largest = max(products, key=lambda op: op.flops)
    roofs = pool.profile.dense_flops_per_s
    return largest.flops / largest.seconds / roofs.get(compute_dtype, roofs[pool.profile.compute_type_16_bit])


def _add_times(pool: ResolvedPool, option: QuantizedOption, load: _Load) -> QuantizedOption:
    """Return the method's results with times for batches of 1 and `large_batch`, throughput at full load, and cost."""
    steps, limits, most = pool.step_model, pool.limits_from(), option.max_batch
    lengths = {"input_len": load.input_len, "output_len": load.output_len}
    alone = batch_times(steps, limits, SMALL_BATCH, **lengths)
    together = batch_times(steps, limits, load.large_batch, **lengths) if load.large_batch <= most else None
    full, _ = full_load(pool, load.requests)
    cost = cost_of(load.price, [(pool, 1)], full)
    said = RequestLengths(**lengths)
    of_one = batch_ends(pool, alone, said, SMALL_BATCH)
    of_many = {} if together is None else batch_ends(pool, together, said, load.large_batch)
    named = {
        "ttft_s": of_one.get("ttft_s"),
        "tpot_small_s": of_one.get("tpot_s"),
        "tpot_large_s": of_many.get("tpot_s"),
    }
    return replace(
        option,
        intervals_s={name: ends for name, ends in named.items() if ends is not None},
        ttft_s=alone.ttft_s,
        tpot_small_s=alone.tpot_s,
        tpot_large_s=None if together is None else together.tpot_s,
        output_tokens_per_s=full.requests_per_s * full.output_tokens,
        usd_per_million_output_tokens=None if cost is None else cost.usd_per_million_output_tokens,
        usd_per_million_tokens=None if cost is None else cost.usd_per_million_tokens,
    )


def break_even_batch(plain: ResolvedPool, quantized: ResolvedPool, context_tokens: int) -> int | None:
    """Return the smallest batch at which a decode step is no faster than at 16 bit; None: it is always faster.

    In smaller batches fewer bytes save time; in larger ones matrix multiplications are compute bound and
    dequantization costs time. Raises InvalidInput for a context below 1.
    """
    if context_tokens < 1:
        raise InvalidInput(f"a context of {context_tokens} tokens: must be at least 1")
    before, after = plain.step_model, quantized.step_model

    def pays(batch: int) -> bool:
        shape = decode_shape(batch, context_tokens, window_tokens=plain.model.window_tokens)
        return after.step_seconds(shape) < before.step_seconds(shape)

    return first_failing(pays, LARGEST_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizing(PoolAnswer):
    """Results of every quantization method. `price`: description of the price; if None, costs are None."""

    SCHEMA: ClassVar[str] = "capacity/quantize/v1"

    input_len: int
    output_len: int
    large_batch: int
    price: str | None
    rows: tuple[QuantizedOption, ...]
    warnings: tuple[str, ...]


@document_options(Pool, Cost)
@validate_arguments
@with_flags
def quantize(
    model: str | ModelSpec | DeploymentFile,
    *,
    input_len: InputLen = 1024,
    output_len: OutputLen = 256,
    large_batch: int = 64,
    methods: Sequence[str] | None = None,
    **options: Any,
) -> Quantizing:
    """Return memory, batch, latency, cost and published quality for each method (None: all). Raises InvalidInput."""
    pool, cost = split(options, Pool, Cost)
    deployment = make_deployment(model, pool=pool, cost=cost, question="quantize")
    resolved = resolve(deployment.model, require_one_rank(deployment.pool, "quantize"))
    price = find_price_for_cost(resolved.profile.name, deployment.cost)
    rows = quantization_options(
        resolved,
        input_len=input_len,
        output_len=output_len,
        large_batch=large_batch,
        price=price,
        methods=methods,
    )
    return Quantizing(
        **shared_fields(resolved),
        input_len=input_len,
        output_len=output_len,
        large_batch=large_batch,
        price=None if price is None else price.description,
        rows=rows,
        warnings=(
            *pool_notes(resolved),
            *filled_notes(varying_traffic(input_len, output_len)),
            *price_cautions(price),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationRow:
    """A value of `--quantization`: its other spellings, the weight format, and the kernel that multiplies it.

    `kernel` is vLLM's kernel on GPUs with this number format. `remark`: what is not measured, or "".
    """

    name: str
    also: tuple[str, ...]
    bits_per_weight: float
    family: str
    kernel: str
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizations(AnswerRecord):
    """All values of `--quantization`."""

    SCHEMA: ClassVar[str] = "capacity/quantizations/v1"

    rows: tuple[QuantizationRow, ...]


def quantization_list() -> Quantizations:
    """Return the values that `--quantization` accepts. Bits per weight are those of Llama-3.1-8B."""
    model = load_model("llama-3.1-8b")
    rows = []
    for name, others in quantization_spellings().items():
        scheme = scheme_for(model, name)
        stored = scheme.format_of("experts")
        untabled = weight_kernels().get(stored.kernel)
        rows.append(
            QuantizationRow(
                name=name,
                also=others,
                bits_per_weight=bits_per_weight(model, scheme),
                family=stored.family,
                kernel=stored.kernel,
                remark=untabled.remark if untabled else "",
            )
        )
    return Quantizations(rows=tuple(rows))
