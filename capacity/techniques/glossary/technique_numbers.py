"""The sentences of the techniques' terms: caching, batching, parallelism, speculation, formats."""

from __future__ import annotations

from capacity.techniques.glossary.numbers import GIB, milliseconds
from capacity.techniques.glossary.term import Situation

EXAMPLE_ACCEPTANCE, EXAMPLE_DRAFTS = 0.7, 3
EXAMPLE_WINDOW, EXAMPLE_SINKS = 4096, 4


def _load(s: Situation) -> int:
    """Requests at a time."""
    return s.estimate.batch_size or s.estimate.concurrency or 1


# caching


def prefix_caching(s: Situation) -> str:
    from capacity.step import prefill_shape

    e, window = s.estimate, s.pool.model.window_tokens
    whole = s.pool.step_model.step_seconds(prefill_shape(1, e.input_len, window_tokens=window))
    rest = prefill_shape(1, 1, cached_tokens=e.input_len - 1, window_tokens=window)
    return (
        f"{'on' if s.pool.prefix_caching else 'off'}; a prompt of {e.input_len:,} tokens that is all cached takes "
        f"{milliseconds(s.pool.step_model.step_seconds(rest))} in place of {milliseconds(whole)}"
    )


def eviction(s: Situation) -> str:
    e = s.estimate
    return (
        f"{e.kv_capacity_tokens:,} tokens stay: a prefix is gone once {e.kv_capacity_tokens / e.input_len:,.0f} other "
        f"prompts of {e.input_len:,} tokens came since"
    )


def offloading(s: Situation) -> str:
    from capacity.techniques.long_context import offload

    found = offload(s.pool, s.estimate.input_len)
    return (
        f"{found.bytes / 1e6:,.0f} MB of your prompt come back over PCIe in {milliseconds(found.load_s)}; "
        f"computing them again takes {milliseconds(found.recompute_s)}"
    )


def disaggregation(s: Situation) -> str:
    e, link = s.estimate, s.pool.profile.inter_node
    size = e.kv_bytes_per_token * e.input_len
    seconds = link.latency_s + size / (link.bytes_per_s * s.pool.pool.num_gpus)
    return (
        f"{size / 1e6:,.0f} MB of KV travel for each prompt: {milliseconds(seconds)} over {link.kind}, beside a "
        f"TTFT of {milliseconds(e.ttft_s.value)}"
    )


def kv_format(s: Situation) -> str:
    from capacity.techniques.kv_bytes import request_kv_bytes

    e, model = s.estimate, s.pool.model
    tokens = e.input_len + e.output_len
    sizes = ((name, request_kv_bytes(model, tokens, name) / GIB) for name in ("bf16", "fp8", "int8", "int4"))
    shown = ", ".join(f"{name} {size:,.2f}" for name, size in sizes)
    return f"a request of {tokens:,} tokens in GiB: {shown}; yours is {e.kv_cache_dtype}"


def windows(s: Situation) -> str:
    from capacity.techniques.kv_bytes import limited_attention

    model, tokens = s.pool.model, s.estimate.input_len + s.estimate.output_len
    own = f"{model.name} has one of {model.window_tokens:,} tokens" if model.window_tokens else "none here"
    full, _, streaming, _ = limited_attention(
        model, tokens, window_tokens=EXAMPLE_WINDOW, sink_tokens=EXAMPLE_SINKS
    )
    return (
        f"{own}; {EXAMPLE_SINKS} sinks and {EXAMPLE_WINDOW:,} tokens would hold {streaming.kv_bytes / GIB:,.2f} of "
        f"your {full.kv_bytes / GIB:,.2f} GiB"
    )


def crossover(s: Situation) -> str:
    from capacity.base.errors import OutsideValidity
    from capacity.techniques.long_context import decode_crossover_tokens, prefill_crossover_tokens

    try:
        prefill = f"{prefill_crossover_tokens(s.pool.model):,.0f} tokens in prefill"
    except OutsideValidity:
        prefill = "0 layers grow in prefill"
    decode = decode_crossover_tokens(s.pool, _load(s))
    shown = "no context" if decode is None else f"{decode:,} tokens"
    return f"{prefill}; {shown} in decode at your {_load(s):,} requests"


def flash_attention(s: Situation) -> str:
    from capacity.base.errors import InvalidInput
    from capacity.techniques.attention_io import attention_io

    try:
        io = attention_io(s.pool, s.estimate.input_len)
    except InvalidInput as error:
        return f"not worked out here ({error}); your prompt has {s.estimate.input_len:,} tokens"
    return (
        f"your prompt's scores would be {io.naive_extra_bytes / GIB:,.2f} GiB a layer and move "
        f"{io.naive_bytes / 1e9:,.1f} GB; tiled {io.tiled_bytes / 1e9:,.1f} GB"
    )


# batching


def static_batching(s: Situation) -> str:
    from capacity.techniques.batch_waste import exponential_gain_bound

    batch = _load(s)
    bound = exponential_gain_bound(batch)
    return f"{batch:,} requests with exponential outputs waste {1 - 1 / bound:.0%} of their slots; equal ones none"


def continuous_batching(s: Situation) -> str:
    from capacity.techniques.batch_waste import exponential_gain_bound

    batch = _load(s)
    return (
        f"at most {exponential_gain_bound(batch):.2f} times static batches of {batch:,} where outputs are exponential, "
        "1 where they are equal; `capacity batching` simulates yours"
    )


# parallelism


def pipeline(s: Situation) -> str:
    from capacity.techniques.scaling import pipeline_bubble_fraction

    stages = max(s.pool.pool.pipeline_parallel_size, 2)
    chunks = -(-s.estimate.input_len // s.pool.max_num_batched_tokens)
    return (
        f"{s.pool.pool.pipeline_parallel_size} stages; a prompt of {chunks:,} chunks alone leaves {stages} of them "
        f"{pipeline_bubble_fraction(stages, chunks):.0%} idle"
    )


def expert_parallel(s: Situation) -> str:
    from capacity.techniques.scaling import expert_imbalance, experts_touched, routed_experts

    part = routed_experts(s.pool.model)
    if part is None:
        return f"{s.pool.model.name} has 0 experts to distribute"
    batch, ranks = _load(s), max(s.pool.pool.tensor_parallel_size, 2)
    read = experts_touched(part.num_experts, part.experts_per_token, batch)
    uneven = expert_imbalance(part.num_experts, part.experts_per_token, batch, ranks)
    return (
        f"a step of {batch:,} tokens reads {read:,.0f} of {part.num_experts} experts; on {ranks} GPUs the busiest has "
        f"{uneven:.2f} times the mean"
    )


def data_parallel(s: Situation) -> str:
    pool, heads = s.pool.pool, s.pool.model.num_kv_heads
    return (
        f"a degree of {pool.data_parallel_size}; {s.pool.model.name} has {heads} KV heads, so tensor parallelism "
        f"beyond {max(heads, 1)} GPUs repeats the cache, and ranks of their own do not"
    )


def context_parallel(s: Situation) -> str:
    from capacity.techniques.long_context import context_parallel_prefill

    tokens = s.estimate.input_len
    ranks = [count for count in (1, 2, 4, 8) if count <= tokens]
    found = context_parallel_prefill(s.pool, tokens, ranks)
    shown = ", ".join(f"{over.ranks}: {milliseconds(over.seconds)}" for over in found)
    return f"your prompt of {tokens:,} tokens by ranks: {shown}"


def all_reduce(s: Situation) -> str:
    from capacity.techniques.scaling import all_reduce_bytes_per_token

    model, ranks = s.pool.model, s.pool.pool.tensor_parallel_size
    shown = max(ranks, 2)
    sent = all_reduce_bytes_per_token(model.hidden_size, model.num_layers, shown)
    return f"{ranks} GPUs here; on {shown} each sends {sent / 1e6:,.2f} MB a token"


# speculation


def acceptance(s: Situation) -> str:
    from capacity.pool.drafting import Speculation, expected_tokens, find_speculator

    chain = find_speculator("eagle").as_chain().accepting(str(EXAMPLE_ACCEPTANCE))
    tokens = expected_tokens(EXAMPLE_ACCEPTANCE, EXAMPLE_DRAFTS)
    found = Speculation(s.pool, chain).round(_load(s), s.estimate.input_len, EXAMPLE_DRAFTS)
    return (
        f"at {EXAMPLE_ACCEPTANCE} each, {EXAMPLE_DRAFTS} drafts make {tokens:.2f} tokens a round; "
        f"drafted by one layer, {found.speedup:.2f} times faster at your {_load(s)} requests"
    )


def draft_tree(s: Situation) -> str:
    from capacity.pool.drafting import Speculation, find_speculator

    way = find_speculator("eagle2")
    speculation = Speculation(s.pool, way)
    chain = speculation.round(_load(s), s.estimate.input_len, way.draft_tokens, way.draft_tokens)
    tree = speculation.round(_load(s), s.estimate.input_len)
    return (
        f"EAGLE-2's {tree.verified_tokens} drafts make {tree.tokens_per_round:.2f} tokens a round, a chain of "
        f"{chain.draft_tokens} {chain.tokens_per_round:.2f}; at your {_load(s)} requests {tree.speedup:.2f} and "
        f"{chain.speedup:.2f} times faster"
    )


def drafting(s: Situation, method: str) -> str:
    """A preset's published length, and what it does here."""
    from capacity.base.errors import CapacityError
    from capacity.pool.drafting import Speculation, find_speculator

    way = find_speculator(method)
    published = (
        f"{way.tokens_per_round(way.draft_tokens):.2f} tokens a round published ({way.acceptance_model})"
    )
    try:
        found = Speculation(s.pool, way).round(_load(s), s.estimate.input_len)
    except CapacityError as error:
        return f"{published}; not here: {error}"
    return f"{published}: {found.speedup:.2f} times faster at your {_load(s)} requests"


def draft_model(s: Situation) -> str:
    from capacity.pool.drafting import find_speculator

    way = find_speculator("draft-model")
    return (
        f"{way.tokens_per_round(way.draft_tokens):.2f} tokens a round published ({way.acceptance_model}); a draft must "
        f"share the {s.pool.model.vocab_size:,} tokens of {s.pool.model.name}"
    )


# formats


def weight_format(s: Situation, method: str) -> str:
    """Bits, size and roof of one way to quantize, and its published quality."""
    from capacity.model.quantization import weight_bytes
    from capacity.techniques.quantization_methods import find_method

    found = find_method(method)
    scheme = found.scheme(s.pool)
    stored = scheme.format_of("experts" if s.pool.model.is_moe else "dense_ffn")
    execution = stored.execution(s.pool.profile.dense_flops_per_s)
    quality = f"; {found.quality[0].text}" if found.quality else ""
    return (
        f"{stored.bits_per_weight:.2f} bits: {weight_bytes(s.pool.model, scheme) / GIB:,.1f} GiB of weights, "
        f"multiplied in {execution.compute_dtype} on {s.pool.profile.name}{quality}"
    )


def quality(s: Situation) -> str:
    from capacity.techniques.quantization_methods import find_method

    shown = "; ".join(
        f"{find_method(name).title}: {find_method(name).quality[0].text}"
        for name in ("awq-int4", "gptq-int4", "smoothquant")
    )
    return f"published for others than {s.pool.model.name}: {shown}"


def linear_attention(s: Situation) -> str:
    model = s.pool.model
    state = model.state_bytes_per_sequence()
    return f"{model.name} keeps {state / 2**20:,.1f} MiB of state a request, whatever its length"
