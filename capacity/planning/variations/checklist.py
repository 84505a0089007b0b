"""The optimisation checklist: changes that may help one deployment."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from capacity.base.errors import CapacityError
from capacity.base.money import usd_text
from capacity.deployment.drafts import supports_drafting
from capacity.hardware.pricing import Price, find_price, price_cautions, price_table
from capacity.model import Attention, ModelSpec
from capacity.planning.variations.changes import NO_DRAFTS, Change, best_drafts, mean_context, needed_context
from capacity.planning.variations.outcome import Latencies
from capacity.planning.variations.smaller_models import smaller_changes
from capacity.pool.drafting import find_speculator
from capacity.pool.kv_eviction import find_eviction
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.workload import Workload

GROUPED_KV_HEADS = 8  # assumed in a what-if; common in grouped-query models
HOST_GIB = 64.0  # assumed in a what-if: host memory for KV evicted from the GPU
KEPT_TOKENS = 1024  # assumed in a what-if: budget for which most eviction papers publish results
SIXTEEN_BIT = {"bf16": "bfloat16", "fp16": "half"}  # values of --dtype
OTHER_GPUS = 3  # cheaper GPUs to try
LOSSLESS = "unchanged, because drafts are verified"


def changes(
    resolved: ResolvedPool, workload: Workload, latencies: Latencies, price: Price | None
) -> Iterator[Change]:
    """Yield the changes that may help this deployment; those that cannot be tried have a `refused` reason."""
    yield from _formats(resolved)
    yield from _grouped_heads(resolved.model, needed_context(resolved, workload))
    yield from _eviction(resolved, workload)
    yield from _engine(resolved)
    yield from _usual_kernels(resolved)
    yield from smaller_changes(resolved)
    in_flight = _most_in_flight(workload, latencies)
    yield from _drafts(resolved, min(in_flight, resolved.max_num_seqs), round(mean_context(workload)))
    yield from _memory(resolved, workload)
    yield from _batches(resolved, in_flight)
    yield from _sizes(resolved, price)


def _formats(resolved: ResolvedPool) -> Iterator[Change]:
    if not resolved.scheme.quantized:
        for name in ("fp8", "int4"):
            yield Change(f"quantize the weights to {name}", {"quantization": name})
    if not resolved.kv_cache_dtype.startswith("fp8"):
        yield Change("keep the KV cache in fp8", {"kv_cache_dtype": "fp8"})


def _grouped_heads(model: ModelSpec, context: int) -> Iterator[Change]:
    """Yield the change to grouped KV heads (GQA); refused unless each query head has a separate KV head (MHA)."""
    text = f"a model of the same shape with {GROUPED_KV_HEADS} KV heads (GQA)"
    mixers = [group.mixer for group in model.layer_groups if isinstance(group.mixer, Attention)]
    if not mixers or any(mixer.kind != "mha" for mixer in mixers):
        yield Change(text, refused=f"{model.name} uses {model.attention_kind} attention already")
        return
    groups = []
    for group in model.layer_groups:
        mixer = group.mixer
        if isinstance(mixer, Attention):
            mixer = replace(mixer, num_kv_heads=min(GROUPED_KV_HEADS, mixer.num_heads))
        groups.append(replace(group, mixer=mixer))
    yield Change(
        text,
        model=replace(model, layer_groups=tuple(groups)),
        pool={"max_model_len": context},
        note="another checkpoint",
        quality="unknown: another model",
    )


def _eviction(resolved: ResolvedPool, workload: Workload) -> Iterator[Change]:
    """Yield KV eviction (SnapKV), which keeps the KV entries of a prompt that its last tokens attend to most."""
    if resolved.pool.kv_eviction is not None:
        yield Change("keep the whole KV cache", {"kv_eviction": None, "kv_budget": None})
        return
    text = f"keep {KEPT_TOKENS:,} tokens of each request's KV (SnapKV)"
    if mean_context(workload) <= KEPT_TOKENS:
        yield Change(text, refused=f"requests have only {mean_context(workload):,.0f} tokens on average")
        return
    asked = ("enable_prefix_caching", "enable_chunked_prefill")
    yield Change(
        text,
        {
            "kv_eviction": "snapkv",
            "kv_budget": KEPT_TOKENS,
            "max_model_len": needed_context(resolved, workload),
            **{name: None for name in asked if getattr(resolved.pool, name)},
        },
        note="without prefix caching and chunked prefill",
        quality=f"unknown for your requests; published: {find_eviction('snapkv').published[0].what}",
    )


def _engine(resolved: ResolvedPool) -> Iterator[Change]:
    pool = resolved.pool
    if pool.enforce_eager:
        yield Change("use CUDA graphs", {"enforce_eager": False})
    if not resolved.prefix_caching:
        yield Change("use the prefix cache", {"enable_prefix_caching": True})
    chunked = resolved.chunked_prefill
    yield Change(
        "turn off chunked prefill" if chunked else "use chunked prefill",
        pool={"enable_chunked_prefill": not chunked},
    )
    if pool.tensor_parallel_size > 1:
        half = pool.tensor_parallel_size // 2
        yield Change("halve the tensor-parallel size", {"tensor_parallel_size": half})
    yield Change("double tensor parallelism", {"tensor_parallel_size": pool.tensor_parallel_size * 2})


def _usual_kernels(resolved: ResolvedPool) -> Iterator[Change]:
    """Yield changes to 16-bit arithmetic, FlashAttention and a paged KV cache, each only if not used already."""
    sixteen = resolved.profile.compute_type_16_bit
    if resolved.model.dtype == "fp32":
        yield Change(f"use {sixteen.upper()} instead of FP32", {"dtype": SIXTEEN_BIT[sixteen]})
    if resolved.pool.attn_implementation == "eager":
        yield Change("use FlashAttention", {"attn_implementation": "auto"})
    if resolved.pool.kv_layout == "contiguous":
        yield Change("use a paged KV cache", {"kv_layout": "paged"})


def _drafts(resolved: ResolvedPool, in_flight: int, context: int) -> Iterator[Change]:
    """Yield a change for each draft method, with the best number of draft tokens for this batch and context length."""
    if resolved.pool.speculator is not None:
        yield Change("turn off speculative decoding", NO_DRAFTS)
        return
    ways = {"eagle3": "EAGLE-3", "ngram": "n-gram lookup"}
    if resolved.model.mtp is not None:
        ways["mtp"] = "the model's own MTP layer"
    if supports_drafting(resolved.engine.name, "lookahead"):
        ways["lookahead"] = "lookahead (Jacobi steps and n-grams)"
    for name, text in ways.items():
        what = f"speculative decoding by {text}"
        note = (
            f"with the acceptance rate published for {find_speculator(name, resolved.model).acceptance_model}"
        )
        try:
            drafts = best_drafts(resolved, name, in_flight, context)
        except CapacityError as error:
            yield Change(what, refused=str(error))
        else:
            yield Change(what, drafts, note=note, quality=LOSSLESS)


def _memory(resolved: ResolvedPool, workload: Workload) -> Iterator[Change]:
    needed = needed_context(resolved, workload)
    text = "reduce max_model_len to what this traffic needs"
    if needed < resolved.max_model_len:
        yield Change(text, {"max_model_len": needed})
    else:
        yield Change(text, refused=f"max_model_len is already {resolved.max_model_len:,} tokens")
    if resolved.pool.preemption_mode == "recompute":
        yield Change("swap preempted requests to the host", {"preemption_mode": "swap"})
    if resolved.pool.kv_offloading_size is None:
        yield Change(f"keep evicted KV in {HOST_GIB:g} GiB of host memory", {"kv_offloading_size": HOST_GIB})


def _batches(resolved: ResolvedPool, peak: int) -> Iterator[Change]:
    """Yield changes of batch size, queue limit and token budget; `peak`: highest number of requests in flight."""
    limit = resolved.max_num_seqs
    less = min(limit, peak) // 2
    if less >= 1:
        yield Change(f"limit the batch to {less} requests", {"max_num_seqs": less})
        yield Change(
            f"queue requests beyond {less} in the router", service={"max_outstanding_requests": less}
        )
    else:
        for text in ("a smaller batch", "queue requests in the router"):
            yield Change(text, refused="at most one request was in flight at a time")
    if peak >= limit:
        budget = {"max_num_batched_tokens": 2 * limit} if 2 * limit > resolved.max_num_batched_tokens else {}
        yield Change(f"allow a batch of up to {2 * limit} requests", {"max_num_seqs": 2 * limit, **budget})
    else:
        yield Change(
            "a larger batch", refused=f"at most {peak} requests ran at a time, below the limit of {limit}"
        )
    for budget_tokens in (512, 2048, 8192):
        if budget_tokens != resolved.max_num_batched_tokens and budget_tokens >= limit:
            yield Change(f"a token budget of {budget_tokens:,}", {"max_num_batched_tokens": budget_tokens})


def _sizes(resolved: ResolvedPool, price: Price | None) -> Iterator[Change]:
    """Yield changes to one replica fewer, to cheaper GPUs, and to spot capacity."""
    replicas = resolved.pool.replicas
    if replicas > 1:
        yield Change(f"right-size to {replicas - 1} replicas", {"replicas": replicas - 1})
    if price is None or price.is_given:
        why = "no price was given" if price is None else "the given price is only for this GPU"
        for text in ("right-size to a cheaper GPU", "rent spot capacity"):
            yield Change(text, refused=f"{why}; set --price-tier on-demand for the prices of other GPUs")
        return
    yield from _cheaper(resolved, price)
    if price.tier == "spot":
        return
    try:
        spot = find_price(resolved.profile.name, tier="spot")
    except CapacityError as error:
        yield Change("rent spot capacity", refused=str(error))
        return
    if spot is not None:
        notes = (f"without the cost of interruptions; {spot.description}", *price_cautions(spot))
        yield Change("rent spot capacity", price=spot, note="; ".join(notes))


def _cheaper(resolved: ResolvedPool, price: Price) -> Iterator[Change]:
    """Yield changes to at most `OTHER_GPUS` cheaper GPUs of the same price tier that fit; most expensive first."""
    names = {quote.gpu for quote in price_table() if quote.tier == price.tier} - {price.gpu}
    found = (find_price(name, tier=price.tier) for name in names)
    quotes = [
        quote
        for quote in found
        if quote is not None and (price.has_few_providers or not quote.has_few_providers)
    ]
    tried = 0
    for quote in sorted(quotes, key=lambda quote: (-quote.usd_per_gpu_hour, quote.gpu)):
        if quote.usd_per_gpu_hour >= price.usd_per_gpu_hour or tried >= OTHER_GPUS:
            continue
        try:
            other = resolve(resolved.model, resolved.pool.model_copy(update={"gpu": quote.gpu}))
        except CapacityError:
            continue
        if other.memory.fits:
            tried += 1
            yield Change(
                f"right-size to {quote.gpu}",
                {"gpu": quote.gpu},
                price=quote,
                note=f"{usd_text(quote.usd_per_gpu_hour)} per GPU-hour",
            )
    if not tried:
        yield Change(
            "right-size to a cheaper GPU",
            refused=f"no cheaper GPU in the {price.tier} tier can run this deployment",
        )


def _most_in_flight(workload: Workload, latencies: Latencies) -> int:
    """Return the highest number of requests that were in the system at the same time."""
    done = np.isfinite(latencies.e2e_s)
    arrived = workload.arrival_s[done]
    if workload.is_closed_loop or not len(arrived):
        return workload.concurrency or 1
    moments = np.concatenate((arrived, arrived + latencies.e2e_s[done]))
    steps = np.concatenate((np.ones(len(arrived)), -np.ones(len(arrived))))
    order = np.lexsort((steps, moments))
    return int(np.cumsum(steps[order]).max())
