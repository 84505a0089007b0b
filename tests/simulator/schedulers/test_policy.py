"""What holds for every scheduling policy: requests, tokens and KV blocks are conserved."""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import run_engine
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload, random_requests

POLICY_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("sglang", {}),
    ("sglang", {"order": "lpm"}),
    ("sglang", {"mixed_chunk": True}),
    ("sglang", {"asynchronous": False}),
    ("tensorrt-llm", {}),
    ("tensorrt-llm", {"capacity": "max_utilization"}),
    ("tensorrt-llm", {"batch_wait_steps": 3, "batch_wait_tokens_fraction": 0.9}),
    ("tensorrt-llm", {"prompts_per_step": 1, "asynchronous": False}),
    ("tgi", {}),
    ("tgi", {"max_waiting_steps": 2}),
]


def _simulate(
    workload: Workload, name: str, options: dict[str, Any], blocks: int, chunked: bool, **more: Any
) -> Any:
    limits = SchedulerLimits(max_num_seqs=6, max_num_batched_tokens=64, enable_chunked_prefill=chunked)
    return run_engine(
        workload,
        step_times=AffineStepTimes(5e-3, 1e-5),
        num_blocks=blocks,
        block_size=4,
        policy=name,
        policy_options=options,
        limits=limits,
        **more,
    )


@pytest.mark.parametrize(("name", "options"), POLICY_OPTIONS)
@settings(max_examples=examples(15), deadline=None)
@given(
    seed=st.integers(0, 1000),
    blocks=st.integers(40, 120),
    chunked=st.booleans(),
    concurrency=st.one_of(st.none(), st.integers(1, 12)),
)
def test_every_request_ends_with_all_its_tokens_and_the_pool_empty(
    name: str, options: dict[str, Any], seed: int, blocks: int, chunked: bool, concurrency: int | None
) -> None:
    workload = random_requests(
        num_requests=25,
        input_len=30,
        output_len=20,
        request_rate_per_s=40.0,
        burstiness=1.0,
        range_ratio=0.9,
        concurrency=concurrency,
        seed=seed,
    )
    pools: list[Any] = []

    def observe(step: Any, engine: Any) -> None:
        assert 0 <= engine.pool.free_blocks <= engine.pool.num_blocks
        assert len({row.sequence.index for row in step.rows}) == len(step.rows)
        assert len(step.rows) <= 6
        pools.append(engine.pool)

    result = _simulate(workload, name, options, blocks, chunked, observer=observe)
    assert result.status == "complete"
    assert (result.records.output_tokens == workload.output_tokens).all()
    assert (result.records.first_token_ps >= result.records.first_scheduled_ps).all()
    assert pools[-1].free_blocks == blocks


@pytest.mark.parametrize("name", ["tensorrt-llm", "tgi"])
def test_guaranteed_policies_never_preempt(name: str) -> None:
    workload = random_requests(
        num_requests=60, input_len=30, output_len=40, request_rate_per_s=1000.0, burstiness=1.0, seed=3
    )
    assert _simulate(workload, name, {}, 40, chunked=True).preemptions == 0


def test_with_room_for_all_a_mixed_step_is_the_same_step_whoever_decides_it() -> None:
    """Without pressure, SGLang mixed, TensorRT-LLM chunked and vLLM V1 differ in name only."""
    workload = random_requests(
        num_requests=40, input_len=16, output_len=20, request_rate_per_s=30.0, burstiness=1.0, seed=5
    )
    ttft = {
        name: _simulate(workload, name, options, 10_000, chunked=True).summary.to_dict()["mean_ttft_ms"]
        for name, options in (
            ("vllm-v1-async", {}),
            ("tensorrt-llm", {}),
            ("sglang", {"mixed_chunk": True}),
        )
    }
    assert len(set(ttft.values())) == 1
