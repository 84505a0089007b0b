"""Examples with the user's numbers for terms of caches: reuse, eviction, offloading, windows, long contexts."""

from capacity.base.errors import InvalidInput, OutsideValidity
from capacity.base.quantity import size_text
from capacity.step import prefill_shape
from capacity.techniques.attention_io import attention_io
from capacity.techniques.glossary.term import GIB, Situation, milliseconds
from capacity.techniques.kv_bytes import limited_attention, request_kv_bytes
from capacity.techniques.kv_eviction import BUDGET_TOKENS, eviction_rows, selected_methods
from capacity.techniques.long_context import decode_crossover_tokens, offload, prefill_crossover_tokens

EXAMPLE_WINDOW, EXAMPLE_SINKS = 4096, 4


def prefix_caching(s: Situation) -> str:
    e, window = s.estimate, s.pool.model.window_tokens
    whole = s.pool.step_model.step_seconds(prefill_shape(1, e.input_len, window_tokens=window))
    rest = prefill_shape(1, 1, cached_tokens=e.input_len - 1, window_tokens=window)
    return (
        f"{'on' if s.pool.prefix_caching else 'off'}; a fully cached prompt of {e.input_len:,} tokens takes "
        f"{milliseconds(s.pool.step_model.step_seconds(rest))} instead of {milliseconds(whole)}"
    )


def offloading_example(s: Situation) -> str:
    fetched = offload(s.pool, s.estimate.input_len)
    return (
        f"{size_text(fetched.bytes)} of KV of your prompt load over PCIe in {milliseconds(fetched.load_s)}; "
        f"recomputing them takes {milliseconds(fetched.recompute_s)}"
    )


def disaggregation(s: Situation) -> str:
    e, link = s.estimate, s.pool.profile.inter_node
    size = e.kv_bytes_per_token * e.input_len
    seconds = link.latency_s + size / (link.bytes_per_s * s.pool.pool.num_gpus)
    return (
        f"{size_text(size)} of KV are sent per prompt: {milliseconds(seconds)} over {link.kind}, compared "
        f"with a TTFT of {milliseconds(s.ttft_s)}"
    )


def kv_format(s: Situation) -> str:
    e, model, tokens = s.estimate, s.pool.model, s.tokens
    sizes = ((name, request_kv_bytes(model, tokens, name) / GIB) for name in ("bf16", "fp8", "int8", "int4"))
    shown = ", ".join(f"{name} {size:,.2f}" for name, size in sizes)
    return f"a request of {tokens:,} tokens in GiB: {shown}; yours uses {e.kv_cache_dtype}"


def windows(s: Situation) -> str:
    model, tokens = s.pool.model, s.tokens
    own = (
        f"{model.name} has a window of {model.window_tokens:,} tokens"
        if model.window_tokens
        else "no window here"
    )
    full, _, streaming, _ = limited_attention(
        model, tokens, window_tokens=EXAMPLE_WINDOW, sink_tokens=EXAMPLE_SINKS
    )
    return (
        f"{own}; with {EXAMPLE_SINKS} sinks and a window of {EXAMPLE_WINDOW:,} tokens, the KV cache would need "
        f"{streaming.kv_bytes / GIB:,.2f} instead of {full.kv_bytes / GIB:,.2f} GiB"
    )


def eviction_example(s: Situation) -> str:
    tokens = s.tokens
    whole, kept = eviction_rows(
        s.pool.model,
        s.pool,
        selected_methods("snapkv"),
        context_tokens=tokens,
        budget_tokens=BUDGET_TOKENS,
        batch_size=s.requests_in_flight,
        kv_cache_dtype=s.pool.kv_cache_dtype,
    )
    return (
        f"with {BUDGET_TOKENS:,} of your {tokens:,} tokens kept: {kept.kv_bytes / 2**20:,.0f} of "
        f"{whole.kv_bytes / 2**20:,.0f} MiB, decode steps {kept.speedup:.2f} times as fast"
    )


def crossover(s: Situation) -> str:
    try:
        prefill = f"{prefill_crossover_tokens(s.pool.model):,.0f} tokens in prefill"
    except OutsideValidity:
        prefill = "no layer attends to its whole context in prefill"
    decode = decode_crossover_tokens(s.pool, s.requests_in_flight)
    shown = "no context" if decode is None else f"{decode:,} tokens"
    return f"{prefill}; {shown} in decode at your {s.requests_in_flight:,} requests"


def flash_attention(s: Situation) -> str:
    try:
        io = attention_io(s.pool, s.estimate.input_len)
    except InvalidInput as error:
        return f"not computed here ({error}); your prompt has {s.estimate.input_len:,} tokens"
    return (
        f"your prompt's scores would take {io.naive_extra_bytes / GIB:,.2f} GiB per layer and "
        f"{io.naive_bytes / 1e9:,.1f} GB of traffic; with tiles the traffic is {io.tiled_bytes / 1e9:,.1f} GB"
    )
