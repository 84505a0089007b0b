"""Random deployments of one kind: what a few of `random_deployment`'s have, each of these has.

A kind and a seed are a deployment: `differing_of(kind, seed)` runs it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from random_deployments import Deployment, outcome, random_deployment, random_drafts, random_offload, unlike

from capacity.simulator import EngineSetup
from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.simulator.schedulers.lockstep import BALANCES
from capacity.step import AffineStepTimes
from capacity.workload import PromptContent, Workload

MOSTLY = 0.8


def plain(rng: random.Random, setup: EngineSetup) -> EngineSetup:
    """The same limits and cache under vLLM V1, without any other ability."""
    limits = replace(setup.limits, pipeline_stages=1)
    if rng.random() < MOSTLY:
        limits = replace(limits, prefill_schedule_interval=1)
    return replace(
        setup,
        policy=rng.choice(["vllm-v1", "vllm-v1-async"]),
        policy_options={},
        kv_contiguous_tokens=None,
        speculation=None,
        data_parallel_size=1,
        prompt_wait_steps=0,
        limits=limits,
    )


def staged(rng: random.Random, setup: EngineSetup) -> EngineSetup:
    """Synchronous mostly: an asynchronous engine with stages is decided row by row."""
    setup = plain(rng, setup)
    if rng.random() < MOSTLY:
        setup = replace(setup, policy="vllm-v1")
    return replace(setup, limits=replace(setup.limits, pipeline_stages=rng.choice([2, 3, 4])))


def drafted(rng: random.Random, setup: EngineSetup) -> EngineSetup:
    setup = plain(rng, setup)
    if rng.random() < MOSTLY:
        setup = replace(setup, policy="vllm-v1-async")
    return replace(setup, speculation=random_drafts(rng))


def offloaded(rng: random.Random, setup: EngineSetup) -> EngineSetup:
    return replace(
        plain(rng, setup), enable_prefix_caching=True, policy_options={"offload": random_offload(rng)}
    )


def ranked(rng: random.Random, setup: EngineSetup) -> EngineSetup:
    setup = replace(plain(rng, setup), data_parallel_size=rng.choice([2, 3]))
    if rng.random() < MOSTLY:
        return replace(setup, data_parallel_balance=rng.choice(list(BALANCES)))
    return replace(setup, policy="tensorrt-llm", prompt_wait_steps=rng.choice([1, 2, 3]), kv_windows=(None,))


KINDS: Mapping[str, Callable[[random.Random, EngineSetup], EngineSetup]] = {
    "stages": staged,
    "drafts": drafted,
    "offload": offloaded,
    "ranks": ranked,
}


def deployment_of(kind: str, seed: int) -> Deployment:
    """The workload and surroundings of `random_deployment`, its engines made to be of this kind."""
    workload, setups, keywords = random_deployment(seed)
    apart = any(setup.role != "both" for setup in setups)
    make = plain if apart and kind in ("drafts", "ranks") else KINDS[kind]
    ours = [make(random.Random(f"{kind} {seed}"), setup) for setup in setups]
    if workload.adapter is not None:
        workload = replace(workload, adapter=None)
    return workload, ours, keywords


def differing_of(kind: str, seed: int) -> list[str]:
    """In what the Python and the compiled engines differ."""
    deployment = deployment_of(kind, seed)
    return unlike(outcome(deployment, "events"), outcome(deployment, "core"))


# made for one rule each


def offloading(
    rows: list[list[tuple[int, int]]],
    arrival_s: list[float],
    outputs: list[int],
    *,
    num_blocks: int,
    budget: int,
    latency_s: float,
) -> tuple[Workload, list[EngineSetup]]:
    """Prompts of (text, tokens), and an engine that offloads its KV over a link without a rate."""
    workload = Workload(
        arrival_s=np.array(arrival_s),
        prompt_tokens=np.array([sum(length for _, length in row) for row in rows]),
        output_tokens=np.array(outputs),
        content=PromptContent.from_segments(rows, answer_ids=[100 + i for i in range(len(rows))]),
    )
    near = Tier(name="cpu", capacity_chunks=None, bytes_per_s=float("inf"), latency_s=latency_s)
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 1e-4),
        num_blocks=num_blocks,
        block_size=4,
        policy="vllm-v1",
        enable_prefix_caching=True,
        policy_options={"offload": Offload(tiers=(near,), block_bytes=1e3)},
    )
    limits = replace(setup.limits, max_num_batched_tokens=budget, max_model_len=400)
    return workload, [replace(setup, limits=limits)]


def equal_loads() -> Deployment:
    """Loads of two requests arrive at one instant; the first to wait for his runs first."""
    text = [[(1, 32), (10 + i, 4)] for i in range(2)] + [[(2, 32), (20 + i, 4)] for i in range(2)]
    rows = [text[0], text[2], [(3, 200)], text[1], text[3]]
    arrival_s, outputs = [0.0, 0.1, 0.2, 5.0, 5.0], [4, 4, 4, 40, 20]
    return *offloading(rows, arrival_s, outputs, num_blocks=52, budget=4, latency_s=0.05), {}


def cancelled_load() -> Deployment:
    """Clients time out after 1 s while their KV is loaded for 2 s; others run when it would have arrived."""
    rows = [[(1, 32), (10, 4)], [(3, 200)], [(1, 32), (11, 4)], [(5, 40)], [(1, 32), (12, 4)], [(6, 40)]]
    arrival_s, outputs = [0, 0.2, 4, 5.1, 5.2, 5.9], [4, 4, 4, 60, 4, 20]
    return *offloading(rows, arrival_s, outputs, num_blocks=52, budget=64, latency_s=2.0), {"timeout_s": 1.0}


def two_loads() -> Deployment:
    """Two different prefixes are loaded at once: neither request waits for the other's chunks."""
    first, second = [(1, 32), (2, 32)], [(4, 16), (3, 32)]
    rows = [[*first, (10, 4)], [*second, (12, 4)], [(5, 396)], [*first, (13, 4)], [*second, (14, 4)]]
    arrival_s, outputs = [0, 1, 4, 8, 8.1], [4] * 5
    return *offloading(rows, arrival_s, outputs, num_blocks=100, budget=64, latency_s=0.5), {}


MADE: Mapping[str, Callable[[], Deployment]] = {
    "equal loads": equal_loads,
    "cancelled load": cancelled_load,
    "two loads": two_loads,
}
