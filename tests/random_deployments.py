"""Random deployments over everything that both engines have, and what must be equal between them, bit for bit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
from engine_runs import COLUMNS, SETUP, random_run

from capacity.simulator import EngineSetup, FrontendTimes, SimulationResult, simulate
from capacity.simulator.fleet import Autoscaling, Failures
from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.simulator.schedulers import DrawnSpeculation, Speculation
from capacity.simulator.step_noise import step_noise
from capacity.simulator.transfer import KvLink
from capacity.workload import Workload

POLICIES = ("vllm-v1", "vllm-v1-async", "vllm-v0", "sglang", "tensorrt-llm", "tgi", "static", "slots")
PAGED = ("vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm", "tgi")
ROUTERS = ("round-robin", "least-outstanding", "least-kv", "prefix-aware")


def random_deployment(seed: int) -> tuple[Workload, list[EngineSetup], dict[str, Any]]:
    """A workload, the engines and the keywords of `simulate`."""
    rng = random.Random(~seed)
    workload, options = random_run(seed)
    if rng.random() < 0.3:
        workload = replace(workload, max_tokens=workload.output_tokens + rng.choice([0, 5, 60]))
    keywords = {name: value for name, value in options.items() if name not in SETUP}
    setup = EngineSetup(**{name: value for name, value in options.items() if name in SETUP})
    if rng.random() < 0.6:
        setup = replace(setup, policy=rng.choice(POLICIES))
    setup = _with_abilities(rng, setup)
    setups = [setup] * rng.choice([1, 1, 1, 2, 3])
    if setup.policy in PAGED and rng.random() < 0.15 and setup.data_parallel_size == 1:
        return workload, *_apart(rng, setup, keywords)
    if len(setups) > 1 or rng.random() < 0.3:
        keywords["router"] = rng.choice(ROUTERS)
    _surroundings(rng, setup, keywords)
    keywords["keep_work"] = True
    return workload, setups, keywords


def _with_abilities(rng: random.Random, setup: EngineSetup) -> EngineSetup:
    options: dict[str, Any] = {}
    match setup.policy:
        case "vllm-v1" | "vllm-v1-async":
            kind = rng.random()
            if kind < 0.25:
                setup = replace(setup, speculation=_drafts(rng))
            elif kind < 0.4 and setup.enable_prefix_caching and setup.kv_windows == (None,):
                options["offload"] = _offload(rng)
            elif kind < 0.5:
                setup = replace(setup, limits=replace(setup.limits, pipeline_stages=rng.choice([2, 3])))
            elif kind < 0.6:
                setup = replace(
                    setup, limits=replace(setup.limits, prefill_schedule_interval=rng.choice([2, 4]))
                )
        case "sglang":
            options = {"order": rng.choice(["fcfs", "lpm"]), "mixed_chunk": rng.random() < 0.3}
        case "tensorrt-llm":
            options = {"capacity": rng.choice(["guaranteed_no_evict", "max_utilization"])}
            options["batch_wait_steps"] = rng.choice([0, 0, 3])
        case "vllm-v0":
            setup = replace(setup, kv_windows=(None,))
            if rng.random() < 0.4:
                options = {
                    "preemption_mode": "swap",
                    "num_cpu_blocks": rng.choice([0, 5, 50]),
                    "swap_block_ps": 10**6,
                }
        case "static":
            options = {"batching_window_s": rng.choice([0.0, 0.05])}
        case "slots":
            options = {"max_waiting": rng.choice([None, 2])}
    if setup.policy in ("vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm") and rng.random() < 0.15:
        balance = rng.choice(["published-queues", "round-robin", "fewest-requests"])
        wait = rng.choice([0, 2]) if setup.policy == "tensorrt-llm" else 0
        setup = replace(
            setup,
            data_parallel_size=rng.choice([2, 3]),
            data_parallel_balance=balance,
            prompt_wait_steps=wait,
        )
    if rng.random() < 0.15:
        setup = replace(setup, noise=step_noise(rng.choice([0.017, 0.2]), seed=rng.randint(0, 9)))
    return replace(setup, policy_options=options)


def _drafts(rng: random.Random) -> Speculation:
    k = rng.randint(1, 4)
    if rng.random() < 0.4:
        return Speculation(k, tuple(rng.randint(0, k) for _ in range(3)), lookahead_slots=rng.choice([0, k]))
    rates = tuple(sorted((rng.random() for _ in range(k)), reverse=True))
    return DrawnSpeculation(
        rates,
        lookahead_slots=k,
        seed=rng.randint(0, 99),
        k=k + rng.choice([0, 2]),
        spread=rng.choice([0.0, 0.5]),
    )


def _offload(rng: random.Random) -> Offload:
    tiers = tuple(
        Tier(
            name=name,
            capacity_chunks=rng.choice([None, 3, 20]),
            bytes_per_s=rng.choice([1e6, 1e9, float("inf")]),
            latency_s=rng.choice([0.0, 0.001]),
        )
        for name in ("cpu", "disk")[: rng.choice([1, 2])]
    )
    return Offload(
        tiers=tiers, block_bytes=1e4, chunk_blocks=rng.choice([1, 2]), synchronous=rng.random() < 0.3
    )


def _surroundings(rng: random.Random, setup: EngineSetup, keywords: dict[str, Any]) -> None:
    """What stands before the engines, now and then."""
    aborts = setup.policy not in ("static", "slots", "vllm-v0")
    if rng.random() < 0.15:
        keywords["queue_limit"] = rng.choice([1, 3])
    if rng.random() < 0.15:
        keywords["outstanding_limit"] = rng.choice([1, 3])
    if rng.random() < 0.2 and aborts:
        keywords["timeout_s"] = rng.choice([0.05, 0.5])
    if rng.random() < 0.1:
        keywords["failures"] = Failures(
            mean_time_between_failures_s=rng.choice([0.3, 2.0]),
            recovery_s=0.2,
            requests=rng.choice(["restart", "fail"]),
        )
    if rng.random() < 0.1:
        keywords["scaling"] = Autoscaling(
            max_replicas=4, target_requests=2, startup_s=0.1, interval_s=0.1, scale_down_delay_s=0.2
        )
    if rng.random() < 0.25:
        keywords["frontend"] = FrontendTimes(
            request_latency_s=rng.choice([0.0, 0.01]),
            response_latency_s=rng.choice([0.0, 0.02]),
            output_token_s=rng.choice([0.0, 0.0, 0.001]),
            stream_interval=rng.choice([1, 1, 3]),
        )


def _apart(
    rng: random.Random, setup: EngineSetup, keywords: dict[str, Any]
) -> tuple[list[EngineSetup], dict[str, Any]]:
    """Prefill here, decode there."""
    setup = replace(
        setup, speculation=None, policy_options={}, limits=replace(setup.limits, pipeline_stages=1)
    )
    both = [replace(setup, role="prefill")] * rng.choice([1, 2]) + [
        replace(setup, role="decode")
    ] * rng.choice([1, 2])
    keywords["link"] = KvLink(
        bytes_per_token=1000.0,
        bytes_per_s=rng.choice([1e5, 1e7, float("inf")]),
        latency_s=rng.choice([0.0, 0.003]),
    )
    if rng.random() < 0.2:
        keywords["timeout_s"] = 0.5
    if rng.random() < 0.2:
        keywords["failures"] = Failures(mean_time_between_failures_s=1.0, recovery_s=0.2)
    return both, keywords


def differences(one: SimulationResult, other: SimulationResult) -> list[str]:
    """Names of everything in which two results are not equal, bit for bit."""
    ours, theirs = one.to_dict(), other.to_dict()
    found = [name for name in ours if ours[name] != theirs[name]]
    for column in (*COLUMNS, "preempted_ps"):
        if (getattr(one.records, column) != getattr(other.records, column)).any():
            found.append(column)
    found += [
        name
        for name in ("series", "load", "busy_s", "replicas")
        if getattr(one, name) != getattr(other, name)
    ]
    batches = [result.gaps.batches().histograms() for result in (one, other)]
    if not np.array_equal(*batches):
        found.append("batches of gaps")
    kinds = [[sorted(map(repr, work.kinds())) for work in result.step_work] for result in (one, other)]
    if kinds[0] != kinds[1]:
        found.append("step work")
    for name in ("prefilled_ps", "transfer_ps"):
        if getattr(one, name) is not None and (getattr(one, name) != getattr(other, name)).any():
            found.append(name)
    return found


def run_both(workload: Workload, setups: list[EngineSetup], keywords: dict[str, Any]) -> list[str]:
    """In what the readable and the compiled engines differ."""
    return differences(
        simulate(workload, setups, engine_loop="events", **keywords),
        simulate(workload, setups, engine_loop="core", **keywords),
    )
