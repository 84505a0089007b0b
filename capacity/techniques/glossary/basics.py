"""Examples with the user's numbers for the terms of latency, throughput, KV, parallelism and cost."""

from capacity.pool.drafting import Speculation, expected_tokens, find_speculator
from capacity.techniques.glossary.term import Situation, milliseconds

EXAMPLE_ACCEPTANCE, EXAMPLE_DRAFTS = 0.7, 3


def ttft(s: Situation) -> str:
    e = s.estimate
    ttft = milliseconds(s.ttft_s)
    queueing = "for a batch, without queueing" if e.batch_size else "including queueing"
    return f"{ttft} for {e.input_len:,} prompt tokens, {queueing}; {e.bound.prefill} bound"


def tpot(s: Situation) -> str:
    e = s.estimate
    if e.tpot_s is None:
        return "undefined for a single output token"
    return f"{milliseconds(e.tpot_s.value)}, or {1 / e.tpot_s.value:,.1f} tokens/s per user; {e.bound.decode} bound"


def e2e(s: Situation) -> str:
    e = s.estimate
    steps = e.output_len - 1
    tpot = 0.0 if e.tpot_s is None else e.tpot_s.value
    return f"{milliseconds(s.ttft_s)} + {steps:,} x {milliseconds(tpot)} = {s.e2e_s:,.2f} s"


def ridge(s: Situation) -> str:
    i = s.estimate.arithmetic_intensity
    decode = "-" if i.decode_flops_per_byte is None else f"{i.decode_flops_per_byte:,.0f}"
    return (
        f"{i.ridge_flops_per_byte:,.0f} FLOP/byte on {s.pool.profile.name}; your prefill has "
        f"{i.prefill_flops_per_byte:,.0f} and your decode {decode}"
    )


def paged_example(s: Situation) -> str:
    e, tokens = s.estimate, s.tokens
    blocks = -(-tokens // e.kv_block_tokens)
    waste = 1 - tokens / (blocks * e.kv_block_tokens)
    return (
        f"{e.kv_capacity_blocks:,} blocks of {e.kv_block_tokens} tokens; a request of {tokens:,} tokens ends "
        f"with {blocks:,} blocks and wastes {waste:.1%}; reserving {e.max_model_len:,} tokens for it would waste "
        f"{1 - tokens / e.max_model_len:.0%}"
    )


def chunked_example(s: Situation) -> str:
    e, pool = s.estimate, s.pool
    budget, state = pool.max_num_batched_tokens, "on" if pool.chunked_prefill else "off"
    return f"{state}: with a budget of {budget:,} tokens per step, your prompt needs {-(-e.input_len // budget):,}"


def acceptance(s: Situation) -> str:
    chain = find_speculator("eagle").with_acceptance(str(EXAMPLE_ACCEPTANCE))
    tokens = expected_tokens(EXAMPLE_ACCEPTANCE, EXAMPLE_DRAFTS)
    drafted = Speculation(s.pool, chain).round_of(s.requests_in_flight, s.estimate.input_len, EXAMPLE_DRAFTS)
    return (
        f"at an acceptance of {EXAMPLE_ACCEPTANCE}, {EXAMPLE_DRAFTS} drafts give {tokens:.2f} tokens per step; "
        f"drafted by one layer, this is {drafted.speedup:.2f} times as fast at your {s.requests_in_flight} "
        "requests"
    )


def bandwidth_share(s: Situation) -> str:
    operators = s.estimate.breakdown.decode
    seconds = sum(op.seconds for op in operators)
    if not seconds:
        return "no decode step: a single output token"
    moved = sum(op.bytes for op in operators) / seconds
    return (
        f"a decode step reads {moved / 1e12:,.2f} TB/s, {moved / s.pool.profile.hbm_bytes_per_s:.0%} of the "
        f"datasheet's {s.pool.profile.hbm_bytes_per_s / 1e12:,.2f}"
    )


def flops_share(s: Situation) -> str:
    operators = s.estimate.breakdown.prefill
    rate = sum(op.flops for op in operators) / sum(op.seconds for op in operators)
    peak = s.pool.ridge_flops_per_byte * s.pool.profile.hbm_bytes_per_s
    return f"a prefill step reaches {rate / 1e12:,.0f} TFLOP/s, {rate / peak:.0%} of the dense {peak / 1e12:,.0f}"


def tensor(s: Situation) -> str:
    size = s.pool.pool.tensor_parallel_size
    operators = s.estimate.breakdown.decode or s.estimate.breakdown.prefill
    sending = sum(op.seconds for op in operators if op.bound == "communication")
    return f"{size} GPUs; communication is {sending / sum(op.seconds for op in operators):.0%} of a step"


def experts(s: Situation) -> str:
    model = s.pool.model
    if not model.is_moe:
        return f"{model.name} is dense: every token uses all {model.total_params / 1e9:,.1f} B parameters"
    return (
        f"{model.active_params / 1e9:,.1f} B of {model.total_params / 1e9:,.1f} B parameters per token in "
        f"{model.name}"
    )


def cost(s: Situation) -> str:
    cost = s.estimate.cost
    if cost is None:
        return "no price: add --price-tier or --price"
    return (
        f"${cost.usd_per_hour:,.2f} per hour is ${cost.usd_per_million_output_tokens:,.3f} per 1M output tokens "
        f"and ${cost.usd_per_million_input_tokens:,.3f} per 1M input tokens"
    )
