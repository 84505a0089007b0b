"""The field's words, each with its clock or unit, and with the user's own numbers put in where a pool is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capacity.errors import UnknownName

if TYPE_CHECKING:
    from capacity.resolve import ResolvedPool
    from capacity.results import Estimate

GIB = 2**30
EXAMPLE_ACCEPTANCE, EXAMPLE_DRAFTS = 0.7, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A pool and its estimate: where the numbers come from."""

    pool: ResolvedPool
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word, what it means, and the sentence that a situation makes of it."""

    name: str
    definition: str
    numbers: Callable[[Situation], str]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The answer: `yours` is None where no pool was given."""

    term: str
    definition: str
    yours: str | None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, `schema` first."""
        return {
            "schema": "capacity/definition/v1",
            "term": self.term,
            "definition": self.definition,
            "yours": self.yours,
        }


def find_term(name: str) -> Term:
    """The term of this name or alias, whatever its case, `-` and `_`. Raises UnknownName."""
    key = _key(name)
    for term in TERMS:
        if key in (_key(term.name), *map(_key, term.aliases)):
            return term
    aliases = {alias: term.name for term in TERMS for alias in term.aliases}
    raise UnknownName("term", name, [term.name for term in TERMS], aliases=aliases)


def is_term(name: str) -> bool:
    """Whether the glossary has this word."""
    try:
        find_term(name)
    except UnknownName:
        return False
    return True


def define(name: str, situation: Situation | None = None) -> Definition:
    """What a term means, in general and in this situation. Raises UnknownName."""
    term = find_term(name)
    yours = None if situation is None else term.numbers(situation)
    return Definition(term=term.name, definition=term.definition, yours=yours)


def _key(name: str) -> str:
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())


# the numbers


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def _ttft(s: Situation) -> str:
    e = s.estimate
    return (
        f"{_ms(e.ttft_s.value)} for {e.input_len:,} prompt tokens, without queueing; {e.bound.prefill} bound"
    )


def _tpot(s: Situation) -> str:
    e = s.estimate
    if e.tpot_s is None:
        return "undefined for a single output token"
    return (
        f"{_ms(e.tpot_s.value)}, or {1 / e.tpot_s.value:,.1f} tokens/s to each user; {e.bound.decode} bound"
    )


def _e2e(s: Situation) -> str:
    e = s.estimate
    steps = e.output_len - 1
    tpot = 0.0 if e.tpot_s is None else e.tpot_s.value
    return f"{_ms(e.ttft_s.value)} + {steps:,} x {_ms(tpot)} = {e.e2e_s.value:,.2f} s"


def _throughput(s: Situation) -> str:
    e = s.estimate
    return (
        f"{e.output_tokens_per_s.value:,.0f} output tokens/s in all, {e.output_tokens_per_s_per_gpu.value:,.0f} a GPU, "
        f"{e.output_tokens_per_s_per_user.value:,.1f} a user"
    )


def _ridge(s: Situation) -> str:
    i = s.estimate.arithmetic_intensity
    decode = "-" if i.decode_flops_per_byte is None else f"{i.decode_flops_per_byte:,.0f}"
    return (
        f"{i.ridge_flops_per_byte:,.0f} FLOP/byte on {s.pool.profile.name}; your prefill has "
        f"{i.prefill_flops_per_byte:,.0f} and your decode {decode}"
    )


def _kv_cache(s: Situation) -> str:
    e = s.estimate
    request = e.kv_bytes_per_token * (e.input_len + e.output_len)
    return (
        f"{e.kv_bytes_per_token / 1024:,.0f} KiB a token, {request / GIB:,.2f} GiB for a request of "
        f"{e.input_len + e.output_len:,} tokens; the pool holds {e.kv_capacity_tokens:,} tokens"
    )


def _paged(s: Situation) -> str:
    e = s.estimate
    tokens = e.input_len + e.output_len
    blocks = -(-tokens // e.kv_block_tokens)
    waste = 1 - tokens / (blocks * e.kv_block_tokens)
    return (
        f"blocks of {e.kv_block_tokens} tokens, {e.kv_capacity_blocks:,} of them; a request of {tokens:,} tokens ends "
        f"with {blocks:,} and wastes {waste:.1%}; reserving {e.max_model_len:,} tokens for it would waste "
        f"{1 - tokens / e.max_model_len:.0%}"
    )


def _concurrency(s: Situation) -> str:
    e = s.estimate
    held = s.pool.concurrent_requests(e.input_len + e.output_len)
    return (
        f"{held:,} requests of {e.input_len + e.output_len:,} tokens fit the KV cache, the scheduler takes "
        f"{s.pool.max_num_seqs:,}; at {e.max_model_len:,} tokens each it would be {e.max_concurrency:,.1f}"
    )


def _chunked(s: Situation) -> str:
    e, pool = s.estimate, s.pool
    chunks = -(-e.input_len // pool.max_num_batched_tokens)
    state = "on" if pool.chunked_prefill else "off"
    return (
        f"{state}: a budget of {pool.max_num_batched_tokens:,} tokens a step makes {chunks:,} of your prompt"
    )


def _acceptance(s: Situation) -> str:
    from capacity.speculative import Speculation, expected_tokens, find_speculator

    speculator = find_speculator("eagle").accepting(str(EXAMPLE_ACCEPTANCE))
    chain = speculator.model_copy(update={"tree_tokens": None})
    batch = s.estimate.batch_size or s.estimate.concurrency or 1
    tokens = expected_tokens(EXAMPLE_ACCEPTANCE, EXAMPLE_DRAFTS)
    found = Speculation(s.pool, chain).round(batch, s.estimate.input_len, EXAMPLE_DRAFTS)
    return (
        f"at {EXAMPLE_ACCEPTANCE} each, {EXAMPLE_DRAFTS} drafts make {tokens:.2f} tokens a round; "
        f"drafted by one layer, {found.speedup:.2f} times faster at your {batch} requests"
    )


def _bandwidth_share(s: Situation) -> str:
    operators = s.estimate.breakdown.decode
    seconds = sum(op.seconds for op in operators)
    if not seconds:
        return "no decode step: a single output token"
    moved = sum(op.bytes for op in operators) / seconds
    return (
        f"a decode step moves {moved / 1e12:,.2f} TB/s, {moved / s.pool.profile.hbm_bytes_per_s:.0%} of "
        f"the datasheet's {s.pool.profile.hbm_bytes_per_s / 1e12:,.2f}"
    )


def _flops_share(s: Situation) -> str:
    operators = s.estimate.breakdown.prefill
    rate = sum(op.flops for op in operators) / sum(op.seconds for op in operators)
    peak = s.pool.ridge_flops_per_byte * s.pool.profile.hbm_bytes_per_s
    return (
        f"a prefill step makes {rate / 1e12:,.0f} TFLOP/s, {rate / peak:.0%} of the dense {peak / 1e12:,.0f}"
    )


def _tensor(s: Situation) -> str:
    size = s.pool.pool.tensor_parallel_size
    operators = s.estimate.breakdown.decode or s.estimate.breakdown.prefill
    share = sum(op.seconds for op in operators if op.bound == "communication") / sum(
        op.seconds for op in operators
    )
    return f"{size} GPUs; communication is {share:.0%} of a step"


def _attention_kind(s: Situation) -> str:
    model = s.pool.model
    return (
        f"{model.name} has {model.attention_kind}: {model.num_attention_heads} query heads on {model.num_kv_heads} KV "
        f"heads, {s.estimate.kv_bytes_per_token / 1024:,.0f} KiB of KV a token"
    )


def _experts(s: Situation) -> str:
    model = s.pool.model
    if not model.is_moe:
        return f"{model.name} is dense: every token passes all {model.total_params / 1e9:,.1f} B parameters"
    return f"{model.active_params / 1e9:,.1f} B of {model.total_params / 1e9:,.1f} B parameters a token in {model.name}"


def _weights(s: Situation) -> str:
    e = s.estimate
    return (
        f"{e.weight_format}: {e.memory.weights_bytes / GIB:,.1f} GiB of weights a GPU, "
        f"{e.memory.weights_bytes / e.memory.usable_bytes:.0%} of what the engine may use"
    )


def _cost(s: Situation) -> str:
    cost = s.estimate.cost
    if cost is None:
        return "no price given: add --price-tier or --price"
    return (
        f"${cost.usd_per_hour:,.2f} an hour make ${cost.usd_per_million_output_tokens:,.3f} for 1M output tokens and "
        f"${cost.usd_per_million_input_tokens:,.3f} for 1M input tokens"
    )


TERMS: tuple[Term, ...] = (
    Term(
        name="TTFT",
        aliases=("time to first token",),
        definition="Time from the request's arrival to its first output token: queueing, prefill and one sampling.",
        numbers=_ttft,
    ),
    Term(
        name="TPOT",
        aliases=("time per output token",),
        definition="(E2E - TTFT)/(output tokens - 1): the mean time between a request's tokens after the first.",
        numbers=_tpot,
    ),
    Term(
        name="ITL",
        aliases=("inter token latency",),
        definition="Each single time between two tokens of a request as they arrive; TPOT is a request's mean of it.",
        numbers=_tpot,
    ),
    Term(
        name="E2E latency",
        aliases=("e2e", "e2el", "end to end latency"),
        definition="Time from the request's arrival to its last token: TTFT + (output tokens - 1) x TPOT.",
        numbers=_e2e,
    ),
    Term(
        name="throughput",
        aliases=("output throughput", "tokens per second"),
        definition="Output tokens of all requests over the time that they took; what a GPU-hour buys.",
        numbers=_throughput,
    ),
    Term(
        name="goodput",
        definition="Requests per second that meet every limit of the SLO; throughput that nobody complains about.",
        numbers=_throughput,
    ),
    Term(
        name="ridge",
        aliases=("ridge point", "roofline", "arithmetic intensity"),
        definition="Dense FLOP/s over HBM bytes/s: below it a kernel waits for memory, above it for compute.",
        numbers=_ridge,
    ),
    Term(
        name="prefill",
        definition="Computing the prompt's KV, many tokens a step: mostly bound by FLOPs; ends with the first token.",
        numbers=_ttft,
    ),
    Term(
        name="decode",
        definition="One token a request and step: all weights and every request's KV are read for it; bound by HBM.",
        numbers=_tpot,
    ),
    Term(
        name="KV cache",
        aliases=("kv",),
        definition="Keys and values of all tokens so far, kept so that a step computes only the new one.",
        numbers=_kv_cache,
    ),
    Term(
        name="paged attention",
        aliases=("pagedattention", "paging", "kv block"),
        definition="KV in blocks of so many tokens, taken as a request grows: at most one block is part empty.",
        numbers=_paged,
    ),
    Term(
        name="concurrency",
        aliases=("batch size", "continuous batching"),
        definition="Requests that run at a time; continuous batching lets one in whenever another ends.",
        numbers=_concurrency,
    ),
    Term(
        name="chunked prefill",
        definition="A long prompt computed over several steps beside others' decodes, which so need not wait for it.",
        numbers=_chunked,
    ),
    Term(
        name="acceptance",
        aliases=("acceptance rate", "speculative decoding", "draft"),
        definition="The share of drafts that the target would have chosen too; a round yields those and one more.",
        numbers=_acceptance,
    ),
    Term(
        name="MBU",
        aliases=("bandwidth utilisation", "memory bandwidth utilization"),
        definition="HBM bytes moved a second over the datasheet's bandwidth.",
        numbers=_bandwidth_share,
    ),
    Term(
        name="MFU",
        aliases=("flops utilisation", "model flops utilization"),
        definition="FLOP/s made over the dense rate of the datasheet (the sparse one is twice that, and a trap).",
        numbers=_flops_share,
    ),
    Term(
        name="tensor parallelism",
        aliases=("tp",),
        definition="Every matrix divided over GPUs, with two all-reduces a layer.",
        numbers=_tensor,
    ),
    Term(
        name="GQA",
        aliases=("mha", "mqa", "mla", "attention kind"),
        definition="Query heads that share KV heads: MHA shares none, MQA all; MLA keeps one latent instead.",
        numbers=_attention_kind,
    ),
    Term(
        name="MoE",
        aliases=("mixture of experts", "active parameters"),
        definition="Feed-forwards of many experts of which each token uses a few: memory of all, FLOPs of those.",
        numbers=_experts,
    ),
    Term(
        name="quantization",
        aliases=("weight only",),
        definition="Fewer bits a weight: fewer bytes to read; faster products only in formats that the GPU multiplies.",
        numbers=_weights,
    ),
    Term(
        name="cost per token",
        aliases=("usd per million tokens", "price"),
        definition="GPU-hours times their price over tokens; input and output share it by the GPU time of each phase.",
        numbers=_cost,
    ),
)
