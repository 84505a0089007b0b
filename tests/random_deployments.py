"""Random deployments over everything that both engines have, and what must be equal between them, bit for bit.

A seed is a deployment: a number in a report can be run again (`differing(seed)`).
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import numpy as np
from engine_runs import COLUMNS, SETUP, KneedStepTimes, random_content, random_run
from step_models import FunctionStepTimes

from capacity.answers.engine_setup import setup_of
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, build
from capacity.deployment.routing import Forecast, PoolLimits
from capacity.pool.resolve import resolve
from capacity.simulator import EngineSetup, FrontendTimes, SimulationResult, simulate
from capacity.simulator.escalation import Escalation
from capacity.simulator.fleet import Autoscaling, Failures
from capacity.simulator.kv_cache.offload import Offload, Tier
from capacity.simulator.members import EngineLoop
from capacity.simulator.schedulers import AdapterSlots, DrawnSpeculation, Speculation
from capacity.simulator.step_noise import make_step_noise
from capacity.simulator.transfer import KvLink
from capacity.step import AffineStepTimes, StepShape
from capacity.workload import LognormalLengths, PromptContent, SteadyArrivals, Workload, synthetic

POLICIES = ("vllm-v1", "vllm-v1-async", "vllm-v0", "sglang", "tensorrt-llm", "tgi", "static", "slots")
PAGED = ("vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm", "tgi")
ROUTERS = ("round-robin", "least-outstanding", "least-kv", "prefix-aware")


REAL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", {"gpu": "a100-sxm-80gb"}),
    ("llama-3.1-8b", {"gpu": "a100-sxm-80gb", "engine": "sglang"}),
    ("llama-3.1-8b", {"gpu": "a100-sxm-80gb", "engine": "tensorrt-llm"}),
    ("llama-3.1-8b", {"gpu": "a100-sxm-80gb", "engine": "tgi"}),
    ("llama-3.1-8b", {"gpu": "a100-sxm-80gb", "engine": "vllm@0.6"}),
    ("llama-3.1-70b", {"gpu": "h100-sxm-80gb", "pipeline_parallel_size": 4}),
    ("gemma-3-12b", {"gpu": "a100-sxm-80gb", "engine": "vllm@0.11", "top_p": 0.9, "repetition_penalty": 1.1}),
    ("gpt-oss-20b", {"gpu": "a100-sxm-80gb"}),
    ("deepseek-v3", {"gpu": "h200-sxm-141gb", "data_parallel_size": 8, "enable_expert_parallel": True}),
    ("qwen3-next-80b-a3b", {"gpu": "h200-sxm-141gb", "tensor_parallel_size": 4}),
)  # pools whose step times, limits and options are those that `capacity simulate` would take


@functools.cache
def real_setup(which: int) -> EngineSetup:
    model, fields = REAL[which]
    return setup_of(resolve(model, build(Pool, fields, flags=True)))


def random_deployment(seed: int) -> tuple[Workload, list[EngineSetup], dict[str, Any]]:
    """A workload, the engines and the keywords of `simulate`; some stand one after another, as a cascade, and some
    before a router that expects first tokens in time."""
    workload, setups, keywords = _random_deployment(seed)
    workload, setups = add_images(random.Random(f"images {seed}"), workload, setups)
    rng = random.Random(f"cascade {seed}")
    chance = rng.random()
    if chance > 0.6 or len(setups) < 2 or setups[0].role != "both":
        return workload, setups, keywords
    pools = rng.randint(2, len(setups))
    places = [min(number, pools - 1) for number in range(len(setups))]
    if chance > 0.4:
        expected = [
            Forecast(rng.choice([0.05, 0.5, 5.0]), 0.01, rng.choice([1e-5, 1e-3]), rng.choice([0.0, 1e-5]))
            for _ in range(pools)
        ]
        keywords["router"] = "within-ttft"
        takes = [PoolLimits(place, forecast=expected[place]) for place in places]
        return (
            workload,
            [replace(setup, takes=each) for setup, each in zip(setups, takes, strict=True)],
            keywords,
        )
    keywords["router"] = "cascade"
    keywords["cascade"] = Escalation(
        rates=tuple(rng.choice([0.0, 0.3, 0.7, 1.0]) for _ in range(pools - 1)),
        by_answer=rng.random() < 0.7,
        judge_s=rng.choice([0.0, 0.05]),
        cache_hit_rate=rng.choice([0.0, 0.0, 0.4]),
        lookup_s=rng.choice([0.0, 0.02]),
    )
    return (
        workload,
        [replace(setup, takes=PoolLimits(place)) for setup, place in zip(setups, places, strict=True)],
        keywords,
    )


def add_images(
    rng: random.Random, workload: Workload, setups: list[EngineSetup]
) -> tuple[Workload, list[EngineSetup]]:
    """Some prompts that share nothing get images, an audio clip or both, before an encoder that has little space."""
    limits, policy, options = setups[0].limits, setups[0].policy, setups[0].policy_options
    able = (
        policy in ("vllm-v1", "vllm-v1-async") and limits.enable_chunked_prefill and "offload" not in options
    )
    shares = workload.content is not None or workload.sample_of is not None
    real = hasattr(setups[0].step_times, "model")
    if not able or shares or real or limits.pipeline_stages > 1 or rng.random() > 0.4:
        return workload, setups
    kinds = rng.choice([("images",), ("audio",), ("images", "audio")])
    sizes = [rng.randint(1, 90) for _ in range(len(workload))]
    columns: dict[str, list[int]] = {"images": [], "image_tokens": [], "audio_tokens": []}
    for prompt, size in zip(workload.prompt_tokens.tolist(), sizes, strict=True):
        images = min(rng.randint(0, 4), prompt // size) if "images" in kinds else 0
        clip = min(rng.choice([0, 1, 30, 100]), prompt - images * size) if "audio" in kinds else 0
        for column, value in zip(
            columns.values(), (images, size if "images" in kinds else 0, clip), strict=True
        ):
            column.append(value)
    largest = max(max(columns["image_tokens"]), max(columns["audio_tokens"]), 1)
    space = round(largest * rng.choice([1, 1.5, 4]))

    def step_s(shape: StepShape) -> float:
        tokens = shape.num_tokens * 1e-4 + shape.encoder_tokens * 2e-4 + shape.audio_tokens * 3e-4
        return 0.01 + tokens + (shape.encoder_pairs + 2 * shape.audio_pairs) * 1e-7

    changed = {"step_times": FunctionStepTimes(step_s), "limits": replace(limits, max_encoder_tokens=space)}
    if "audio" not in kinds:
        del columns["audio_tokens"]
    return (
        replace(workload, **{name: np.array(values) for name, values in columns.items()}),
        [replace(setup, **changed) for setup in setups],
    )


def _random_deployment(seed: int) -> tuple[Workload, list[EngineSetup], dict[str, Any]]:
    rng = random.Random(~seed)
    workload, options = random_run(seed)
    keywords = {name: value for name, value in options.items() if name not in SETUP}
    setup = EngineSetup(**{name: value for name, value in options.items() if name in SETUP})
    if rng.random() < 0.6:
        setup = replace(setup, policy=rng.choice(POLICIES))
    kind = rng.random()
    if kind < 0.12:
        workload, setup = _crowd(rng, setup)
    elif kind < 0.24:
        workload, setup = _conversations(rng, setup)
    elif kind < 0.32:
        workload, setup = _real(rng)
    elif kind < 0.40:
        workload, setup = _too_large(rng, workload, setup)
    if 0.40 <= kind < 0.65:
        workload, setup = _tight(rng, setup)
    if kind >= 0.92:
        workload, setup = _quiet(rng, setup)
        return workload, [setup] * rng.choice([1, 1, 2]), _that_ends(kind, keywords | {"keep_work": True})
    on_the_beat = rng.random() < 0.15  # arrivals, steps' ends and samples coincide
    if on_the_beat:
        keywords["sample_interval_s"] = rng.choice([None, 0.01, 0.1])
        workload = replace(workload, arrival_s=np.round(workload.arrival_s, 2))
        setup = replace(setup, step_times=AffineStepTimes(0.01, 0.0))
    if rng.random() < 0.3:
        workload = replace(workload, max_tokens=workload.output_tokens + rng.choice([0, 5, 60]))
    if not 0.24 <= kind < 0.32:
        setup = add_abilities(rng, setup)
    if 0.32 <= kind < 0.40:  # with drafts it would preempt itself for ever, as a real one
        setup = replace(setup, speculation=None)
    if "adapters" in setup.policy_options:
        workload = choose_adapters(rng, workload)
    if on_the_beat:
        setup = replace(setup, noise=None)
    setups = [setup] * rng.choice([1, 1, 1, 2, 3])
    paged = setup.policy in PAGED and setup.kv_contiguous_tokens is None
    if paged and rng.random() < 0.18 and setup.data_parallel_size == 1:
        setups, keywords = split_prefill_and_decode(rng, setup, keywords)
        return workload, setups, _that_ends(kind, keywords)
    if len(setups) > 1 or rng.random() < 0.3:
        keywords["router"] = rng.choice(ROUTERS)
        if workload.session is not None and rng.random() < 0.4:
            keywords["router"] = "session-sticky"
    add_surroundings(rng, setup, keywords)
    keywords["keep_work"] = True
    return workload, setups, _that_ends(kind, keywords)


def _that_ends(kind: float, keywords: dict[str, Any]) -> dict[str, Any]:
    """Long requests that start anew whenever their replica fails would do so for ever; nor can all be sampled often."""
    failures = keywords.get("failures")
    if failures is not None and (kind < 0.40 or failures.mean_time_between_failures_s < 1):
        keywords["failures"] = replace(failures, requests="fail")
    if 0.24 <= kind < 0.32:
        keywords["sample_interval_s"] = 0.2
    return keywords


def _crowd(rng: random.Random, setup: EngineSetup) -> tuple[Workload, EngineSetup]:
    """Hundreds that run together, for hundreds of steps: groups of decodes form, dissolve and form again."""
    count = rng.choice([60, 250, 400])
    gaps = [rng.choice([0, 0, 0.001, 0.02]) * rng.random() for _ in range(count)]
    prompts = [rng.choice([1, 5, rng.randint(1, 60), rng.randint(1, 300)]) for _ in range(count)]
    outputs = [rng.choice([1, 2, rng.randint(1, 80), rng.randint(1, 200)]) for _ in range(count)]
    workload = Workload(
        arrival_s=np.round(np.cumsum(gaps), rng.choice([2, 9])),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        content=random_content(rng, prompts) if rng.random() < 0.5 else None,
        priority=np.array([rng.randint(0, 2) for _ in range(count)]),
        concurrency=rng.choice([None, None, 64, 300]),
    )
    limits = replace(
        setup.limits,
        max_num_seqs=rng.choice([200, 256, 1024]),
        max_num_batched_tokens=rng.choice([256, 512, 2048]),
        max_model_len=rng.choice([400, 420, 1000]),
    )
    most = -(-sum(prompts + outputs) // setup.block_size) * len(setup.kv_windows)
    least = (-(-500 // setup.block_size) + 1) * len(setup.kv_windows)
    blocks = max(least, int(most * rng.choice([0.03, 0.2, 0.5, 2.0])))
    if limits.max_num_batched_tokens < 1000:
        limits = replace(limits, enable_chunked_prefill=True)
    return workload, replace(setup, limits=limits, num_blocks=blocks)


def _tight(rng: random.Random, setup: EngineSetup) -> tuple[Workload, EngineSetup]:
    """All come at once, and the KV cache holds hardly more than the largest: who runs is sent back again and again."""
    limits, count = setup.limits, rng.randint(8, 40)
    prompts = [rng.randint(1, min(30, limits.max_model_len - 2)) for _ in range(count)]
    workload = Workload(
        arrival_s=np.sort(
            np.round([rng.choice([0.0, 0.2]) * rng.random() for _ in prompts], rng.choice([2, 9]))
        ),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array([rng.choice([1, rng.randint(5, 60), rng.randint(5, 60)]) for _ in prompts]),
        content=random_content(rng, prompts) if rng.random() < 0.5 else None,
        priority=np.array([rng.randint(0, 2) for _ in prompts]),
    )
    whole = np.minimum(workload.prompt_tokens + workload.output_tokens, limits.max_model_len)
    largest = -(-int(whole.max()) // setup.block_size) + 1
    limits = replace(
        limits,
        max_num_seqs=64,
        max_num_batched_tokens=max(64, limits.max_num_batched_tokens),
        priority=rng.random() < 0.5,
        reserve_full_isl=rng.random() < 0.3,
        watermark=0,
    )
    few = largest * len(setup.kv_windows) + rng.choice([0, 1, 3, largest, 2 * largest])
    return workload, replace(setup, limits=limits, num_blocks=few)


def _quiet(rng: random.Random, setup: EngineSetup) -> tuple[Workload, EngineSetup]:
    """A few requests that answer at length: steps that only generate, one after the other, until somebody comes, ends
    or finds no block."""
    count, block_size = rng.randint(2, 12), rng.choice([1, 4, 16])
    prompts = [rng.randint(1, 60) for _ in range(count)]
    outputs = [rng.randint(30, 300) for _ in range(count)]
    workload = Workload(
        arrival_s=np.round(np.cumsum([rng.random() * rng.choice([0.2, 1.0, 3.0]) for _ in range(count)]), 3),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
    )
    longest = max(-(-(p + o) // block_size) for p, o in zip(prompts, outputs))
    limits = replace(
        setup.limits,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        max_model_len=500,
        enable_chunked_prefill=True,
    )
    return workload, replace(
        setup,
        policy="vllm-v1-async",
        policy_options={},
        speculation=None,
        limits=limits,
        kv_windows=(None,),
        kv_contiguous_tokens=None,
        block_size=block_size,
        num_blocks=longest + rng.choice([1, longest // 2 + 1, 1000]),
        data_parallel_size=1,
        step_times=rng.choice([KneedStepTimes(300), AffineStepTimes(0.01, 1e-4, per_context_token_s=1e-6)]),
    )


def _conversations(rng: random.Random, setup: EngineSetup) -> tuple[Workload, EngineSetup]:
    """Turns that wait for the answers before them and repeat them, after a while or at once."""
    window = setup.limits.max_model_len
    rows, prompts, outputs, arrivals, after, think, session = [], [], [], [], [], [], []
    for number in range(rng.randint(1, 8)):
        text, start_s = [(rng.randint(0, 1), rng.choice([3, 8, 16]))], round(rng.random(), rng.choice([1, 4]))
        for turn in range(rng.randint(1, 5)):
            text = [*text, (100 + 10 * number + turn, rng.randint(1, 12))]
            tokens = sum(length for _, length in text)
            if tokens >= window:
                break
            outputs.append(rng.choice([1, rng.randint(1, 20)]))
            prompts.append(tokens)
            rows.append(text)
            arrivals.append(start_s)
            after.append(-1 if turn == 0 else len(prompts) - 2)
            think.append(0.0 if turn == 0 else rng.choice([0.0, 0.01, rng.random()]))
            session.append(number)
            text = [*text, (10**6 + len(prompts) - 1, outputs[-1])]
    order = sorted(range(len(prompts)), key=lambda i: arrivals[i])
    place = {old: new for new, old in enumerate(order)}
    needed = max(-(-min(p + o, window) // setup.block_size) for p, o in zip(prompts, outputs)) + 1
    workload = Workload(
        arrival_s=np.array([arrivals[i] for i in order]),
        prompt_tokens=np.array([prompts[i] for i in order]),
        output_tokens=np.array([outputs[i] for i in order]),
        content=PromptContent.from_segments([rows[i] for i in order], answer_ids=[10**6 + i for i in order]),
        priority=np.array([rng.randint(0, 2) for _ in order]),
        session=np.array([session[i] for i in order]),
        after_request=np.array([-1 if after[i] < 0 else place[after[i]] for i in order]),
        think_s=np.array([think[i] for i in order]),
    )
    return workload, replace(
        setup, num_blocks=max(setup.num_blocks, needed * len(setup.kv_windows)), enable_prefix_caching=True
    )


def _real(rng: random.Random) -> tuple[Workload, EngineSetup]:
    """A pool as it would be rented, with less KV now and then."""
    setup = real_setup(rng.randrange(len(REAL)))
    count = rng.choice([5, 40, 120])
    workload = synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rng.choice([1.0, 20.0, 500.0])),
        prompt=LognormalLengths(mean_tokens=rng.choice([30, 700]), cv=1.3),
        output=LognormalLengths(mean_tokens=rng.choice([8, 60]), cv=1.3),
        seed=rng.randint(0, 99),
        concurrency=rng.choice([None, None, 16]),
    )
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    least = (-(-longest // setup.block_size) + 2) * len(setup.kv_windows)
    if rng.random() < 0.5 and setup.kv_contiguous_tokens is None:
        setup = replace(setup, num_blocks=min(setup.num_blocks, least * rng.choice([1, 2, 5])))
    return workload, setup


def _too_large(rng: random.Random, workload: Workload, setup: EngineSetup) -> tuple[Workload, EngineSetup]:
    """Prompts of a whole cache, or of more: some engines stall, and must say the same; or max_model_len is reached."""
    which = rng.randrange(len(workload))
    tokens = setup.num_blocks * setup.block_size // len(setup.kv_windows)
    prompts, outputs = workload.prompt_tokens.copy(), workload.output_tokens.copy()
    prompts[which] = max(1, tokens + rng.choice([-setup.block_size, -1, 0, 0, 1]))
    outputs[which] = rng.choice([1, 1, 2, 5])
    longest = int(prompts[which]) + rng.choice([0, 1, 1])  # a prompt of max_model_len is turned away
    limits = replace(setup.limits, max_model_len=max(setup.limits.max_model_len, longest))
    if rng.random() < 0.3:
        limits = replace(limits, max_model_len=max(2, longest))
    if not limits.enable_chunked_prefill:
        limits = replace(
            limits, max_num_batched_tokens=max(limits.max_num_batched_tokens, limits.max_model_len)
        )
    if rng.random() < 0.3:
        outputs[:] = limits.max_model_len  # all of them end where the context does
    return replace(workload, prompt_tokens=prompts, output_tokens=outputs, content=None), replace(
        setup, limits=limits
    )


def add_abilities(rng: random.Random, setup: EngineSetup) -> EngineSetup:
    options: dict[str, Any] = {}
    match setup.policy:
        case "vllm-v1" | "vllm-v1-async":
            kind = rng.random()
            if kind > 0.8:
                options["adapters"] = _adapters(rng)
            elif kind < 0.25:
                setup = replace(setup, speculation=random_drafts(rng))
            elif kind < 0.45 and setup.enable_prefix_caching:
                options["offload"] = random_offload(rng)
            elif kind < 0.55:
                setup = replace(setup, limits=replace(setup.limits, pipeline_stages=rng.choice([2, 3])))
            elif kind < 0.65:
                setup = replace(
                    setup, limits=replace(setup.limits, prefill_schedule_interval=rng.choice([2, 4]))
                )
        case "sglang":
            options = {"order": rng.choice(["fcfs", "lpm"]), "mixed_chunk": rng.random() < 0.3}
            options["conservativeness"] = rng.choice([0.1, 0.3, 1.0])
        case "tensorrt-llm":
            options = {"capacity": rng.choice(["guaranteed_no_evict", "max_utilization", "max_utilization"])}
            options["batch_wait_steps"] = rng.choice([0, 0, 3])
        case "vllm-v0":
            setup = replace(setup, kv_windows=(None,))
            if rng.random() < 0.6:
                options = {
                    "preemption_mode": "swap",
                    "num_cpu_blocks": rng.choice([0, 5, 50, 500]),
                    "swap_block_ps": rng.choice([10**6, 10**9]),
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
    if setup.policy != "vllm-v0" and not options.get("offload") and rng.random() < 0.08:
        longest = rng.choice([setup.limits.max_model_len, 100])
        setup = replace(
            setup,
            kv_contiguous_tokens=longest,
            num_blocks=max(setup.num_blocks, -(-longest // setup.block_size)),
            limits=replace(setup.limits, max_model_len=min(longest, setup.limits.max_model_len)),
            kv_windows=(None,),
        )
    if rng.random() < 0.15:
        setup = replace(setup, noise=make_step_noise(rng.choice([0.017, 0.2]), seed=rng.randint(0, 9)))
    apart = random.Random(setup.num_blocks)  # so that no later draw moves
    if apart.random() < 0.3:
        setup = replace(setup, launch_lag=apart.choice([0.1, 0.5, 1.0]))
    return replace(setup, policy_options=options)


def random_drafts(rng: random.Random) -> Speculation:
    k = rng.randint(1, 4)
    if rng.random() < 0.4:
        return Speculation(k, tuple(rng.randint(0, k) for _ in range(3)), lookahead_slots=rng.choice([0, k]))
    rates = tuple(sorted((min(max(1.2 * rng.random() - 0.1, 0.0), 1.0) for _ in range(k)), reverse=True))
    return DrawnSpeculation(
        rates,
        lookahead_slots=k,
        seed=rng.randint(0, 99),
        k=k + rng.choice([0, 2]),
        spread=rng.choice([0.0, 0.5]),
    )


def _adapters(rng: random.Random) -> AdapterSlots:
    max_loras = rng.choice([1, 2, 3])
    return AdapterSlots(
        max_loras=max_loras,
        max_cpu_loras=rng.choice([None, max_loras, max_loras + 1]),
        load_ps=rng.choice([0, 3 * 10**9]),
        read_ps=rng.choice([0, 10**10]),
    )


def choose_adapters(rng: random.Random, workload: Workload) -> Workload:
    """Each request for one of a few, or for the base model."""
    most = rng.choice([1, 2, 6])
    return replace(workload, adapter=np.array([rng.randint(0, most) for _ in range(len(workload))]))


def random_offload(rng: random.Random) -> Offload:
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
        tiers=tiers, block_bytes=1e4, chunk_blocks=rng.choice([1, 2]), synchronous=rng.random() < 0.5
    )


def add_surroundings(rng: random.Random, setup: EngineSetup, keywords: dict[str, Any]) -> None:
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
    if "failures" in keywords and "adapters" in setup.policy_options:  # slow steps would start anew for ever
        keywords["failures"] = replace(keywords["failures"], requests="fail")
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
            input_token_s=rng.choice([0.0, 0.0, 3.3e-6, 1e-4]),
            processes=rng.choice([1, 1, 2, 3]),
            request_s=rng.choice([0.0, 0.0, 0.002, 0.03]),
        )


def split_prefill_and_decode(
    rng: random.Random, setup: EngineSetup, keywords: dict[str, Any]
) -> tuple[list[EngineSetup], dict[str, Any]]:
    """Prefill here, decode there."""
    adapters = {name: slots for name, slots in setup.policy_options.items() if name == "adapters"}
    setup = replace(
        setup, speculation=None, policy_options=adapters, limits=replace(setup.limits, pipeline_stages=1)
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
    for name in ("scaling", "decode_scaling"):
        if rng.random() < 0.2:  # a prefill replica drains while KV is kept
            keywords[name] = Autoscaling(
                max_replicas=4, target_requests=1, startup_s=0.05, interval_s=0.05, scale_down_delay_s=0.1
            )
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


Deployment = tuple[Workload, list[EngineSetup], dict[str, Any]]


def outcome(deployment: Deployment, engine_loop: EngineLoop) -> SimulationResult | str:
    """What it does, or why it is refused."""
    workload, setups, keywords = deployment
    try:
        return simulate(workload, setups, engine_loop=engine_loop, **keywords)
    except InvalidInput as refusal:
        return str(refusal)


def unlike(one: SimulationResult | str, other: SimulationResult | str) -> list[str]:
    """In what two outcomes differ: refusals are equal where their lines are."""
    if isinstance(one, str) or isinstance(other, str):
        return [] if one == other else [f"refused: {one if isinstance(one, str) else other}"]
    return differences(one, other)


def differing(seed: int) -> list[str]:
    """In what the Python and the compiled engines differ."""
    deployment = random_deployment(seed)
    return unlike(outcome(deployment, "events"), outcome(deployment, "core"))
