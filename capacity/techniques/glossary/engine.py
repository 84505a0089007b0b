"""Examples with the user's numbers for the terms of load, the engine's limits, and the hardware."""

from capacity.answers.startup import startup_of, startup_part
from capacity.techniques.glossary.term import GIB, Situation, milliseconds


def slo(s: Situation) -> str:
    e = s.estimate
    tpot = "" if e.tpot_s is None else f" and TPOT {milliseconds(e.tpot_s.value)}"
    return (
        f"at this load, the means meet limits down to TTFT {milliseconds(s.ttft_s)}{tpot}; `--slo ttft:p99:500ms` "
        "checks your own"
    )


def percentile(s: Situation) -> str:
    rate = s.estimate.requests_per_s.value
    return f"at {rate:,.1f} requests/s, {rate * 36:,.0f} requests per hour are slower than the p99"


def little(s: Situation) -> str:
    e = s.estimate
    rate = e.requests_per_s.value
    return f"{rate:,.2f} requests/s x {s.e2e_s:,.2f} s = {rate * s.e2e_s:,.1f} requests in flight"


def queueing_example(s: Situation) -> str:
    rate = s.estimate.requests_per_s.value
    return (
        f"this load completes {rate:,.2f} requests/s; if more arrive for a long time, the queue grows by the "
        f"difference (5 % more: {rate * 0.05 * 60:,.0f} requests per minute)"
    )


def burstiness(s: Situation) -> str:
    from scipy.stats import poisson

    rate = s.estimate.requests_per_s.value
    count = int(poisson.ppf(0.99, rate))
    return f"Poisson arrivals at your {rate:,.1f} requests/s: one second in a hundred has {count:,} or more"


def max_num_seqs(s: Situation) -> str:
    seats = s.pool.max_num_seqs
    binds = "max_num_seqs" if seats < s.held else "the KV cache"
    return (
        f"max_num_seqs is {seats:,}, and the KV cache holds {s.held:,} of your requests: {binds} is the limit"
    )


def graphs(s: Situation) -> str:
    e, engine = s.estimate, s.pool.engine
    most = s.pool.pool.max_cudagraph_capture_size
    sizes = engine.graph_batch_sizes(
        s.pool.max_num_seqs, s.pool.profile.architecture, model_type=s.pool.model.model_type, most=most
    )
    batch = e.batch_size or e.concurrency or 1
    if s.pool.pool.enforce_eager or not sizes:
        return f"{engine.label} uses none here: every step of your {batch} requests launches its kernels one by one"
    padded = next((size for size in sizes if size >= batch), None)
    if padded is None:
        return f"up to a batch of {sizes[-1]:,}; your {batch:,} requests run eagerly"
    return f"{len(sizes)} sizes up to {sizes[-1]:,}; your {batch:,} requests are padded to {padded:,}"


def host(s: Situation) -> str:
    operators = s.estimate.breakdown.decode or s.estimate.breakdown.prefill
    total = sum(op.seconds for op in operators)
    waiting = sum(op.seconds for op in operators if op.bound in ("host", "launch"))
    return f"{milliseconds(waiting)} of a step of {milliseconds(total)}, {waiting / total:.0%}"


def hbm(s: Situation) -> str:
    profile, weights_bytes = s.pool.profile, s.estimate.memory.weights_bytes
    once = milliseconds(weights_bytes / profile.hbm_bytes_per_s)
    beaten = "a step that touches every expert" if s.pool.model.is_moe else "any step"
    return (
        f"{profile.hbm_bytes_per_s / 1e12:,.2f} TB/s on {profile.name}: reading its {weights_bytes / GIB:,.1f} "
        f"GiB of weights once takes {once}, the minimum for {beaten}"
    )


def memory_efficiency(s: Situation) -> str:
    """Return a sentence on memory use: weights plus KV halfway through the responses, divided by the GPU's memory."""
    memory, e = s.pool.memory, s.estimate
    tokens = s.requests_in_flight * (e.input_len + e.output_len / 2)
    used = memory.kv_cache_bytes * min(1.0, tokens / max(memory.kv_capacity_tokens, 1))
    return (
        f"weights {memory.weights_bytes / GIB:,.1f} GiB and KV of requests {used / GIB:,.1f} GiB of "
        f"{memory.total_bytes / GIB:,.1f} GiB: {(memory.weights_bytes + used) / memory.total_bytes:.0%}; "
        f"{(memory.kv_cache_bytes - used) / GIB:,.1f} GiB of the KV cache are free"
    )


def start_up(s: Situation) -> str:
    """Return a sentence with the parts of the start-up time from public logs, and the time of `trtllm-build`."""
    found, build = startup_of(s.pool), startup_part("engine_build_s")
    built = (
        f"trtllm-build takes another {build.value:,.0f} s ({build.low:,.0f} to {build.high:,.0f}); "
        "TensorRT-LLM's PyTorch backend, the default since 1.0, builds no engine"
    )
    if found is None:
        return f"no start-up log of {s.pool.engine.label} on {s.pool.profile.name} is available; {built}"
    total = found.total_s
    parts = ", ".join(f"{name} {seconds.value:,.0f} s" for name, seconds in found.parts_s.items())
    return (
        f"{total.value:,.0f} s (90 % interval {total.low:,.0f} to {total.high:,.0f}) without caches: {parts}; "
        f"weights load at {found.weights_gb_per_s:.1f} GB/s per GPU (0.2 to 5 in public logs); compilation from "
        f"a cache takes 5 to 9 s; set your own time with --replica-startup-s; {built}"
    )


def kernel_fusion(s: Situation) -> str:
    """Return a sentence with the elementwise time of a decode step, the most that further kernel fusion can save."""
    decode = s.estimate.breakdown.decode
    total = sum(op.seconds for op in decode)
    elementwise = sum(op.seconds for op in decode if op.name == "norms, rope, activation")
    return (
        f"engines fuse kernels by default; norms, activations and quantization take {milliseconds(elementwise)} "
        f"of a decode step of {milliseconds(total)}, the most that further fusion can save. Published fusions of "
        "RMSNorm with quantization gain 1 to 5 %, less than the model's error, so no flag models them; "
        "--enforce-eager is modelled"
    )
