"""Simulator inputs of a resolved pool: the engine's settings (`EngineSetup`), the API server's times, the requests."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.base.record import make_from
from capacity.deployment import Traffic
from capacity.deployment.drafts import TREE
from capacity.pool import drafting as speculative
from capacity.pool.drafting import DraftedSteps, pool_speculator, speculators
from capacity.pool.memory import GIB, adapter_bytes
from capacity.pool.resolve import ResolvedPool
from capacity.simulator import EngineSetup, FrontendTimes
from capacity.simulator.installed_vllm.policy import use_installed
from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.simulator.samples import parallel_samples
from capacity.simulator.schedulers import (
    OPTIONAL_SETTINGS,
    SCHEDULERS,
    AdapterSlots,
    DrawnSpeculation,
    Policy,
    SchedulerLimits,
    find_policy,
    schedulers_with_ability,
    schedulers_with_setting,
)
from capacity.simulator.schedulers.lockstep import PUBLISHED_QUEUES
from capacity.simulator.schedulers.rules import NEUTRAL_SETTINGS, rules_without
from capacity.simulator.step_noise import make_step_noise
from capacity.simulator.verdict import FrontEndLimit
from capacity.step import picoseconds
from capacity.workload import Workload
from capacity.workload.request_generation import workload_of

LMCACHE_CHUNK_TOKENS = 256  # LMCache's default chunk_size


def make_workload(traffic: Traffic, max_model_len: int | None = None) -> Workload:
    """Return the requests that `traffic` describes: a trace, or lengths with a rate or a concurrency.

    If the traffic does not set the variation of lengths, requests have at most `max_model_len` tokens. Raises
    InvalidInput if the traffic describes no load or two loads, and MalformedFile for a trace that cannot be read.
    """
    if traffic.batch_size is not None:
        raise InvalidInput(
            "--batch-size is for `estimate`; to send N requests at once, use --num-prompts N --request-rate inf"
        )
    workload = _from_client(workload_of(traffic, max_model_len), traffic)
    return workload if traffic.num_samples == 1 else parallel_samples(workload, traffic.num_samples)


def requests_of(traffic: Traffic, workload: Workload | None, max_model_len: int | None = None) -> Workload:
    """Return the requests `workload`, or if it is None the requests that the traffic describes.

    The client latency is that of `workload` if it has one, else that of the traffic. Raises as `make_workload`.
    """
    if workload is None:
        return make_workload(traffic, max_model_len)
    return _from_client(workload, traffic)


def _from_client(workload: Workload, traffic: Traffic) -> Workload:
    if workload.client_latency_s is not None:
        return workload
    at_once = traffic.request_rate == math.inf and not workload.is_closed_loop
    offline = at_once and "client_latency_s" not in traffic.model_fields_set
    return replace(workload, client_latency_s=traffic.client_latency_s, offline=offline)


def policy_name(resolved: ResolvedPool, scheduling: str = "continuous") -> str:
    """Return the name of the engine release's scheduling policy, or "static" for static batching.

    On vLLM's Model Runner V1, pipeline stages are scheduled synchronously: an asynchronous engine also skips requests
    that are in flight. Source: vLLM pull request 32359, 2026-01. Model Runner V2 schedules them asynchronously.
    """
    if scheduling == "static":
        return "static"
    name = resolved.engine.scheduler
    scheduler, asynchronous = SCHEDULERS.get(name), resolved.pool.async_scheduling
    if resolved.overlapping_stages > 1 and not _schedules_stages_asynchronously(resolved):
        asynchronous = False
    if scheduler is None or asynchronous is None:
        return name
    return (scheduler.asynchronous if asynchronous else scheduler.synchronous) or name


def _schedules_stages_asynchronously(resolved: ResolvedPool) -> bool:
    engine, drafts = resolved.engine, (resolved.pool.speculator or "").removesuffix(TREE)
    return (
        "asynchronous_stages" not in engine.missing_scheduling_rules
        and drafts not in engine.synchronous_stage_drafts
    )


def scheduler_limits(resolved: ResolvedPool) -> SchedulerLimits:
    """Return the scheduler's limits and switches, with the engine's defaults for settings that are not given."""
    pool, step_tokens = resolved.pool, resolved.max_num_scheduled_tokens
    images = [tower.largest_image_tokens for tower in resolved.model.towers]
    return make_from(
        SchedulerLimits,
        pool,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=step_tokens,
        max_model_len=resolved.max_model_len,
        priority=pool.scheduling_policy == "priority",
        enable_chunked_prefill=resolved.chunked_prefill,
        reserve_full_isl=resolved.reserve_full_isl,
        pipeline_stages=resolved.overlapping_stages,
        rules=rules_without(resolved.engine.missing_scheduling_rules),
        # encoder budget and cache of a step: the step's tokens, but at least the largest image
        max_encoder_tokens=max(step_tokens, *images) if images else 0,
    )


def engine_frontend(resolved: ResolvedPool, workload: Workload | None = None) -> FrontendTimes:
    """Return the times of the front end between client and engine; the pool's values override the engine's defaults.

    For an offline `workload` the engine's CPU times per request, prompt token and streamed token are zero.
    """
    engine, pool = resolved.engine, resolved.pool
    offline = workload is not None and workload.offline

    def cpu_seconds(name: str) -> float:
        given = getattr(pool, f"front_end_{name}")
        if given is not None:
            return float(given)
        return 0.0 if offline else float(getattr(engine, name))

    return make_from(
        FrontendTimes,
        engine,
        processes=pool.api_server_count,
        **{name: cpu_seconds(name) for name in ("request_s", "input_token_s", "output_token_s")},
    )


def front_end_limit(pools: Sequence[ResolvedPool], workload: Workload) -> FrontEndLimit | None:
    """Return the maximum rate (requests/s) at which the API servers of all engines tokenize prompts like those of
    `workload` and stream their outputs; None if this work takes no time."""
    times = engine_frontend(pools[0], workload)
    messages = workload.output_tokens
    if times.stream_interval > 1:
        messages = np.minimum(messages, 1 + np.ceil((messages - 1) / times.stream_interval))
    work_s = float(messages.mean()) * times.output_token_s + times.work_s(
        float(workload.prompt_tokens.mean())
    )
    if not work_s:
        return None
    engines = sum(
        pool.pool.replicas * pool.independent_ranks for pool in pools if pool.pool.role != "prefill"
    )
    rate = times.processes * engines / work_s
    return FrontEndLimit(requests_per_s=rate, output_tokens_per_s=rate * float(workload.output_tokens.mean()))


def offline_notes(pools: Sequence[ResolvedPool], workload: Workload) -> tuple[str, ...]:
    """Return a note that the API server does not limit this offline batch; empty for other workloads."""
    whole = front_end_limit(pools, replace(workload, offline=False))
    if not workload.offline or whole is None or front_end_limit(pools, workload) is not None:
        return ()
    return (
        "All requests arrive at once without a client, so this is an offline batch without an API server. Set "
        f"--client-latency to include the server, which streams at most {whole.output_tokens_per_s:,.0f} output "
        "tokens/s.",
    )


def _offloading_keywords(resolved: ResolvedPool, policy: str | type[Policy]) -> dict[str, object]:
    """Return the arguments of the scheduling policy's class for KV offloading; empty without offloading.

    Raises InvalidInput if the engine or the model's cache does not support the offloading.
    """
    pool, plan = resolved.pool, resolved.memory
    if pool.preemption_mode == "swap":
        return _swap_keywords(resolved, policy)
    if pool.kv_offloading_size is None:
        return {}
    able = schedulers_with_ability("offloads")
    if policy not in able or plan.layout.kv_windows != (None,):
        what = "windowed attention or recurrent state" if policy in able else resolved.engine.label
        raise InvalidInput(
            f"--kv-offloading-size is simulated for {' and '.join(able)} with full attention, not for {what}"
        )
    link = resolved.profile.pcie
    lmcache = pool.kv_offloading_backend == "lmcache"
    chunk_blocks = max(LMCACHE_CHUNK_TOKENS // plan.kv_block_tokens, 1) if lmcache else 1
    gpus = pool.tensor_parallel_size * pool.pipeline_parallel_size
    chunk_bytes = plan.kv_block_bytes * chunk_blocks * gpus

    def tier(name: str, size_gib: float, bytes_per_s: float, latency_s: float) -> Tier:
        return Tier(
            name=name,
            capacity_chunks=int(size_gib * GIB // chunk_bytes),
            bytes_per_s=bytes_per_s,
            latency_s=latency_s,
        )

    cpu_rate, disk_rate = pool.kv_offloading_bytes_per_s, pool.kv_offloading_disk_bytes_per_s
    cpu_latency_s = 0.0 if cpu_rate == math.inf else link.latency_s
    tiers = [tier("cpu", pool.kv_offloading_size, cpu_rate or link.bytes_per_s, cpu_latency_s)]
    if pool.kv_offloading_disk_size is not None:
        if disk_rate is None:
            raise InvalidInput("--kv-offloading-disk-size needs --kv-offloading-disk-bytes-per-s")
        disk_latency_s = pool.kv_offloading_disk_latency_s
        tiers.append(tier("disk", pool.kv_offloading_disk_size, disk_rate, disk_latency_s))
    offload = Offload(
        tiers=tuple(tiers), block_bytes=plan.kv_block_bytes, chunk_blocks=chunk_blocks, synchronous=lmcache
    )
    return {"offload": offload}


def _adapter_keywords(resolved: ResolvedPool, policy: str | type[Policy]) -> dict[str, object]:
    """Return the arguments of the scheduling policy's class for loading LoRA adapters; empty without --max-loras.

    Raises InvalidInput if the simulated scheduler of this engine does not support adapters.
    """
    pool = resolved.pool
    if pool.max_loras is None:
        return {}
    able = schedulers_with_ability("adapts")
    if policy not in able:
        raise InvalidInput(
            f"--max-loras is simulated for {' and '.join(able)}, not for {resolved.engine.label}"
        )
    if pool.lora_read_bytes_per_s is not None and pool.max_cpu_loras is None:
        raise InvalidInput("--lora-read-bytes-per-s has no effect without --max-cpu-loras: leave it out")
    stages = range(pool.pipeline_parallel_size)
    loaded_bytes = max(adapter_bytes(resolved, stage) for stage in stages)
    read_bytes = adapter_bytes(resolved)
    link = resolved.profile.pcie
    slots = AdapterSlots(
        max_loras=pool.max_loras,
        max_cpu_loras=pool.max_cpu_loras,
        load_ps=picoseconds(link.latency_s + loaded_bytes / link.bytes_per_s),
        read_ps=picoseconds(read_bytes / pool.lora_read_bytes_per_s) if pool.lora_read_bytes_per_s else 0,
    )
    return {"adapters": slots}


def _swap_keywords(resolved: ResolvedPool, policy: str | type[Policy]) -> dict[str, object]:
    pool, block_bytes = resolved.pool, resolved.memory.kv_block_bytes
    if policy not in schedulers_with_ability("swaps"):
        raise InvalidInput(
            f"--preemption-mode swap exists only in vLLM's V0 engine; {resolved.engine.label} recomputes: use --engine "
            "vllm@0.6, or --kv-offloading-size"
        )
    return {
        "preemption_mode": "swap",
        "num_cpu_blocks": int(pool.swap_space * GIB // block_bytes),
        "swap_block_ps": picoseconds(block_bytes / resolved.profile.pcie.bytes_per_s),
        "block_bytes": block_bytes,
    }


def setup_of(resolved: ResolvedPool, scheduling: str = "continuous") -> EngineSetup:
    """Return the settings of one simulated engine: step times, KV blocks, scheduling policy, limits and drafts.

    All simulations of a pool use these settings. Raises DoesNotFit if the model does not fit, and InvalidInput if the
    scheduling policy does not support a setting of the pool.
    """
    plan, pool = resolved.memory.require_fit(), resolved.pool
    contiguous = pool.kv_layout == "contiguous"
    policy = find_policy(resolved.policy) if resolved.policy else policy_name(resolved, scheduling)
    # facts of the engine's release
    names = SCHEDULERS[policy].engine_options if isinstance(policy, str) and policy in SCHEDULERS else ()
    options: dict[str, object] = {name: value for name in names if (value := getattr(resolved.engine, name))}
    if plan.layout.window_share:
        options |= {"window": plan.layout.pool_window, "window_share": plan.layout.window_share}
    if pool.scheduler_recv_interval > 1 and isinstance(policy, str):
        options["recv_interval"] = pool.scheduler_recv_interval
    own = SCHEDULERS.get(resolved.engine.scheduler)
    _refuse_ignored_settings(resolved, policy)
    setup = EngineSetup(
        step_times=resolved.step_model,
        num_blocks=plan.usable_blocks,
        block_size=plan.kv_block_tokens,
        policy=policy,
        policy_options=options | _offloading_keywords(resolved, policy) | _adapter_keywords(resolved, policy),
        data_parallel_size=resolved.lockstep_ranks,
        data_parallel_balance=PUBLISHED_QUEUES if own is None else own.balance,
        limits=scheduler_limits(resolved),
        enable_prefix_caching=resolved.prefix_caching and not contiguous,
        window_tokens=resolved.model.window_tokens,
        kv_windows=plan.layout.kv_windows,
        kv_contiguous_tokens=resolved.max_model_len if contiguous else None,
        noise=make_step_noise(pool.step_noise, pool.step_noise_seed),
        launch_lag=resolved.step_model.launch_lag,
        label=f"{pool.num_gpus // resolved.independent_ranks} x {resolved.profile.name}",
        role=pool.role,
    )
    if pool.speculator is not None:
        setup = _with_drafts(resolved, setup)
    else:
        speculative.check_draft_settings(pool)
    return setup if resolved.vllm_scheduler is None else use_installed(setup, resolved.vllm_scheduler)


def ignored_setting_notes(pools: Sequence[ResolvedPool], traffic: Traffic) -> tuple[str, ...]:
    """Return a note if `--max-tokens` has no effect, because no engine's scheduler uses it; else empty."""
    heeding = schedulers_with_setting("max_tokens")
    if traffic.max_tokens is None or any(policy_name(pool, traffic.scheduling) in heeding for pool in pools):
        return ()
    return (
        f"--max-tokens has no effect under {pools[0].engine.label}, which reserves no KV cache for future output; "
        f"it is used by {', '.join(heeding)}.",
    )


def _refuse_ignored_settings(resolved: ResolvedPool, policy: str | type[Policy]) -> None:
    asked = resolved.pool
    scheduler = SCHEDULERS.get(policy) if isinstance(policy, str) else None
    if scheduler is None:
        return
    for name in OPTIONAL_SETTINGS:
        field = type(asked).model_fields.get(name)
        if field is None or getattr(asked, name) == field.default or name in scheduler.reads:
            continue
        flag = f"--{name.replace('_', '-')}"
        raise InvalidInput(
            f"{flag} has no effect under {resolved.engine.label}, whose scheduler is {policy}; it is used by "
            f"{', '.join(schedulers_with_setting(name))}: leave {flag} out"
        )
    for rule in resolved.engine.missing_scheduling_rules:
        setting, neutral = NEUTRAL_SETTINGS.get(rule, ("", None))
        for name in (setting, f"scheduler_{setting}"):
            value = getattr(asked, name, None)
            if name in scheduler.reads and value is not None and value != neutral:
                flag = f"--{name.replace('_', '-')}"
                raise InvalidInput(
                    f"{flag} has no effect under {resolved.engine.label}, only in newer releases: leave {flag} out"
                )


DRAFT_KINDS_OF_ENGINES = {  # engines that draft in a few ways, by the kinds of `speculators.toml`
    "tgi": ("lookup", "heads"),  # TGI docs, conceptual/speculation: Medusa and n-gram; 2026-11
    "llama.cpp": ("draft-model", "lookup"),  # --model-draft, n-grams: server README, from memory; 2026-11
    "ollama": (),  # assumed, because its server and Modelfile have no option for it; 2026-11
    "deepspeed-mii": (),  # FastGen documentation, quoted from memory; 2026-11
}


def _with_drafts(resolved: ResolvedPool, setup: EngineSetup) -> EngineSetup:
    """Return the setup with speculative decoding: longer steps, and fewer KV blocks because of the draft model."""
    pool, able = resolved.pool, schedulers_with_ability("drafts")
    if setup.policy not in able:
        raise InvalidInput(
            f"drafts are not simulated under {resolved.engine.label} (scheduler {setup.policy_name}), only under "
            f"{', '.join(able)}: use --engine vllm, or leave out --speculator"
        )
    speculator = pool_speculator(pool, resolved.model)
    own = DRAFT_KINDS_OF_ENGINES.get(resolved.engine.name)
    if own is not None and speculator.kind not in own:
        ways = " and ".join(way.name for way in speculators().values() if way.kind in own)
        way_out = f"supports only {ways}: use one of them, or" if ways else "does not draft: use"
        raise InvalidInput(f"--speculator {speculator.name}: {resolved.engine.label} {way_out} --engine vllm")
    speculation = speculative.Speculation(resolved, speculator)
    return with_drafts(setup, speculation, pool.num_speculative_tokens)


def with_drafts(
    setup: EngineSetup, speculation: speculative.Speculation, draft_tokens: int | None, *, seed: int = 0
) -> EngineSetup:
    """Return the setup with `draft_tokens` draft tokens per step (None: the method's default). Raises InvalidInput.

    Each node of a draft tree takes a token of the step's budget and a KV slot; each depth has its own acceptance rate.
    """
    k = speculation.speculator.depth(draft_tokens)
    if k < 1:
        raise InvalidInput(f"{k} draft tokens: speculative decoding needs at least 1")
    memory, nodes = speculation.memory(), speculation.speculator.verified_tokens(k)
    return replace(
        setup,
        step_times=DraftedSteps(speculation, k),
        num_blocks=setup.num_blocks * memory.kv_capacity_tokens_after // memory.kv_capacity_tokens_before,
        speculation=DrawnSpeculation(
            speculation.speculator.rates(k),
            lookahead_slots=nodes,
            seed=seed,
            k=nodes,
            spread=speculation.target.pool.acceptance_spread,
        ),
    )
