"""Small deployments in which single rules decide: those that random ones hardly ever touch, found by searching.

Each is a kind and a seed. Those of `RULED` show a wrong rule: the first of their kind, and the first optioned ones of
each policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from capacity_validate.replaying import _WithOverhead
from engine_runs import KneedStepTimes, random_content
from kinds_of_deployments import KINDS as ABILITIES
from random_deployments import (
    PAGED,
    POLICIES,
    Deployment,
    add_abilities,
    add_images,
    add_surroundings,
    choose_adapters,
    random_drafts,
    real_setup,
    split_prefill_and_decode,
)

from capacity.planning.evaluation.step_error import Factors, ScaledSteps
from capacity.simulator import EngineSetup
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.schedulers.rules import SchedulingRules, rules_without
from capacity.step import AffineStepTimes, SlowestRank
from capacity.workload import Workload

AFFINE = AffineStepTimes(0.01, 1e-4, per_context_token_s=1e-6)
RULES = [field.name for field in fields(SchedulingRules)]


def crowded(policy: str, rng: random.Random) -> Deployment:
    """Hardly any blocks, few tokens a step, texts in common: who runs is sent back, and hits what is left."""
    count, block_size = rng.randint(3, 14), rng.choice([1, 2, 4])
    prompts = [rng.randint(1, 24) for _ in range(count)]
    outputs = [rng.choice([1, rng.randint(2, 30)]) for _ in range(count)]
    workload = Workload(
        arrival_s=np.round(
            np.cumsum([rng.choice([0.0, 0.005, 0.05]) * rng.random() for _ in range(count)]), 3
        ),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        max_tokens=np.array([o + rng.choice([0, 0, 20]) for o in outputs]) if rng.random() < 0.3 else None,
        content=random_content(rng, prompts) if rng.random() < 0.6 else None,
        priority=np.array([rng.randint(0, 2) for _ in range(count)]),
    )
    longest = -(-max(p + o for p, o in zip(prompts, outputs, strict=True)) // block_size) + 1
    limits = SchedulerLimits(
        max_num_seqs=rng.choice([2, 4, 16]),
        max_num_batched_tokens=rng.choice([16, 24, 64]),
        max_model_len=80,
        priority=policy.startswith("vllm-v1") and rng.random() < 0.6,
    )
    setup = EngineSetup(
        step_times=AFFINE,
        policy=policy,
        limits=limits,
        block_size=block_size,
        num_blocks=longest + rng.choice([0, 1, 3, longest // 2]),
    )
    return workload, [setup], {}


def starved(policy: str, rng: random.Random) -> Deployment:
    """As crowded, with fewer tokens a step than would be computed, several prompts in parts at a time."""
    workload, (setup,), keywords = crowded(policy, rng)
    limits = replace(
        setup.limits,
        max_num_seqs=4,
        max_num_batched_tokens=rng.choice([5, 7, 10]),
        long_prefill_token_threshold=rng.choice([0, 2, 3]),
        priority=rng.random() < 0.8,
    )
    return workload, [replace(setup, limits=limits)], keywords


def whole_prompts(policy: str, rng: random.Random) -> Deployment:
    """As crowded, prompts in one piece; TensorRT-LLM pauses requests instead of reserving for them."""
    workload, (setup,), keywords = crowded(policy, rng)
    limits = replace(
        setup.limits,
        enable_chunked_prefill=False,
        max_num_batched_tokens=rng.choice([80, 96]),
        max_num_seqs=rng.choice([4, 8]),
    )
    options = {"capacity": "max_utilization"} if policy == "tensorrt-llm" else {}
    blocks = setup.num_blocks * rng.choice([1, 2, 4])
    return workload, [replace(setup, limits=limits, policy_options=options, num_blocks=blocks)], keywords


OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {  # values besides those of `add_abilities`
    "sglang": {
        "asynchronous": (True, False),
        "recv_interval": (1, 4),
        "conservativeness": (0.1, 1.0, 8.0),
        "ignore_eos": (False, True),
        "max_prefill_tokens": (64, 16384),
        "window": (2, 8),
        "window_share": (0.0, 0.3, 0.8),
    },
    "tensorrt-llm": {
        "asynchronous": (True, False),
        "prompts_per_step": (None, 1, 2),
        "batch_wait_tokens_fraction": (0.0, 0.5),
    },
    "tgi": {
        "asynchronous": (False, True),
        "waiting_served_ratio": (0.0, 0.3, 1.2),
        "max_waiting_steps": (0, 2, 20),
    },
}


def released(rng: random.Random, setup: EngineSetup) -> EngineSetup:
    """With the rules of any release, limits that it may lack, and KV windows."""
    limits = replace(
        setup.limits,
        rules=rules_without(rng.sample(RULES, rng.choice([0, 0, 3, 12]))),
        watermark=rng.choice([0.0, 0.1]),
        reserve_full_isl=rng.random() < 0.5,
        max_num_active_seqs=rng.choice([None, None, 3]),
        long_prefill_token_threshold=rng.choice([0, 0, 5]),
    )
    setup = replace(setup, limits=limits, step_times=rng.choice([AFFINE, KneedStepTimes(30)]))
    windows = rng.choice([(None,), (None,), (8,), (None, 8)]) if setup.policy in PAGED else (None,)
    return replace(setup, kv_windows=windows, num_blocks=setup.num_blocks * len(windows))


def able(
    make: Callable[[random.Random, EngineSetup], EngineSetup], policy: str, rng: random.Random
) -> Deployment:
    """As crowded, with one ability."""
    workload, (setup,), keywords = crowded(policy, rng)
    return workload, [make(rng, released(rng, setup))], keywords


def optioned(policy: str, rng: random.Random) -> Deployment:
    """As crowded, with the rules of any release, options, KV windows, and timeouts or prefill and decode apart."""
    workload, (setup,), keywords = crowded(policy, rng)
    setup = add_abilities(rng, released(rng, setup))
    options = {name: rng.choice(values) for name, values in OPTIONS.get(policy, {}).items()}
    setup = replace(setup, policy_options=setup.policy_options | options)
    if "adapters" in setup.policy_options:
        workload = choose_adapters(rng, workload)
    alone = setup.kv_contiguous_tokens is None and setup.data_parallel_size == 1
    if policy in PAGED and alone and rng.random() < 0.3:
        return workload, *split_prefill_and_decode(rng, setup, keywords)
    workload, (setup,) = add_images(rng, workload, [setup])
    add_surroundings(rng, setup, keywords)
    return workload, [setup], keywords | {"keep_work": True}


def split_offload(policy: str, rng: random.Random) -> Deployment:
    """Prefill here and decode there, each with chunks below the GPU."""
    workload, (setup,), keywords = able(ABILITIES["offload"], policy, rng)
    setups, keywords = split_prefill_and_decode(rng, setup, keywords)
    return workload, [replace(one, policy_options=setup.policy_options) for one in setups], keywords


def restricted(
    make: Callable[[str, random.Random], Deployment], policy: str, rng: random.Random
) -> Deployment:
    """The same with whole prompts or prefills that wait, a window of the step times, and now and then many blocks."""
    workload, setups, keywords = make(policy, rng)
    limits = replace(setups[0].limits, prefill_schedule_interval=rng.choice([1, 3]))
    if rng.random() < 0.5:
        limits = replace(limits, enable_chunked_prefill=False, max_num_batched_tokens=96)
    window, room = rng.choice([None, 6]), rng.choice([1, 1, 4])
    setups = [
        replace(setup, limits=limits, window_tokens=window, num_blocks=setup.num_blocks * room)
        for setup in setups
    ]
    if policy in PAGED and rng.random() < 0.5:
        keywords["timeout_s"] = rng.choice([0.05, 0.15])
    return workload, setups, keywords


def pictured(policy: str, rng: random.Random) -> Deployment:
    """As crowded, with images and audio, which a request that is sent back or given up still holds."""
    workload, setups, keywords = rng.choice([crowded, starved])(policy, rng)
    workload, setups = add_images(rng, replace(workload, content=None), setups)
    return workload, setups, keywords | {"timeout_s": rng.choice([None, 0.2])}


def late(policy: str, rng: random.Random) -> Deployment:
    """As crowded, with steps of days: simulated time ends before the last of them."""
    workload, (setup,), keywords = crowded(policy, rng)
    return workload, [replace(setup, step_times=AffineStepTimes(rng.choice([2e5, 7e5]), 0.0))], keywords


def drafting(policy: str, rng: random.Random) -> Deployment:
    """As crowded, with drafts; those who draft are stored as sums until blocks or the budget run out."""
    workload, (setup,), keywords = rng.choice([crowded, starved])(policy, rng)
    limits = replace(
        setup.limits,
        max_model_len=rng.choice([setup.limits.max_model_len, int(workload.prompt_tokens.max()) + 12]),
        max_num_batched_tokens=rng.choice([8, 24, 64]),
        max_num_seqs=rng.choice([2, 4, 8]),
    )
    blocks = setup.num_blocks * rng.choice([1, 1, 2])
    return (
        workload,
        [replace(setup, limits=limits, speculation=random_drafts(rng), num_blocks=blocks)],
        keywords | {"timeout_s": rng.choice([None, None, 0.3])},
    )


def quiet(policy: str, rng: random.Random) -> Deployment:
    """Some that generate for long, while samples are taken: steps on a line, one after the other."""
    count, block_size = rng.randint(2, 6), rng.choice([1, 4])
    prompts = [rng.randint(1, 12) for _ in range(count)]
    outputs = [rng.randint(20, 120) for _ in range(count)]
    workload = Workload(
        arrival_s=np.round(np.cumsum([rng.choice([0.0, 0.3]) * rng.random() for _ in range(count)]), 3),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
    )
    longest = -(-max(p + o for p, o in zip(prompts, outputs, strict=True)) // block_size) + 1
    setup = EngineSetup(
        step_times=AFFINE,
        policy=policy,
        limits=SchedulerLimits(max_num_seqs=16, max_num_batched_tokens=64, max_model_len=200),
        block_size=block_size,
        num_blocks=longest + rng.choice([0, 1, 2, longest // 2, 1000]),
    )
    return workload, [setup], {"sample_interval_s": rng.choice([None, 0.0371])}


def scaled(policy: str, rng: random.Random) -> Deployment:
    """As quiet, with step times that another object changes."""
    workload, (setup,), keywords = quiet(policy, rng)
    inner = rng.choice([SlowestRank(AFFINE), SlowestRank(KneedStepTimes(30)), real_setup(0).step_times])
    changed = rng.choice(
        [ScaledSteps(inner, Factors(prefill=1.3, decode=1.1)), _WithOverhead(inner, 1e-4), inner]
    )
    return workload, [replace(setup, step_times=changed)], keywords


def long_answers(policy: str, rng: random.Random) -> Deployment:
    """Answers of thousands of tokens among short ones."""
    outputs = [rng.choice([5, 40, rng.randint(2000, 4500)]) for _ in range(6)]
    workload = Workload(
        arrival_s=np.arange(6) * 1.7,
        prompt_tokens=np.array([rng.randint(1, 40) for _ in range(6)]),
        output_tokens=np.array(outputs),
    )
    limits = SchedulerLimits(max_num_seqs=16, max_num_batched_tokens=64, max_model_len=8000)
    setup = EngineSetup(step_times=AFFINE, policy=policy, limits=limits, num_blocks=3000)
    return workload, [setup], {}


def rented(policy: str, rng: random.Random) -> Deployment:
    """A pool as it would be rented, whose contexts grow past many knots of its step times."""
    workload = Workload(
        arrival_s=np.array([0.0, 0.5, 1.1]),
        prompt_tokens=np.array([rng.randint(1, 300) for _ in range(3)]),
        output_tokens=np.array([rng.randint(200, 500) for _ in range(3)]),
    )
    return workload, [replace(real_setup(0), policy=policy)], {}


KINDS: dict[str, Callable[[str, random.Random], Deployment]] = {
    "crowded": crowded,
    "starved": starved,
    "whole prompts": whole_prompts,
    "optioned": optioned,
    "restricted": partial(restricted, optioned),
    "restricted offload": partial(restricted, partial(able, ABILITIES["offload"])),
    "split offload": split_offload,
    "pictured": pictured,
    "late": late,
    "drafting": drafting,
    **{f"crowded {name}": partial(able, make) for name, make in ABILITIES.items()},
    "quiet": quiet,
    "scaled": scaled,
    "long answers": long_answers,
    "rented": rented,
}


def ruled(kind: str, policy: str, seed: int) -> Deployment:
    return KINDS[kind](policy, random.Random(seed))


RULED: tuple[tuple[str, str, int], ...] = (
    ("quiet", "vllm-v1", 0),
    ("quiet", "vllm-v1-async", 0),
    ("long answers", "vllm-v1", 1),
    ("rented", "vllm-v1", 0),
    ("rented", "vllm-v1-async", 0),
    ("crowded", "vllm-v1", 25),
    ("crowded", "sglang", 115),
    ("crowded", "sglang", 194),
    ("starved", "vllm-v1", 17),
    ("whole prompts", "tgi", 0),
    ("whole prompts", "tgi", 935),
    ("optioned", "tgi", 797),
    ("optioned", "vllm-v1", 57),
    ("restricted", "tgi", 61),
    *(("late", policy, 0) for policy in POLICIES),
    *(("starved", policy, seed) for policy in PAGED for seed in range(12)),
    *(("optioned", policy, seed) for policy in POLICIES for seed in range(20)),
    *(("restricted", policy, seed) for policy in POLICIES for seed in range(24)),
    *((kind, "vllm-v1", seed) for kind in ("restricted offload", "split offload") for seed in range(24)),
    *(("pictured", policy, seed) for policy in ("vllm-v1", "vllm-v1-async") for seed in range(24)),
    *(("drafting", "vllm-v1-async", seed) for seed in (*range(40), 135, 688, 1873)),
    *((f"crowded {name}", "vllm-v1", seed) for name in ABILITIES for seed in range(24)),
    *(("scaled", policy, seed) for policy in ("vllm-v1", "vllm-v1-async") for seed in range(6)),
)
