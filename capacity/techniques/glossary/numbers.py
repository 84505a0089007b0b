"""Numbers for the example sentences in `sentences.toml`: one function for each sentence, with the sentence's name.

A function takes a pool with its estimate (`Situation`). It returns the numbers by name, or another text if the sentence
does not apply.
"""

from collections.abc import Callable, Mapping, Sequence

from capacity.answers.records import OperatorTime
from capacity.answers.startup import startup_of, startup_part
from capacity.base.errors import CapacityError, InvalidInput, OutsideValidity
from capacity.base.quantity import size_text
from capacity.model.quantization import weight_bytes
from capacity.pool.drafting import Speculation, expected_tokens, find_speculator
from capacity.pool.drafting.lossy import early_exit_share, threshold_acceptance
from capacity.step import prefill_shape
from capacity.step.expert_load import distinct_experts
from capacity.step.layers.feed_forward import routing_gamma_shape
from capacity.techniques.attention_io import attention_io
from capacity.techniques.batch_waste import exponential_slot_gain
from capacity.techniques.glossary.term import GIB, Situation
from capacity.techniques.kv_bytes import limited_attention, request_kv_bytes
from capacity.techniques.kv_eviction import BUDGET_TOKENS, eviction_rows, selected_methods
from capacity.techniques.long_context import (
    context_parallel_prefill,
    decode_crossover_tokens,
    offload,
    prefill_crossover_tokens,
)
from capacity.techniques.quantization_methods import find_method
from capacity.techniques.scaling import (
    all_reduce_bytes_per_token,
    expert_imbalance,
    pipeline_bubble_fraction,
    routed_experts,
)

Numbers = Mapping[str, object] | str
EXAMPLE_ACCEPTANCE, EXAMPLE_DRAFTS = 0.7, 3
EXAMPLE_WINDOW, EXAMPLE_SINKS = 4096, 4


# latency, throughput, KV, parallelism and cost


def ttft(s: Situation) -> Numbers:
    return {"queueing": "for a batch, without queueing" if s.estimate.batch_size else "including queueing"}


def tpot(s: Situation) -> Numbers:
    tpot = s.estimate.tpot_s
    return "TPOT is undefined for a single output token" if tpot is None else {"rate": 1 / tpot.value}


def e2e(s: Situation) -> Numbers:
    tpot = s.estimate.tpot_s
    return {"steps": s.estimate.output_len - 1, "tpot_s": 0.0 if tpot is None else tpot.value}


def ridge(s: Situation) -> Numbers:
    decode = s.estimate.arithmetic_intensity.decode_flops_per_byte
    return {"decode": "-" if decode is None else f"{decode:,.0f}"}


def paged_attention(s: Situation) -> Numbers:
    e, tokens = s.estimate, s.tokens
    blocks = -(-tokens // e.kv_block_tokens)
    waste = 1 - tokens / (blocks * e.kv_block_tokens)
    return {"blocks": blocks, "waste": waste, "waste_if_reserved": 1 - tokens / e.max_model_len}


def chunked_prefill(s: Situation) -> Numbers:
    steps = -(-s.estimate.input_len // s.pool.max_num_batched_tokens)
    return {"state": "on" if s.pool.chunked_prefill else "off", "steps": steps}


def acceptance(s: Situation) -> Numbers:
    chain = find_speculator("eagle").with_acceptance(str(EXAMPLE_ACCEPTANCE))
    drafted = Speculation(s.pool, chain).round_of(s.requests_in_flight, s.estimate.input_len, EXAMPLE_DRAFTS)
    return {
        "acceptance": EXAMPLE_ACCEPTANCE,
        "drafts": EXAMPLE_DRAFTS,
        "tokens": expected_tokens(EXAMPLE_ACCEPTANCE, EXAMPLE_DRAFTS),
        "speedup": drafted.speedup,
    }


def bandwidth_share(s: Situation) -> Numbers:
    operators = s.estimate.breakdown.decode
    if not operators:
        return "a single output token needs no decode step"
    return {"bytes_per_s": sum(op.bytes for op in operators) / _seconds(operators)}


def flops_share(s: Situation) -> Numbers:
    operators = s.estimate.breakdown.prefill
    rate = sum(op.flops for op in operators) / _seconds(operators)
    return {"rate": rate, "peak": s.pool.ridge_flops_per_byte * s.pool.profile.hbm_bytes_per_s}


def _seconds(
    operators: Sequence[OperatorTime], counted: Callable[[OperatorTime], bool] = lambda _: True
) -> float:
    """Return the total time (s) of the operators for which `counted` returns true; by default of all."""
    return sum(op.seconds for op in operators if counted(op))


def tensor_parallelism(s: Situation) -> Numbers:
    operators = s.estimate.breakdown.decode or s.estimate.breakdown.prefill
    sending = _seconds(operators, lambda op: op.bound == "communication")
    return {"share": sending / _seconds(operators)}


def experts(s: Situation) -> Numbers:
    model = s.pool.model
    if model.is_moe:
        return {}
    return f"{model.name} is dense: every token uses all {model.total_params / 1e9:,.1f} B parameters"


def cost(s: Situation) -> Numbers:
    return "no price: add --price-tier or --price" if s.estimate.cost is None else {}


# load, engine limits and hardware


def slo(s: Situation) -> Numbers:
    tpot = s.estimate.tpot_s
    return {"tpot": "" if tpot is None else f" and TPOT {tpot.value * 1e3:,.1f} ms"}


def percentile(s: Situation) -> Numbers:
    return {"slow_per_hour": s.estimate.requests_per_s.value * 36}


def little(s: Situation) -> Numbers:
    return {"in_flight": s.estimate.requests_per_s.value * s.e2e_s}


def queue_growth(s: Situation) -> Numbers:
    return {"growth_per_minute": s.estimate.requests_per_s.value * 0.05 * 60}


def burstiness(s: Situation) -> Numbers:
    from scipy.stats import poisson

    return {"count": int(poisson.ppf(0.99, s.estimate.requests_per_s.value))}


def max_num_seqs(s: Situation) -> Numbers:
    return {"limit": "max_num_seqs" if s.pool.max_num_seqs < s.held else "the KV cache"}


def graphs(s: Situation) -> Numbers:
    e, engine = s.estimate, s.pool.engine
    sizes = engine.graph_batch_sizes(
        s.pool.max_num_seqs,
        s.pool.profile.architecture,
        model_type=s.pool.model.model_type,
        most=s.pool.pool.max_cudagraph_capture_size,
        padding=s.pool.pool.cudagraph_padding,
    )
    batch = e.batch_size or e.concurrency or 1
    if s.pool.pool.enforce_eager or not sizes:
        return f"{engine.label} uses no CUDA graphs here: each step of {batch} requests launches its kernels one by one"
    if batch > sizes[-1]:
        return f"up to a batch of {sizes[-1]:,}; your {batch:,} requests run eagerly"
    if s.pool.step_model.graph_rows(batch) is None:
        return f"{len(sizes)} sizes up to {sizes[-1]:,} without padding; your {batch:,} requests run eagerly"
    padded = next(size for size in sizes if size >= batch)
    return {"count": len(sizes), "largest": sizes[-1], "batch": batch, "padded": padded}


def host(s: Situation) -> Numbers:
    operators = s.estimate.breakdown.decode or s.estimate.breakdown.prefill
    waiting_s = _seconds(operators, lambda op: op.bound in ("host", "launch"))
    return {"waiting_s": waiting_s, "step_s": _seconds(operators), "share": waiting_s / _seconds(operators)}


def hbm(s: Situation) -> Numbers:
    return {
        "read_s": s.estimate.memory.weights_bytes / s.pool.profile.hbm_bytes_per_s,
        "step": "a step that touches every expert" if s.pool.model.is_moe else "any step",
    }


def memory_efficiency(s: Situation) -> Numbers:
    """Return the bytes that weights and KV use, with all requests halfway through their outputs, and the free bytes."""
    memory, e = s.pool.memory, s.estimate
    tokens = s.requests_in_flight * (e.input_len + e.output_len / 2)
    used = memory.kv_cache_bytes * min(1.0, tokens / max(memory.kv_capacity_tokens, 1))
    productive = memory.weights_bytes + used
    return {"used_bytes": used, "productive_bytes": productive, "free_bytes": memory.kv_cache_bytes - used}


def start_up(s: Situation) -> Numbers:
    """Return the start-up time of each phase, from public logs, and the time of `trtllm-build`."""
    found, build = startup_of(s.pool), startup_part("engine_build_s")
    built = (
        f"trtllm-build takes another {build.value:,.0f} s ({build.low:,.0f} to {build.high:,.0f}); "
        "TensorRT-LLM's PyTorch backend, the default since 1.0, builds no engine"
    )
    if found is None:
        return f"no start-up log of {s.pool.engine.label} on {s.pool.profile.name} is available; {built}"
    parts = ", ".join(f"{name} {seconds.value:,.0f} s" for name, seconds in found.parts_s.items())
    return {"total": found.total_s, "parts": parts, "rate": found.weights_gb_per_s, "built": built}


def kernel_fusion(s: Situation) -> Numbers:
    """Return the time of a decode step's elementwise kernels, the most that further kernel fusion can save."""
    decode = s.estimate.breakdown.decode
    elementwise_s = _seconds(decode, lambda op: op.name == "norms, rope, activation")
    return {"elementwise_s": elementwise_s, "step_s": _seconds(decode)}


# caches and attention


def prefix_caching(s: Situation) -> Numbers:
    steps, tokens, window = s.pool.step_model, s.estimate.input_len, s.pool.model.window_tokens
    rest = prefill_shape(1, 1, cached_tokens=tokens - 1, window_tokens=window)
    return {
        "state": "on" if s.pool.prefix_caching else "off",
        "cached_s": steps.step_seconds(rest),
        "whole_s": steps.step_seconds(prefill_shape(1, tokens, window_tokens=window)),
    }


def kv_load_time(s: Situation) -> Numbers:
    fetched = offload(s.pool, s.estimate.input_len)
    return {"size": size_text(fetched.bytes), "load_s": fetched.load_s, "recompute_s": fetched.recompute_s}


def disaggregation(s: Situation) -> Numbers:
    link = s.pool.profile.inter_node
    size = s.estimate.kv_bytes_per_token * s.estimate.input_len
    seconds = link.latency_s + size / (link.bytes_per_s * s.pool.pool.num_gpus)
    return {"size": size_text(size), "seconds": seconds}


def kv_format(s: Situation) -> Numbers:
    formats = ("bf16", "fp8", "int8", "int4")
    sizes = ((name, request_kv_bytes(s.pool.model, s.tokens, name) / GIB) for name in formats)
    return {"sizes": ", ".join(f"{name} {size:,.2f}" for name, size in sizes)}


def windows(s: Situation) -> Numbers:
    model = s.pool.model
    own = f"a window of {model.window_tokens:,} tokens" if model.window_tokens else "no attention window"
    full, _, streaming, _ = limited_attention(
        model, s.tokens, window_tokens=EXAMPLE_WINDOW, sink_tokens=EXAMPLE_SINKS
    )
    sizes = {"full_bytes": full.kv_bytes, "streaming_bytes": streaming.kv_bytes}
    return {"own": f"{model.name} has {own}", "sinks": EXAMPLE_SINKS, "window": EXAMPLE_WINDOW, **sizes}


def eviction(s: Situation) -> Numbers:
    whole, kept = eviction_rows(
        s.pool.model,
        s.pool,
        selected_methods("snapkv"),
        context_tokens=s.tokens,
        budget_tokens=BUDGET_TOKENS,
        batch_size=s.requests_in_flight,
        kv_cache_dtype=s.pool.kv_cache_dtype,
    )
    return {"budget": BUDGET_TOKENS, "kept": kept, "whole": whole}


def crossover(s: Situation) -> Numbers:
    try:
        prefill = f"{prefill_crossover_tokens(s.pool.model):,.0f} tokens in prefill"
    except OutsideValidity:
        prefill = "no layer attends to its whole context in prefill"
    decode = decode_crossover_tokens(s.pool, s.requests_in_flight)
    return {"prefill": prefill, "decode": "no context" if decode is None else f"{decode:,} tokens"}


def flash_attention(s: Situation) -> Numbers:
    try:
        return {"io": attention_io(s.pool, s.estimate.input_len)}
    except InvalidInput as error:
        return f"not computed here ({error}); your prompt has {s.estimate.input_len:,} tokens"


# batching, parallelism, speculation and formats


def continuous_batching(s: Situation) -> Numbers:
    return {"gain": exponential_slot_gain(s.requests_in_flight)}


def static_batching(s: Situation) -> Numbers:
    return {"waste": 1 - 1 / exponential_slot_gain(s.requests_in_flight)}


def pipeline(s: Situation) -> Numbers:
    stages = max(s.pool.pool.pipeline_parallel_size, 2)
    chunks = -(-s.estimate.input_len // s.pool.max_num_batched_tokens)
    return {"chunks": chunks, "stages": stages, "idle": pipeline_bubble_fraction(stages, chunks)}


def expert_parallel(s: Situation) -> Numbers:
    part = routed_experts(s.pool.model)
    if part is None:
        return f"{s.pool.model.name} has no experts to distribute"
    ranks = max(s.pool.pool.tensor_parallel_size, 2)
    chosen, evenness = (
        (part.num_experts, part.experts_per_token, s.requests_in_flight),
        routing_gamma_shape(part),
    )
    return {
        "read": distinct_experts(*chosen, evenness),
        "experts": part.num_experts,
        "ranks": ranks,
        "imbalance": expert_imbalance(*chosen, ranks, evenness),
    }


def data_parallel(s: Situation) -> Numbers:
    return {"most": max(s.pool.model.num_kv_heads, 1)}


def context_parallel(s: Situation) -> Numbers:
    tokens = s.estimate.input_len
    ranks = [count for count in (1, 2, 4, 8) if count <= tokens]
    prefills = context_parallel_prefill(s.pool, tokens, ranks)
    return {"times": ", ".join(f"{over.ranks}: {over.seconds * 1e3:,.1f} ms" for over in prefills)}


def all_reduce(s: Situation) -> Numbers:
    ranks = max(s.pool.pool.tensor_parallel_size, 2)
    sent = all_reduce_bytes_per_token(s.pool.model.hidden_size, s.pool.model.num_layers, ranks)
    return {"ranks": ranks, "sent_bytes": sent}


def draft_tree(s: Situation) -> Numbers:
    way, requests = find_speculator("eagle2-tree"), s.requests_in_flight
    speculation = Speculation(s.pool, way)
    chain = speculation.round_of(requests, s.estimate.input_len, way.draft_tokens, way.draft_tokens)
    return {"tree": speculation.round_of(requests, s.estimate.input_len), "chain": chain}


def draft_model(_: Situation) -> Numbers:
    way = find_speculator("draft-model")
    return {"tokens": way.tokens_per_round(way.draft_tokens), "measured_on": way.acceptance_model}


def draft_speedup(s: Situation, preset: str) -> Numbers:
    """Return a draft method's published acceptance length and its speedup on the user's pool."""
    way = find_speculator(preset)
    published = (
        f"{way.tokens_per_round(way.draft_tokens):.2f} tokens per step published ({way.acceptance_model})"
    )
    try:
        drafted = Speculation(s.pool, way).round_of(s.requests_in_flight, s.estimate.input_len)
    except CapacityError as error:
        return f"{published}; not possible here: {error}"
    return {"published": published, "speedup": drafted.speedup}


def early_exit(s: Situation) -> Numbers:
    return {
        "alone": early_exit_share(0.5, 0.8, 1),
        "together": early_exit_share(0.5, 0.8, s.requests_in_flight),
    }


def typical_acceptance(s: Situation) -> Numbers:
    found = threshold_acceptance((0.6, 0.3, 0.1), (0.3, 0.6, 0.1), 0.2)
    return {"own": s.pool.pool.speculator or "no drafts", "found": found}


def weight_format(s: Situation, preset: str) -> Numbers:
    """Return a quantization method's bits, weight size, compute format and published quality."""
    way = find_method(preset)
    scheme = way.scheme(s.pool)
    stored = scheme.format_of("experts" if s.pool.model.is_moe else "dense_ffn")
    return {
        "bits": stored.bits_per_weight,
        "weights_bytes": weight_bytes(s.pool.model, scheme),
        "compute": stored.execution(s.pool.profile.dense_flops_per_s).compute_dtype,
        "quality": f"; {way.quality[0].text}" if way.quality else "",
    }


def quality(_: Situation) -> Numbers:
    methods = map(find_method, ("awq-int4", "gptq-int4", "smoothquant"))
    return {"published": "; ".join(f"{way.title}: {way.quality[0].text}" for way in methods)}
