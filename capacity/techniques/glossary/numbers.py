"""The sentences of serving's terms: latencies, load, memory, links and cost, with a situation's numbers."""

from __future__ import annotations

import math

from capacity.techniques.glossary.term import Situation

GIB = 2**30


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def ttft(s: Situation) -> str:
    e = s.estimate
    ttft = milliseconds(e.ttft_s.value)
    return f"{ttft} for {e.input_len:,} prompt tokens, without queueing; {e.bound.prefill} bound"


def tpot(s: Situation) -> str:
    e = s.estimate
    if e.tpot_s is None:
        return "undefined for a single output token"
    return f"{milliseconds(e.tpot_s.value)}, or {1 / e.tpot_s.value:,.1f} tokens/s to each user; {e.bound.decode} bound"


def e2e(s: Situation) -> str:
    e = s.estimate
    steps = e.output_len - 1
    tpot = 0.0 if e.tpot_s is None else e.tpot_s.value
    return f"{milliseconds(e.ttft_s.value)} + {steps:,} x {milliseconds(tpot)} = {e.e2e_s.value:,.2f} s"


def throughput(s: Situation) -> str:
    e = s.estimate
    return (
        f"{e.output_tokens_per_s.value:,.0f} output tokens/s in all, {e.output_tokens_per_s_per_gpu.value:,.0f} a GPU, "
        f"{e.output_tokens_per_s_per_user.value:,.1f} a user"
    )


def ridge(s: Situation) -> str:
    i = s.estimate.arithmetic_intensity
    decode = "-" if i.decode_flops_per_byte is None else f"{i.decode_flops_per_byte:,.0f}"
    return (
        f"{i.ridge_flops_per_byte:,.0f} FLOP/byte on {s.pool.profile.name}; your prefill has "
        f"{i.prefill_flops_per_byte:,.0f} and your decode {decode}"
    )


def kv_cache(s: Situation) -> str:
    e = s.estimate
    request = e.kv_bytes_per_token * (e.input_len + e.output_len)
    return (
        f"{e.kv_bytes_per_token / 1024:,.0f} KiB a token, {request / GIB:,.2f} GiB for a request of "
        f"{e.input_len + e.output_len:,} tokens; the pool holds {e.kv_capacity_tokens:,} tokens"
    )


def paged(s: Situation) -> str:
    e = s.estimate
    tokens = e.input_len + e.output_len
    blocks = -(-tokens // e.kv_block_tokens)
    waste = 1 - tokens / (blocks * e.kv_block_tokens)
    return (
        f"blocks of {e.kv_block_tokens} tokens, {e.kv_capacity_blocks:,} of them; a request of {tokens:,} tokens ends "
        f"with {blocks:,} and wastes {waste:.1%}; reserving {e.max_model_len:,} tokens for it would waste "
        f"{1 - tokens / e.max_model_len:.0%}"
    )


def concurrency(s: Situation) -> str:
    e = s.estimate
    held = s.pool.concurrent_requests(e.input_len + e.output_len)
    return (
        f"{held:,} requests of {e.input_len + e.output_len:,} tokens fit the KV cache, the scheduler takes "
        f"{s.pool.max_num_seqs:,}; at {e.max_model_len:,} tokens each it would be {e.max_concurrency:,.1f}"
    )


def chunked(s: Situation) -> str:
    e, pool = s.estimate, s.pool
    chunks = -(-e.input_len // pool.max_num_batched_tokens)
    state = "on" if pool.chunked_prefill else "off"
    return (
        f"{state}: a budget of {pool.max_num_batched_tokens:,} tokens a step makes {chunks:,} of your prompt"
    )


def bandwidth_share(s: Situation) -> str:
    operators = s.estimate.breakdown.decode
    seconds = sum(op.seconds for op in operators)
    if not seconds:
        return "no decode step: a single output token"
    moved = sum(op.bytes for op in operators) / seconds
    return (
        f"a decode step moves {moved / 1e12:,.2f} TB/s, {moved / s.pool.profile.hbm_bytes_per_s:.0%} of "
        f"the datasheet's {s.pool.profile.hbm_bytes_per_s / 1e12:,.2f}"
    )


def flops_share(s: Situation) -> str:
    operators = s.estimate.breakdown.prefill
    rate = sum(op.flops for op in operators) / sum(op.seconds for op in operators)
    peak = s.pool.ridge_flops_per_byte * s.pool.profile.hbm_bytes_per_s
    return (
        f"a prefill step makes {rate / 1e12:,.0f} TFLOP/s, {rate / peak:.0%} of the dense {peak / 1e12:,.0f}"
    )


def tensor(s: Situation) -> str:
    size = s.pool.pool.tensor_parallel_size
    operators = s.estimate.breakdown.decode or s.estimate.breakdown.prefill
    share = sum(op.seconds for op in operators if op.bound == "communication") / sum(
        op.seconds for op in operators
    )
    return f"{size} GPUs; communication is {share:.0%} of a step"


def attention_kind(s: Situation) -> str:
    model = s.pool.model
    return (
        f"{model.name} has {model.attention_kind}: {model.num_attention_heads} query heads on {model.num_kv_heads} KV "
        f"heads, {s.estimate.kv_bytes_per_token / 1024:,.0f} KiB of KV a token"
    )


def experts(s: Situation) -> str:
    model = s.pool.model
    if not model.is_moe:
        return f"{model.name} is dense: every token passes all {model.total_params / 1e9:,.1f} B parameters"
    return f"{model.active_params / 1e9:,.1f} B of {model.total_params / 1e9:,.1f} B parameters a token in {model.name}"


def weights(s: Situation) -> str:
    e = s.estimate
    return (
        f"{e.weight_format}: {e.memory.weights_bytes / GIB:,.1f} GiB of weights a GPU, "
        f"{e.memory.weights_bytes / e.memory.usable_bytes:.0%} of what the engine may use"
    )


def cost(s: Situation) -> str:
    cost = s.estimate.cost
    if cost is None:
        return "no price given: add --price-tier or --price"
    return (
        f"${cost.usd_per_hour:,.2f} an hour make ${cost.usd_per_million_output_tokens:,.3f} for 1M output tokens and "
        f"${cost.usd_per_million_input_tokens:,.3f} for 1M input tokens"
    )


# load


def slo(s: Situation) -> str:
    """What a limit must at least allow."""
    e = s.estimate
    tpot = "" if e.tpot_s is None else f" and a TPOT of {milliseconds(e.tpot_s.value)}"
    return (
        f"no limit below a TTFT of {milliseconds(e.ttft_s.value)}{tpot} can be kept, even without queueing; "
        "`--slo ttft:p99:500ms` asks whether yours is"
    )


def percentile(s: Situation) -> str:
    """How many requests a p99 leaves out."""
    rate = s.estimate.requests_per_s.value
    return f"at {rate:,.1f} requests/s, {rate * 36:,.0f} an hour are slower than the p99"


def little(s: Situation) -> str:
    """Concurrency = rate x time in the system."""
    e = s.estimate
    rate = e.requests_per_s.value
    return f"{rate:,.2f} requests/s x {e.e2e_s.value:,.2f} s = {rate * e.e2e_s.value:,.1f} requests in flight"


def queueing(s: Situation) -> str:
    """The rate beyond which a queue has no end."""
    rate = s.estimate.requests_per_s.value
    return (
        f"{rate:,.2f} requests/s is what this load gets; where more arrive for long, the queue grows by the difference "
        f"(5 % more: {rate * 0.05 * 60:,.0f} requests a minute)"
    )


def burstiness(s: Situation) -> str:
    """The busiest second of a hundred, of Poisson arrivals at this rate."""
    rate = s.estimate.requests_per_s.value
    count, cumulated, term = 0, math.exp(-rate), math.exp(-rate)
    while cumulated < 0.99 and count < 100_000 and term > 0:
        count += 1
        term *= rate / count
        cumulated += term
    if cumulated < 0.99:  # exp(-rate) has underflowed: the normal limit
        count = math.ceil(rate + 2.326 * math.sqrt(rate))
    return f"Poisson at your {rate:,.1f} requests/s: one second in a hundred brings {count:,} or more"


# the engine's limits


def max_num_seqs(s: Situation) -> str:
    e, pool = s.estimate, s.pool
    held = pool.concurrent_requests(e.input_len + e.output_len)
    binds = "the seats" if pool.max_num_seqs < held else "KV"
    return f"{pool.max_num_seqs:,} seats, KV for {held:,} of your requests: {binds} will be short first"


def token_budget(s: Situation) -> str:
    budget = s.pool.max_num_batched_tokens
    shares = budget / s.estimate.input_len
    return f"{budget:,} tokens a step: {shares:,.1f} of your prompts, less one token for each request that decodes"


def memory_share(s: Situation) -> str:
    m = s.estimate.memory
    return (
        f"{m.usable_bytes / GIB:,.1f} of {m.total_bytes / GIB:,.1f} GiB: weights {m.weights_bytes / GIB:,.1f}, "
        f"activations {m.activations_bytes / GIB:,.1f}, overhead {m.overhead_bytes / GIB:,.1f}, "
        f"KV cache {m.kv_cache_bytes / GIB:,.1f}"
    )


def preemption(s: Situation) -> str:
    e, pool = s.estimate, s.pool
    ended = pool.concurrent_requests(e.input_len + e.output_len)
    begun = pool.concurrent_requests(max(e.input_len, 1))
    return (
        f"KV holds {begun:,} of your requests as they begin and {ended:,} as they end: admitting more than the second "
        f"number is what preempts ({pool.max_num_seqs:,} seats)"
    )


def context_window(s: Situation) -> str:
    e = s.estimate
    return (
        f"{e.max_model_len:,} tokens; the KV cache holds one request of up to {e.max_context_tokens:,}, and yours have "
        f"{e.input_len + e.output_len:,}"
    )


def graphs(s: Situation) -> str:
    e, engine = s.estimate, s.pool.engine
    sizes = engine.graph_batch_sizes(s.pool.max_num_seqs, s.pool.profile.architecture)
    batch = e.batch_size or e.concurrency or 1
    if s.pool.pool.enforce_eager or not sizes:
        return f"none with {engine.label} here: every step of your {batch} requests launches its kernels one by one"
    padded = next((size for size in sizes if size >= batch), None)
    if padded is None:
        return f"up to a batch of {sizes[-1]:,}; your {batch:,} requests run eagerly"
    return f"{len(sizes)} sizes up to {sizes[-1]:,}; your {batch:,} requests are padded to {padded:,}"


def host(s: Situation) -> str:
    operators = s.estimate.breakdown.decode or s.estimate.breakdown.prefill
    total = sum(op.seconds for op in operators)
    waiting = sum(op.seconds for op in operators if op.bound in ("host", "launch"))
    return f"{milliseconds(waiting)} of a step of {milliseconds(total)}, {waiting / total:.0%}"


# hardware


def hbm(s: Situation) -> str:
    profile, weights_bytes = s.pool.profile, s.estimate.memory.weights_bytes
    once = milliseconds(weights_bytes / profile.hbm_bytes_per_s)
    beaten = "a step that touches every expert" if s.pool.model.is_moe else "any step"
    return (
        f"{profile.hbm_bytes_per_s / 1e12:,.2f} TB/s on {profile.name}: {once} to read its "
        f"{weights_bytes / GIB:,.1f} GiB of weights once, the least that {beaten} takes"
    )


def links(s: Situation) -> str:
    profile = s.pool.profile
    return (
        f"{profile.scale_up.kind} {profile.scale_up.bytes_per_s / 1e9:,.0f} GB/s each way among "
        f"{profile.scale_up.domain_gpus}, PCIe {profile.pcie.bytes_per_s / 1e9:,.0f}, "
        f"{profile.inter_node.kind} {profile.inter_node.bytes_per_s / 1e9:,.0f} between nodes"
    )


def energy(s: Situation) -> str:
    found = s.estimate.energy
    return (
        f"{found.watts_per_gpu:,.0f} W a GPU, all-in, make {found.joules_per_output_token:,.2f} J an output token, "
        f"{found.joules_per_output_token / 3.6:,.2f} kWh for 1M"
    )
