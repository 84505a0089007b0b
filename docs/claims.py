"""The claims of the field recomputed: `python docs/made_of_code.py` writes the table into claims.md.

What is claimed, where it was read and why it is so stands in claims.toml; here is what the product says of the same.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TOLERANCE = 0.1  # of a claim, within which ours is the same
BATCHES = (1, 16, 64)
CHAT: dict[str, Any] = {"input_len": 1024, "output_len": 256}
SHORT: dict[str, Any] = {"input_len": 128, "output_len": 128}
BIG: dict[str, Any] = {"gpu": "h100", "tensor_parallel_size": 4}
CASCADE: dict[str, Any] = {
    **BIG, "small": "llama-3.1-8b", "input_len": 1000, "output_len": 200, "request_rate": 20.0, "num_prompts": 100,
    "price_tier": "on-demand",
}  # fmt: skip
OURS: dict[str, Callable[[], Sequence[float]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What somebody says: `low` to `high`, of which ours is the function of that name."""

    part: str
    said: str
    low: float
    high: float
    unit: str
    ours: str
    of: str
    why: str
    source: str | None = None
    most: bool = False  # "up to": one condition that reaches it is enough


def claims() -> list[Claim]:
    """All claims, in order."""
    text = Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
    return [Claim(**fields) for fields in tomllib.loads(text)["claims"]]


def computed(function: Callable[[], Sequence[float]]) -> Callable[[], Sequence[float]]:
    """Ours of a claim: one value, or those of the conditions that it is looked at under."""
    OURS[function.__name__] = function
    return function


def verdict(claim: Claim, ours: Sequence[float]) -> str:
    """Whether what we find lies within a tenth of what is claimed: all of it, some, or on one side.

    Of "up to", whether any of it comes that far.
    """
    if claim.most:
        return "reached" if max(ours) >= claim.high * (1 - TOLERANCE) else "not reached"
    low, high = ((end - TOLERANCE * abs(end), end + TOLERANCE * abs(end)) for end in (claim.low, claim.high))
    if max(ours) < low[0]:
        return "too high"
    if min(ours) > high[1]:
        return "too low"
    return "right" if min(ours) >= low[0] and max(ours) <= high[1] else "in part"


def table() -> str:
    """The claims by part, as Markdown."""
    lines: list[str] = []
    part = ""
    for claim in claims():
        if claim.part != part:
            part = claim.part
            lines += ["", f"## {part}", "", "| claim | ours | verdict | why |", "| --- | --- | --- | --- |"]
        ours = OURS[claim.ours]()
        source = "a common claim" if claim.source is None else f"[source]({claim.source})"
        found = f"**{shown(ours, claim.unit)}**: {claim.of}"
        lines.append(f"| {claim.said} ({source}) | {found} | {verdict(claim, ours)} | {claim.why} |")
    return "\n".join(lines[1:])


def shown(values: Sequence[float], unit: str) -> str:
    """`1.2 to 1.4x`: three digits at most, of thousands two."""
    low, high = digits(min(values)), digits(max(values))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def digits(value: float) -> str:
    """Three digits, of larger numbers two; no exponent."""
    kept = 2 if abs(value) >= 1000 else 3
    power = 0 if value == 0 else math.floor(math.log10(abs(value)))
    places = kept - 1 - power
    text = f"{round(value, places):,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if places > 0 else text


def weights_gb(model: str, **pool: Any) -> float:
    """Weights on one GPU that is large enough or not, in GB."""
    import capacity

    return capacity.fit(model, gpu="h100", **pool).memory.weights_bytes / 1e9


def kv_bytes(model: str, tokens: int = 1) -> float:
    """KV cache of so many tokens at 16 bit."""
    return kv_row(model).bytes_per_token * tokens


def kv_row(model: str) -> Any:
    """The row of `capacity kv`."""
    import capacity

    return capacity.kv((model,), contexts=(4096,)).rows[0]


def tpot_s(model: str, batch: int, **asked: Any) -> float:
    """Seconds a token of a batch."""
    import capacity

    tpot = capacity.estimate(model, batch_size=batch, **{**CHAT, **asked}).tpot_s
    assert tpot is not None
    return tpot.value


def faster(model: str, quantization: str, batches: Sequence[int], **asked: Any) -> list[float]:
    """Seconds a token as published over those quantized."""
    return [tpot_s(model, b, **asked) / tpot_s(model, b, quantization=quantization, **asked) for b in batches]


def tokens_per_s(model: str, **asked: Any) -> Any:
    """Output tokens per second, with the interval."""
    import capacity

    return capacity.estimate(model, **asked).output_tokens_per_s


def served(model: str, **asked: Any) -> float:
    """Output tokens per second of a simulated load."""
    import capacity

    return capacity.simulate(model, **asked).run.summary.output_throughput


def ttft_ms(kept: int, caching: bool) -> float:
    """The median TTFT of 100 tokens after a shared prefix, one request at a time."""
    import capacity

    summary = capacity.simulate(
        "llama-3.1-8b", gpu="h100", input_len=100, output_len=2, random_prefix_len=kept, num_prefixes=1,
        random_range_ratio=0.0, request_rate=0.02, num_prompts=8, enable_prefix_caching=caching,
    ).run.summary  # fmt: skip
    assert summary.ttft_ms is not None
    return summary.ttft_ms.percentiles[50]


def speedups(model: str, method: str, **asked: Any) -> list[Any]:
    """Rounds of drafts, by batch."""
    import capacity

    return list(capacity.speculate(model, method=method, batches=BATCHES, context_tokens=512, **asked).rows)


def drafted() -> list[Any]:
    """A 70B with a 1B's drafts."""
    return speedups("llama-3.1-70b", "draft-model", draft="llama-3.2-1b", **BIG)


@cache
def engines(concurrency: int) -> dict[str, float]:
    """Output tokens per second of every engine on one load, of lengths as ShareGPT's."""
    import capacity

    compared = capacity.compare_engines(
        "llama-2-7b", gpu="a100", input_len=160, output_len=340, length_distribution="gamma", input_len_cv=1.0,
        output_len_cv=1.0, concurrency=concurrency,
    )  # fmt: skip
    rates = ((row.engine, row.point.output_tokens_per_s) for row in compared.rows)
    return {name.partition("@")[0]: rate.value for name, rate in rates if rate is not None}


def engine_ratio(first: str, second: str) -> list[float]:
    """One engine's throughput over another's, at small and large loads."""
    found = [engines(concurrency) for concurrency in (8, 128)]
    return [rates[first] / rates[second] for rates in found]


@cache
def batching() -> Any:
    """Static and continuous batching of requests as of ShareGPT."""
    import capacity

    return capacity.compare_batching(
        "llama-2-13b", gpu="a100", input_len=160, output_len=340, random_range_ratio=0.0, request_rate=20.0,
        num_prompts=100, max_model_len=2048,
    )  # fmt: skip


def savings(rates: Sequence[float], **asked: Any) -> list[float]:
    """How many times cheaper an 8B before a 70B is, where engines are many."""
    import capacity

    found = (capacity.cascade("llama-3.1-70b", escalation_rate=rate, **CASCADE, **asked) for rate in rates)
    return [
        each.alone.usd_per_request_at_scale.value / each.cascade.usd_per_request_at_scale.value
        for each in found
    ]


def claimed_by_physics(name: str) -> Any:
    """A published figure that `capacity engines --claims` holds against physics."""
    import capacity

    return next(claim for claim in capacity.engine_table(claims=True).claims if claim.name == name)


# memory


@computed
def weights_70b() -> Sequence[float]:
    return [weights_gb("llama-3.1-70b")]


@computed
def weights_70b_int4() -> Sequence[float]:
    return [weights_gb("llama-3.1-70b", quantization="awq")]


@computed
def fp8_memory() -> Sequence[float]:
    return [weights_gb(m) / weights_gb(m, quantization="fp8") for m in ("llama-3.1-8b", "llama-3.1-70b")]


@computed
def awq_memory() -> Sequence[float]:
    return [weights_gb(m) / weights_gb(m, quantization="awq") for m in ("qwen2.5-7b", "qwen2.5-72b")]


@computed
def gqa_factor() -> Sequence[float]:
    kinds = kv_row("llama-2-70b").kinds
    return [kinds.mha_bytes_per_token / kinds.actual_bytes_per_token]


@computed
def kv_kb_70b() -> Sequence[float]:
    return [kv_bytes("llama-2-70b") / 1e3]


@computed
def kv_gb_70b_128k() -> Sequence[float]:
    return [kv_bytes("llama-3.1-70b", 131_072) / 1e9]


@computed
def kv_gb_70b_1m() -> Sequence[float]:
    return [kv_bytes("llama-3.1-70b", 1_000_000) / 1e9]


@computed
def kv_gb_70b_4k() -> Sequence[float]:
    return [kv_bytes("llama-2-70b", 4096) / 1e9]


@computed
def mla_smaller() -> Sequence[float]:
    old = 2 * 95 * 8 * 128 * 2  # DeepSeek 67B: 95 layers of 8 KV heads of 128 values
    return [old / (kv_bytes("deepseek-v2") * bits / 16) for bits in (16, 6)]


@computed
def mla_factor() -> Sequence[float]:
    kinds = kv_row("deepseek-v3").kinds
    return [kinds.mha_bytes_per_token / kinds.actual_bytes_per_token]


@computed
def contiguous_waste() -> Sequence[float]:
    return [100 * (1 - tokens / 2048) for tokens in (160 + 340, 1024)]


@computed
def paged_waste() -> Sequence[float]:
    return [100 * batching().paged_kv_waste_fraction]


# quantization


@computed
def fp8_throughput() -> Sequence[float]:
    small = {"gpu": "l4", "max_model_len": 4096}
    loads = [("llama-3.1-70b", BIG, c) for c in (1, 128)] + [("llama-3.1-8b", small, c) for c in (8, 64)]
    rates = [
        [tokens_per_s(model, concurrency=c, quantization=q, **pool, **CHAT).value for q in ("fp8", None)]
        for model, pool, c in loads
    ]
    return [fp8 / bf16 for fp8, bf16 in rates]


@computed
def awq_speed() -> Sequence[float]:
    return faster("qwen2.5-7b", "awq", BATCHES, gpu="a100")


@computed
def awq_speed_4090() -> Sequence[float]:
    return faster("llama-3-8b", "awq", (1,), gpu="rtx-4090", **SHORT)


@computed
def marlin_layers() -> Sequence[float]:
    import capacity

    def gate_up_s(batch: int, quantization: str | None) -> float:
        asked = {
            "gpu": "a10",
            "batch_size": batch,
            "quantization": quantization,
            "max_model_len": 1024,
            **SHORT,
        }
        decode = capacity.estimate("llama-3.1-8b", **asked).breakdown.decode
        return next(op.seconds for op in decode if op.name == "gate_up")

    return [gate_up_s(batch, None) / gate_up_s(batch, "gptq") for batch in (1, 16, 32)]


@computed
def nf4_speed() -> Sequence[float]:
    return faster("llama-3.1-8b", "nf4", BATCHES, gpu="a100")


@computed
def int8_slower() -> Sequence[float]:
    return [1 / ratio for ratio in faster("llama-3.1-8b", "llm-int8", BATCHES, gpu="a100")]


@computed
def smoothquant_speed() -> Sequence[float]:
    return [
        *faster("llama-3.1-70b", "smoothquant", BATCHES, **BIG),
        *faster("llama-2-7b", "smoothquant", BATCHES, gpu="a100"),
    ]


@computed
def fp8_speed_70b() -> Sequence[float]:
    return faster("llama-3.1-70b", "fp8", BATCHES, **BIG)


@computed
def int4_speed_70b() -> Sequence[float]:
    return faster("llama-3.1-70b", "awq", BATCHES, **BIG)


@computed
def int4_speed_7b() -> Sequence[float]:
    return faster("llama-2-7b", "gptq", BATCHES, gpu="a100")


@computed
def nf4_speed_7b() -> Sequence[float]:
    return faster("llama-2-7b", "nf4", BATCHES, gpu="a100")


@computed
def gguf_speed() -> Sequence[float]:
    return [
        *faster("llama-3.1-70b", "gguf-q4_k_m", BATCHES, **BIG),
        *faster("llama-2-7b", "gguf-q4_k_m", BATCHES, gpu="a100"),
    ]


@computed
def int4_lost() -> Sequence[float]:
    return [100 * loss for loss in published_losses("int4")]


@computed
def quantized_lost() -> Sequence[float]:
    return [100 * loss for name in ("fp8", "int8", "int4") for loss in published_losses(name)]


def published_losses(family: str) -> list[float]:
    """The median and the worst published loss of a score, of an 8B and of a 70B, as fractions."""
    from capacity.planning.quality import published_quality

    found = [published_quality(family, params) for params in (8e9, 70e9)]
    losses = ((each.typical_loss_fraction, each.worst_loss_fraction) for each in found if each is not None)
    return [loss for pair in losses for loss in pair if loss is not None]


@computed
def perplexity_of_16_bit() -> Sequence[float]:
    from capacity.techniques.quantization_methods import find_method

    return [figure.baseline for figure in find_method("awq-int4").quality if figure.model == "Llama-2-70B"]


# attention


@computed
def flash2_speed() -> Sequence[float]:
    return [row["eager"] / row["flash_attention_2"] for row in kernel_seconds()]


@computed
def flash3_speed() -> Sequence[float]:
    return [row["flash_attention_2"] / row["flash_attention_3"] for row in kernel_seconds()]


def kernel_seconds() -> list[dict[str, float]]:
    """Seconds of prefill attention by kernel, of Llama-3.1-8B on an H100 at 4K, 16K and 64K tokens."""
    import capacity

    rows = capacity.attention_traffic("llama-3.1-8b", gpu="h100", contexts=(4096, 16384, 65536)).rows
    return [{kernel.kernel: kernel.prefill_s for kernel in row.kernels} for row in rows]


@computed
def attention_memory() -> Sequence[float]:
    import capacity

    rows = capacity.attention_traffic("llama-2-7b", gpu="a100", contexts=(1024, 4096)).rows
    inputs = 4 * 4096 * 2  # queries, keys, values and output of a token, bytes
    return [1 + row.naive_extra_bytes / (inputs * row.tokens) for row in rows]


@computed
def flash_speed() -> Sequence[float]:
    import capacity

    rows = capacity.attention_traffic("llama-2-7b", gpu="a100").rows
    return [row.naive_seconds / row.kernel_seconds for row in rows if row.kernel_seconds]


@computed
def amdahl_prefill() -> Sequence[float]:
    import capacity

    gains = []
    for tokens in (2048, 32768):
        prefill = capacity.estimate(
            "llama-3.1-8b",
            gpu="h100",
            batch_size=1,
            input_len=tokens,
            output_len=2,
            max_num_batched_tokens=tokens,
        ).breakdown.prefill
        seconds = sum(op.seconds for op in prefill)
        gains.append(
            seconds / (seconds - sum(op.seconds for op in prefill if op.name == "attention prefill") / 2)
        )
    return gains


@computed
def memory_of_128k() -> Sequence[float]:
    return [weights_gb("llama-3.1-70b", quantization="awq") + kv_bytes("llama-3.1-70b", 131_072) / 1e9]


@computed
def idle_compute() -> Sequence[float]:
    import capacity

    intensity = capacity.estimate("llama-3.1-70b", batch_size=1, **BIG, **CHAT).arithmetic_intensity
    assert intensity.decode_flops_per_byte is not None
    return [100 * (1 - intensity.decode_flops_per_byte / intensity.ridge_flops_per_byte)]


# batching and engines


@computed
def batching_gain() -> Sequence[float]:
    return [row.simulated_gain for row in batching().spread if row.simulated_gain is not None]


@computed
def paging_gain() -> Sequence[float]:
    load = {
        "gpu": "a100",
        "random_range_ratio": 0.5,
        "concurrency": 256,
        "num_prompts": 600,
        "max_model_len": 2048,
    }
    return [
        served("llama-2-13b", **lengths, **load)
        / served("llama-2-13b", kv_layout="contiguous", **lengths, **load)
        for lengths in ({"input_len": 160, "output_len": 340}, {"input_len": 700, "output_len": 300})
    ]


@computed
def vllm_over_hf() -> Sequence[float]:
    return engine_ratio("vllm", "hf-transformers")


@computed
def tensorrt_over_vllm() -> Sequence[float]:
    asked = {"input_len": 512, "output_len": 128, "random_range_ratio": 0.8}
    loads = [{"gpu": gpu, "concurrency": concurrency} for gpu in ("h100", "a100") for concurrency in (8, 128)]
    rates = [
        [tokens_per_s("llama-3.1-8b", engine=engine, **load, **asked).value for load in loads]
        for engine in ("tensorrt-llm", "vllm")
    ]
    return [first / second for first, second in zip(*rates, strict=True)]


@computed
def awq_vllm_over_hf() -> Sequence[float]:
    asked = {"gpu": "a100", "input_len": 512, "output_len": 128, "random_range_ratio": 0.8}
    return [
        tokens_per_s("llama-2-7b", quantization="awq", concurrency=concurrency, **asked).value
        / tokens_per_s("llama-2-7b", engine="hf-transformers", concurrency=concurrency, **asked).value
        for concurrency in (1, 8)
    ]


@computed
def vllm_over_tgi() -> Sequence[float]:
    return engine_ratio("vllm", "tgi")


@computed
def llamacpp_over_vllm() -> Sequence[float]:
    return engine_ratio("llama.cpp", "vllm")


@computed
def sglang_over_vllm() -> Sequence[float]:
    return engine_ratio("sglang", "vllm")


@computed
def radix_gain() -> Sequence[float]:
    load = {"gpu": "a100", "engine": "sglang", "input_len": 100, "concurrency": 64, "num_prompts": 400}
    asked = [
        {**load, "output_len": out, "random_prefix_len": kept, "num_prefixes": 4}
        for kept, out in ((500, 100), (3000, 100), (3000, 20))
    ]
    gains = [
        served("llama-3.1-8b", **each) / served("llama-3.1-8b", enable_prefix_caching=False, **each)
        for each in asked
    ]
    return [1.0, *gains]


@computed
def optimum_tokens() -> Sequence[float]:
    asked = {"gpu": "h100", "engine": "tensorrt-llm", "quantization": "fp8", **SHORT}
    return [tokens_per_s("llama-2-7b", batch_size=batch, **asked).value for batch in BATCHES]


@computed
def tensorrt_tokens() -> Sequence[float]:
    asked = {"gpu": "h100", "engine": "tensorrt-llm", "quantization": "fp8", **SHORT}
    found = tokens_per_s("llama-2-7b", batch_size=64, **asked)
    return [found.low, found.high]


@computed
def tensor_efficiency() -> Sequence[float]:
    import capacity

    small = capacity.scale("llama-3.1-8b", gpu="h100").rows
    rows = (*small, *capacity.scale("llama-3.1-70b", gpu="h200", quantization="fp8").rows)
    return [100 * row.efficiency for row in rows if row.num_gpus > 1 and row.efficiency is not None]


# speculation


@computed
def draft_model() -> Sequence[float]:
    well = speedups("llama-3.1-70b", "draft-model", draft="llama-3.2-1b", acceptance="0.8", **BIG)
    return [row.speedup for row in (*drafted(), *well)]


@computed
def medusa() -> Sequence[float]:
    return [row.speedup for row in speedups("llama-2-7b", "medusa-tree", gpu="a100")]


@computed
def eagle() -> Sequence[float]:
    return [row.speedup for row in speedups("llama-2-13b", "eagle-tree", gpu="a100")]


@computed
def eagle2() -> Sequence[float]:
    return [row.speedup for row in speedups("llama-2-13b", "eagle2-tree", gpu="a100")]


@computed
def verification() -> Sequence[float]:
    return [row.verify_cost for row in (*drafted(), *speedups("llama-2-13b", "eagle2-tree", gpu="a100"))]


def accepted_fraction(method: str, tokens: int) -> float:
    """The acceptance of each draft at which `tokens` of them give the method's published tokens per round."""
    from scipy.optimize import brentq

    from capacity.pool.drafting import find_speculator

    found = find_speculator(method)
    if found.acceptance_rate is not None:
        return found.acceptance_rate
    length = found.accepted_length
    if length is None and found.acceptance_by_position:
        length = 1 + sum(math.prod(found.acceptance_by_position[: k + 1]) for k in range(tokens))
    assert length is not None
    return float(brentq(lambda rate: sum(rate**k for k in range(tokens + 1)) - length, 0.0, 1.0))


@computed
def draft_acceptance() -> Sequence[float]:
    return [accepted_fraction("draft-model", 5)]


@computed
def self_draft_acceptance() -> Sequence[float]:
    return [accepted_fraction("self-draft", 4)]


@computed
def ngram_acceptance() -> Sequence[float]:
    return [accepted_fraction("ngram", 10)]


@computed
def medusa_acceptance() -> Sequence[float]:
    return [accepted_fraction("medusa", 5)]


@computed
def eagle_acceptance() -> Sequence[float]:
    return [accepted_fraction("eagle", 5), accepted_fraction("eagle3", 7)]


@computed
def eagle3_code() -> Sequence[float]:
    return [row.speedup for row in speedups("llama-3.3-70b", "eagle3", acceptance="code", **BIG)]


@computed
def eagle3_chat() -> Sequence[float]:
    return [row.speedup for row in speedups("llama-3.3-70b", "eagle3", acceptance="chat", **BIG)]


# caches, cascades, batches


@computed
def prompt_cache_ttft() -> Sequence[float]:
    return [ttft_ms(kept, False) / ttft_ms(kept, True) for kept in (1024, 10_000, 100_000)]


@computed
def prompt_cache_price() -> Sequence[float]:
    from capacity.techniques.cache_curve import find_plan, relative_input_cost

    plan = find_plan("anthropic-5m")
    return [1 / relative_input_cost(hits, plan.write, plan.read) for hits in (0.5, 0.95)]


@computed
def cascade_saving() -> Sequence[float]:
    return savings((0.3, 0.0))


@computed
def router_saving() -> Sequence[float]:
    return savings((0.3, 0.05), escalate_by="prompt")


@computed
def semantic_cache() -> Sequence[float]:
    import capacity

    asked = {"api_input_price": 2.5, "api_output_price": 10.0, "request_rate": 1.0, **CHAT}
    found = [capacity.cascade("hosted", cache_hit_rate=hits, **asked) for hits in (0.2, 0.6)]
    return [1 / (1 - each.saved_fraction) for each in found]


@computed
def batch_discount() -> Sequence[float]:
    from capacity.planning.bills.batch_api import batch_prices

    return [price.multiple for price in batch_prices().values()]


# formulas


@computed
def flops_per_parameter() -> Sequence[float]:
    import capacity

    found = capacity.estimate("llama-3.1-70b", batch_size=1, input_len=1, output_len=2, **BIG)
    flops = BIG["tensor_parallel_size"] * sum(op.flops for op in found.breakdown.decode)
    return [flops / found.model.total_params]


@computed
def swiglu() -> Sequence[float]:
    from capacity.model import load_model

    spec = load_model("llama-2-7b")
    return [3 * spec.hidden_size * 11008 / spec.hidden_size**2]


@computed
def awq_70b_tokens() -> Sequence[float]:
    return [1 / tpot_s("llama-3.1-70b", 1, gpu="a100", quantization="awq", max_model_len=4096)]


@computed
def textbook_speculation() -> Sequence[float]:
    from capacity.pool.drafting import textbook_speedup

    return [textbook_speedup(0.8, 4, 0.1)]


@computed
def cents_per_1k() -> Sequence[float]:
    import capacity

    bill = capacity.cost("llama-2-7b", gpu="a100", price="3", input_len=400, output_len=100)
    return [100 * bill.full.usd_per_request * 10]


@computed
def int4_a100_ms() -> Sequence[float]:
    found = claimed_by_physics("decode, per token")
    return [found.ours, found.bound]


@computed
def tensorrt_a100() -> Sequence[float]:
    found = claimed_by_physics("TensorRT-LLM")
    return [found.ours, found.bound]
