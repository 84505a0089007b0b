"""What no scheduler may lose, whichever engine runs it: requests, tokens, KV blocks, time, the order it promises."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from engine_loops import LOOPS, on
from engine_runs import random_content
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.schedulers import SchedulerLimits, Speculation
from capacity.step import PS_PER_S, AffineStepTimes
from capacity.workload import Workload

MAX_MODEL_LEN = 64
QUIET_S = 1000.0  # before the last request: by then all others have ended


@dataclass(frozen=True, kw_only=True)
class Case:
    """A policy as it may be asked for, and what it promises."""

    policy: str
    options: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    setup: dict[str, Any] = field(default_factory=dict)
    in_order: bool = True  # who came first starts first
    never_preempts: bool = False
    whole_prompts: bool = False  # a step's budget must hold any prompt
    least_budget: int = 5  # 16: prompts are cut into chunks of whole blocks only

    def __str__(self) -> str:
        return " ".join([self.policy, *(str(k) for k in (self.options | self.limits | self.setup))])


CASES = (
    Case(policy="vllm-v1"),
    Case(policy="vllm-v1-async"),
    Case(policy="vllm-v1-async", limits={"priority": True}, in_order=False),
    Case(policy="vllm-v1", limits={"enable_chunked_prefill": False}, whole_prompts=True),
    Case(policy="vllm-v1-async", limits={"long_prefill_token_threshold": 7, "watermark": 0.1}),
    Case(policy="vllm-v1", limits={"prefill_schedule_interval": 3, "reserve_full_isl": False}),
    Case(policy="vllm-v1", setup={"kv_windows": (None, 8)}),
    Case(policy="vllm-v1", setup={"speculation": Speculation(2, (0, 2, 1), lookahead_slots=2)}),
    Case(policy="vllm-v1-async", setup={"speculation": Speculation(2, (0, 2, 1), lookahead_slots=2)}),
    Case(policy="vllm-v0", whole_prompts=True),
    Case(
        policy="vllm-v0",
        options={"preemption_mode": "swap", "num_cpu_blocks": 1000},
        whole_prompts=True,
    ),
    Case(policy="sglang", least_budget=16),
    Case(policy="sglang", least_budget=16, options={"order": "lpm"}, in_order=False),
    Case(policy="sglang", least_budget=16, options={"mixed_chunk": True}),
    Case(policy="sglang", least_budget=16, options={"asynchronous": False}),
    Case(policy="tensorrt-llm", least_budget=16, never_preempts=True),
    Case(policy="tensorrt-llm", least_budget=16, options={"capacity": "max_utilization"}),
    Case(
        policy="tensorrt-llm",
        least_budget=16,
        options={"prompts_per_step": 1, "asynchronous": False},
        never_preempts=True,
    ),
    Case(policy="tgi", never_preempts=True),
    Case(policy="tgi", limits={"enable_chunked_prefill": False}, never_preempts=True, whole_prompts=True),
    Case(policy="static", never_preempts=True),
    Case(policy="slots", never_preempts=True),
)


def drawn(case: Case, seed: int) -> tuple[Workload, EngineSetup]:
    """Requests that come in bursts and with pauses, one long after all others, on an engine that is tight."""
    rng = random.Random(seed)
    count, block_size = rng.randint(2, 20), rng.choice([1, 4, 16])
    arrivals, now = [], 0.0
    for _ in range(count - 1):
        now += rng.choice([0, 0, 0.01, 0.1, 2.0]) * rng.random()
        arrivals.append(now)
    prompts = [rng.randint(1, MAX_MODEL_LEN - 2) for _ in range(count)]
    outputs = [rng.choice([1, 2, rng.randint(1, 2 * MAX_MODEL_LEN)]) for _ in range(count)]
    seqs = rng.choice([1, 3, 8])
    budget = (
        MAX_MODEL_LEN
        if case.whole_prompts
        else max(case.least_budget, rng.choice([3 * seqs, 20, MAX_MODEL_LEN]))
    )
    groups = len(case.setup.get("kv_windows", (None,)))
    largest = -(-(MAX_MODEL_LEN + 2) // block_size) + 1
    workload = Workload(
        arrival_s=[*arrivals, now + QUIET_S],
        prompt_tokens=prompts,
        output_tokens=outputs,
        content=random_content(rng, prompts) if rng.random() < 0.5 else None,
        priority=[rng.randint(0, 2) for _ in range(count)],
    )
    # a static batch takes the KV of all its members at once, padded to the longest
    room = seqs if case.policy == "static" else rng.choice([1, 1.3, 2, 8])
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 1e-4, per_context_token_s=rng.choice([0.0, 1e-6])),
        num_blocks=int(room * largest * groups) + groups,
        block_size=block_size,
        policy=case.policy,
        policy_options=case.options,
        limits=SchedulerLimits(
            max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=MAX_MODEL_LEN, **case.limits
        ),
        enable_prefix_caching=rng.random() < 0.7,
        **case.setup,
    )
    return workload, setup


def occupied_ps(run: SimulationResult) -> int:
    """How long at least one request was inside."""
    total = until = 0
    spans = zip(run.records.arrival_ps.tolist(), run.records.finish_ps.tolist(), strict=True)
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


@pytest.mark.parametrize("engine_loop", LOOPS)
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 1 << 32))
def test_nothing_is_lost(case: Case, engine_loop: str, seed: int) -> None:
    workload, setup = drawn(case, seed)
    run = simulate(workload, setup, sample_interval_s=QUIET_S / 4, **on(simulate, engine_loop))
    records = run.records
    # requests: each ends, once
    assert run.status == "complete"
    assert run.summary.completed == len(workload)
    assert run.rejected == 0
    # tokens: as many as were asked for and have a place
    asked = [
        min(out, MAX_MODEL_LEN - prompt)
        for prompt, out in zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    ]
    assert records.output_tokens.tolist() == asked
    drafts = setup.speculation is not None
    later = sum(asked) - len(workload)
    assert run.gaps.count <= later if drafts else run.gaps.count == later
    # time: no effect before its cause, and none after its request
    assert (records.arrival_ps <= records.first_scheduled_ps).all()
    assert (records.first_scheduled_ps < records.first_token_ps).all()
    assert (records.first_token_ps <= records.finish_ps).all()
    # work: the GPU computes whenever anybody is inside, and else at most a step whose rows drafts have made needless
    occupied_s = occupied_ps(run) / PS_PER_S
    assert run.busy_s >= occupied_s if drafts else run.busy_s == occupied_s
    # KV: between all others and the last nothing is held
    quiet_from, quiet_to = records.finish_ps[:-1].max() / PS_PER_S, records.arrival_ps[-1] / PS_PER_S
    quiet = [sample for sample in run.series if quiet_from < sample.time_s < quiet_to]
    assert len(quiet) >= 2
    for sample in quiet:
        assert (sample.running, sample.waiting, sample.kv_used_blocks) == (0, 0, 0)
    # order
    if case.in_order:
        started = records.first_scheduled_ps.tolist()
        assert started == sorted(started)
    if case.never_preempts:
        assert run.preemptions == 0
