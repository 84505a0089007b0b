"""A resolved pool put to work: the workload that the traffic describes, through the engine's own scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from capacity.base.errors import InvalidInput
from capacity.deployment import Traffic
from capacity.pool import drafting as speculative
from capacity.pool.drafting import DraftedSteps, find_speculator
from capacity.pool.memory import GIB, MemoryPlan
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import FrontendTimes, SimulationResult, StepObserver, simulate_engine
from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.simulator.samples import parallel_samples
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.schedulers.sequence import DrawnSpeculation
from capacity.step import StepTimes, picoseconds
from capacity.workload import Workload, parse_slos
from capacity.workload.described import described

WINDOW_PAGE_TOKENS = 16
POLICIES_WITH_DRAFTS = ("vllm-v1", "vllm-v1-async")
POLICIES_WITH_OFFLOAD = ("vllm-v1", "vllm-v1-async")
LMCACHE_CHUNK_TOKENS = 256  # LMCache's default chunk_size


def make_workload(traffic: Traffic) -> Workload:
    """The requests that `traffic` describes: a trace, or lengths with a rate or a concurrency.

    Raises InvalidInput where it describes none, or two; MalformedFile for a trace that cannot be read.
    """
    if traffic.batch_size is not None:
        raise InvalidInput(
            "--batch-size is for `estimate`; to send N at once use --num-prompts N --request-rate inf"
        )
    workload = described(traffic)
    return workload if traffic.num_samples == 1 else parallel_samples(workload, traffic.num_samples)


def policy_name(resolved: ResolvedPool, scheduling: str = "continuous") -> str:
    """The scheduling policy of the engine's release, or plain static batching."""
    if scheduling == "static":
        return "static"
    name = resolved.engine.scheduler
    chosen = resolved.pool.async_scheduling
    if chosen is None or name not in ("vllm-v1", "vllm-v1-async"):
        return name
    return "vllm-v1-async" if chosen else "vllm-v1"


def scheduler_limits(resolved: ResolvedPool) -> SchedulerLimits:
    """The scheduler's limits and switches: the pool's where given, else the engine's."""
    pool = resolved.pool
    return SchedulerLimits(
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_scheduled_tokens,
        max_model_len=resolved.max_model_len,
        priority=pool.scheduling_policy == "priority",
        enable_chunked_prefill=resolved.chunked_prefill,
        long_prefill_token_threshold=pool.long_prefill_token_threshold,
        watermark=pool.watermark,
        reserve_full_isl=resolved.reserve_full_isl,
        prefill_schedule_interval=pool.prefill_schedule_interval,
        pipeline_stages=pool.pipeline_parallel_size,
    )


def engine_frontend(resolved: ResolvedPool) -> FrontendTimes:
    """What lies between the client and this engine, as the engine's data say."""
    engine = resolved.engine
    return FrontendTimes(
        request_latency_s=engine.request_latency_s,
        response_latency_s=engine.response_latency_s,
        output_token_s=engine.output_token_s,
        stream_interval=engine.stream_interval,
    )


def policy_options(resolved: ResolvedPool) -> dict[str, Any]:
    """The engine's own keywords of its scheduling policy."""
    if resolved.engine.scheduler == "tensorrt-llm" and resolved.engine.batch_wait_steps:
        return {"batch_wait_steps": resolved.engine.batch_wait_steps}
    return {}


BALANCES = {
    "sglang": "round-robin",
    "tensorrt-llm": "fewest-requests",
}  # of data-parallel ranks; others as vLLM


def offloading(resolved: ResolvedPool, policy: str) -> dict[str, Any]:
    """The keywords of the policy that say where KV goes which leaves the GPU; none where it is dropped.

    Raises InvalidInput where the engine, or the model's cache, does not go with it.
    """
    pool, plan = resolved.pool, resolved.memory
    if pool.preemption_mode == "swap":
        return _swapping(resolved, policy)
    if pool.kv_offloading_size is None:
        return {}
    if policy not in POLICIES_WITH_OFFLOAD or plan.layout.kv_windows != (None,):
        what = "windows or a recurrent state" if policy in POLICIES_WITH_OFFLOAD else resolved.engine.label
        raise InvalidInput(
            f"--kv-offloading-size is simulated for {' and '.join(POLICIES_WITH_OFFLOAD)} and full attention, not for "
            f"{what}: leave it out"
        )
    link = resolved.profile.pcie
    lmcache = pool.kv_offloading_backend == "lmcache"
    chunk_blocks = max(LMCACHE_CHUNK_TOKENS // plan.kv_block_tokens, 1) if lmcache else 1
    gpus = pool.tensor_parallel_size * pool.pipeline_parallel_size
    chunk_bytes = plan.kv_block_bytes * chunk_blocks * gpus
    tiers = [
        Tier(
            name="cpu",
            capacity_chunks=int(pool.kv_offloading_size * GIB // chunk_bytes),
            bytes_per_s=pool.kv_offloading_bytes_per_s or link.bytes_per_s,
            latency_s=0.0 if pool.kv_offloading_bytes_per_s == math.inf else link.latency_s,
        )
    ]
    if pool.kv_offloading_disk_size is not None:
        if pool.kv_offloading_disk_bytes_per_s is None:
            raise InvalidInput("--kv-offloading-disk-size needs --kv-offloading-disk-bytes-per-s")
        tiers.append(
            Tier(
                name="disk",
                capacity_chunks=int(pool.kv_offloading_disk_size * GIB // chunk_bytes),
                bytes_per_s=pool.kv_offloading_disk_bytes_per_s,
                latency_s=pool.kv_offloading_disk_latency_s,
            )
        )
    offload = Offload(
        tiers=tuple(tiers), block_bytes=plan.kv_block_bytes, chunk_blocks=chunk_blocks, synchronous=lmcache
    )
    return {"offload": offload}


def _swapping(resolved: ResolvedPool, policy: str) -> dict[str, Any]:
    pool, block_bytes = resolved.pool, resolved.memory.kv_block_bytes
    if policy != "vllm-v0":
        raise InvalidInput(
            f"--preemption-mode swap is of vLLM's V0 engine, and {resolved.engine.label} recomputes: use "
            "--engine vllm@0.6, or --kv-offloading-size"
        )
    return {
        "preemption_mode": "swap",
        "num_cpu_blocks": int(pool.swap_space * GIB // block_bytes),
        "swap_block_ps": picoseconds(block_bytes / resolved.profile.pcie.bytes_per_s),
        "block_bytes": block_bytes,
    }


def engine_settings(resolved: ResolvedPool, scheduling: str = "continuous") -> dict[str, Any]:
    """The keywords of `simulate_engine` that one engine of the pool needs: times, KV blocks, policy, limits, drafts.

    Raises InvalidInput where the policy cannot do what the pool asks of it.
    """
    plan, pool = resolved.memory, resolved.pool
    policy = policy_name(resolved, scheduling)
    settings: dict[str, Any] = {
        "step_times": resolved.step_model,
        **_kv_blocks(plan),
        "policy": policy,
        "policy_options": policy_options(resolved) | offloading(resolved, policy),
        "data_parallel_size": resolved.lockstep_ranks,
        "data_parallel_balance": BALANCES.get(resolved.engine.name, "published-queues"),
        "limits": scheduler_limits(resolved),
        "enable_prefix_caching": resolved.prefix_caching,
        "window_tokens": resolved.model.window_tokens,
        "kv_windows": plan.layout.kv_windows,
    }
    if pool.kv_layout == "contiguous":
        settings |= {"kv_contiguous_tokens": resolved.max_model_len, "enable_prefix_caching": False}
    if pool.speculator is not None:
        if resolved.lockstep_ranks > 1:
            raise InvalidInput(
                "drafts are not simulated over data-parallel ranks: leave out --speculator or -dp"
            )
        settings |= _drafting(resolved, settings)
    elif pool.num_speculative_tokens is not None or pool.acceptance is not None:
        raise InvalidInput("drafts need a way to draft: add --speculator (eagle3, ngram, mtp, ...)")
    return settings


def _kv_blocks(plan: MemoryPlan) -> dict[str, int]:
    """Usable blocks and their tokens; one-token pages of windowed caches in coarser ones.

    Keeping books of single tokens over several windows takes a simulation five times as long, and a request then
    holds at most WINDOW_PAGE_TOKENS - 1 tokens a group less.
    """
    blocks, tokens = plan.usable_blocks, plan.kv_block_tokens
    if len(plan.layout.kv_windows) > 1 and tokens < WINDOW_PAGE_TOKENS:
        coarser = WINDOW_PAGE_TOKENS // tokens
        return {"num_blocks": max(blocks // coarser, 1), "block_size": tokens * coarser}
    return {"num_blocks": blocks, "block_size": tokens}


def _drafting(resolved: ResolvedPool, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What drafting changes: every step with drafts pays for them, and the draft's weights and KV take blocks."""
    pool = resolved.pool
    if settings["policy"] not in POLICIES_WITH_DRAFTS:
        raise InvalidInput(
            f"drafts are scheduled under {' and '.join(POLICIES_WITH_DRAFTS)}; {resolved.engine.label} is "
            f"{settings['policy']}: use --engine vllm, or leave out --speculator"
        )
    speculator = find_speculator(pool.speculator or "")
    if pool.acceptance is not None:
        speculator = speculator.accepting(pool.acceptance)
    return drafted_settings(
        speculative.Speculation(resolved, speculator), pool.num_speculative_tokens, settings
    )


def drafting_notes(resolved: ResolvedPool) -> tuple[str, ...]:
    """What a reader must know of the pool's drafts: how many are accepted and by whose word; that a tree is one."""
    pool = resolved.pool
    if pool.speculator is None:
        return ()
    way = find_speculator(pool.speculator)
    depth = way.draft_tokens if pool.num_speculative_tokens is None else pool.num_speculative_tokens
    drawn = way if pool.acceptance is None else way.accepting(pool.acceptance)
    where = ", ".join(part for part in (drawn.basis, drawn.acceptance_model, drawn.source) if part)
    notes = (
        f"drafts by {way.name}, {depth} deep: {drawn.tokens_per_round(depth):.2f} tokens a step of a request on "
        f"average, by an acceptance that is {where}",
    )
    if way.tree_tokens is None:
        return notes
    return (
        *notes,
        f"{way.name} drafts a tree of {way.verified_tokens(depth)}, {depth} deep, for every request; vLLM drafts "
        "chains unless it is given a tree: `--speculator eagle3-chain` is one",
    )


def drafted_settings(
    speculation: speculative.Speculation,
    draft_tokens: int | None,
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """The keywords of `simulate_engine` that change with drafts.

    A tree takes a row, a slot of KV and a place in the token budget for each of its nodes, and is accepted by depth.
    """
    k = speculation.speculator.draft_tokens if draft_tokens is None else draft_tokens
    if k < 1:
        raise InvalidInput(f"{k} draft tokens: a simulation with drafts needs at least 1")
    memory, nodes = speculation.memory(), speculation.speculator.verified_tokens(k)
    return {
        "step_times": DraftedSteps(speculation, k),
        "num_blocks": settings["num_blocks"]
        * memory.kv_capacity_tokens_after
        // memory.kv_capacity_tokens_before,
        "speculation": DrawnSpeculation(
            speculation.speculator.rates(k), lookahead_slots=nodes, seed=seed, k=nodes
        ),
    }


def serve(
    resolved: ResolvedPool,
    workload: Workload,
    *,
    scheduling: str = "continuous",
    step_times: StepTimes | None = None,
    frontend: FrontendTimes | None = None,
    options: Mapping[str, Any] | None = None,
    goodput: Sequence[str] = (),
    sample_interval_s: float | None = None,
    keep_work: bool = False,
    keep_interrupted: bool = False,
    observer: StepObserver | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Simulate `workload` on one engine of the pool.

    `step_times`, `frontend` and `options` (of the policy) stand in for what the engine's data say.
    `goodput`: limits per request as `vllm bench serve` writes them ("ttft:500", ms). Raises Stalled.
    """
    settings = engine_settings(resolved, scheduling)
    if step_times is not None:
        settings["step_times"] = step_times
    if options is not None:
        settings["policy_options"] = options
    return simulate_engine(
        workload,
        **settings,
        frontend=frontend or engine_frontend(resolved),
        goodput_ms=goodput_ms(goodput),
        sample_interval_s=sample_interval_s,
        keep_work=keep_work,
        keep_interrupted=keep_interrupted,
        observer=observer,
        progress=progress,
    )


def goodput_ms(texts: Sequence[str]) -> dict[str, float] | None:
    """Limits per request from the words of `--goodput`, in ms by metric; None without any. Raises InvalidInput."""
    slos = parse_slos(texts)
    for slo in slos:
        if slo.percentile is not None:
            raise InvalidInput(
                f"--goodput {slo}: limits hold for every request here; leave the percentile out"
            )
    return {slo.metric: slo.limit_s * 1e3 for slo in slos} or None
