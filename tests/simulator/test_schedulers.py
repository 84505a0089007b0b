"""SGLang's, TensorRT-LLM's and TGI's policies: hand-worked schedules, and what must hold for any of them."""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import run_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.content import Content
from capacity.simulator.kv_cache.run_pool import RunPool
from capacity.simulator.schedulers import SchedulerLimits, Sequence, make_policy
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


class Bench:
    """A policy with its pool, driven step by step: `run()` decides a step and processes it at once."""

    def __init__(
        self,
        name: str,
        *,
        blocks: int = 100,
        block_size: int = 4,
        options: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        self.pool = RunPool(blocks, block_size, prefix_caching=False)
        settings_ = {"max_num_seqs": 8, "max_num_batched_tokens": 16, **limits}
        given_options = {"asynchronous": False, **(options or {})}
        self.policy = make_policy(name, SchedulerLimits(**settings_), self.pool, **given_options)
        self.count = 0

    def add(self, prompt: int, output: int) -> Sequence:
        index = self.count
        self.count += 1
        sequence = Sequence(
            index,
            id=index,
            arrival=0,
            prompt_tokens=prompt,
            max_known=prompt + output,
            priority=0,
            table=self.pool.table(Content(index)),
        )
        self.policy.add(sequence)
        return sequence

    def run(self) -> list[tuple[int, int]]:
        """(request, tokens) of every row."""
        step = self.policy.schedule(0)
        rows = [(row.sequence.index, row.tokens) for row in step.rows]
        self.policy.update(step)
        return rows


# SGLang


def test_sglang_prefills_alone_before_anyone_decodes() -> None:
    bench = Bench("sglang")
    bench.add(6, 3)
    assert bench.run() == [(0, 6)]
    bench.add(5, 3)
    assert bench.run() == [(1, 5)]  # request 0 waits
    assert bench.run() == [(0, 1), (1, 1)]


def test_sglang_mixed_chunk_decodes_beside_a_prefill() -> None:
    bench = Bench("sglang", options={"mixed_chunk": True})
    bench.add(6, 3)
    bench.run()
    bench.add(5, 3)
    assert bench.run() == [(1, 5), (0, 1)]


def test_sglang_has_one_chunked_request_which_goes_on_first() -> None:
    bench = Bench("sglang")
    bench.add(10, 2)
    bench.add(22, 2)
    bench.add(3, 2)
    assert bench.run() == [(0, 10), (1, 4)]  # 6 left of 16: whole pages of 4 tokens
    assert bench.run() == [(1, 16)]
    assert bench.run() == [(1, 2), (2, 3)]
    assert bench.run() == [(0, 1), (1, 1), (2, 1)]


def test_sglang_without_chunking_lets_a_long_prompt_exceed_the_cap_alone() -> None:
    bench = Bench("sglang", enable_chunked_prefill=False, options={"max_prefill_tokens": 16})
    bench.add(20, 2)
    bench.add(8, 2)
    assert bench.run() == [(0, 20)]
    assert bench.run() == [(1, 8)]


def test_sglang_admits_by_the_expected_need_of_the_outputs() -> None:
    """40 tokens of KV. A step later 32 are free, of which 0.7 x 7 are promised: 27.1 < 8 + 16 + a page of 4."""
    bench = Bench("sglang", blocks=10)
    bench.add(8, 8)
    bench.add(8, 16)
    assert bench.run() == [(0, 8)]
    assert bench.run() == [(0, 1)]


def test_sglang_new_token_ratio_decays_by_the_documented_steps() -> None:
    bench = Bench("sglang", blocks=1000)
    bench.add(4, 700)
    bench.run()
    policy: Any = bench.policy
    assert policy.new_token_ratio == 0.7
    bench.run()
    assert policy.new_token_ratio == pytest.approx(0.7 - 0.7 * 0.86 / 600)
    for _ in range(650):
        bench.run()
    assert policy.new_token_ratio == pytest.approx(0.7 * 0.14)


def test_sglang_retracts_who_produced_least_and_then_the_longer_prompt() -> None:
    """Three prompts fill six of seven blocks of 4 tokens; the decode that needs three more finds one."""
    bench = Bench("sglang", blocks=7, options={"conservativeness": 0.01})
    for prompt in (8, 8, 7):
        bench.add(prompt, 6)
    bench.run()
    while not any(r.preemptions for r in [*bench.policy.running, *bench.policy.waiting]):  # type: ignore[attr-defined]
        bench.run()
    retracted = bench.policy.waiting[0]  # type: ignore[attr-defined]
    others = bench.policy.running  # type: ignore[attr-defined]
    produced = retracted.known - retracted.prompt_tokens
    assert all(
        (r.known - r.prompt_tokens - 1, -r.prompt_tokens) >= (produced, -retracted.prompt_tokens)
        for r in others
    )
    assert bench.policy.new_token_ratio > 0.01  # type: ignore[attr-defined]


def test_sglang_longest_prefix_first() -> None:
    pool = RunPool(100, 4)
    policy: Any = make_policy(
        "sglang",
        SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=64),
        pool,
        order="lpm",
        asynchronous=False,
    )

    def request(index: int, key: str) -> Sequence:
        return Sequence(
            index,
            id=index,
            arrival=0,
            prompt_tokens=17,
            max_known=19,
            priority=0,
            table=pool.table(Content(index, [key], [4])),
        )

    policy.add(request(0, "shared"))
    for _ in range(2):
        policy.update(policy.schedule(0))
    policy.add(request(1, "other"))
    policy.add(request(2, "shared"))
    rows = policy.schedule(0).rows
    assert [(row.sequence.index, row.tokens, row.cached) for row in rows] == [(2, 1, 16)]


# TensorRT-LLM


def test_tensorrt_llm_takes_generation_first_and_whole_prompts_only() -> None:
    bench = Bench("tensorrt-llm", enable_chunked_prefill=False)
    bench.add(10, 3)
    bench.add(10, 3)
    assert bench.run() == [(0, 10)]
    assert bench.run() == [(0, 1), (1, 10)]
    assert bench.run() == [(0, 1), (1, 1)]


def test_tensorrt_llm_chunks_in_whole_blocks_of_what_the_budget_leaves() -> None:
    bench = Bench("tensorrt-llm")
    bench.add(10, 3)
    bench.add(10, 3)
    assert bench.run() == [(0, 10), (1, 4)]
    assert bench.run() == [(0, 1), (1, 6)]


def test_guaranteed_no_evict_counts_everyones_blocks_to_the_end() -> None:
    """10 blocks: the first ends with 8 + 12 - 1 tokens in 5 blocks; the second needs 6, so it waits; then fits."""
    bench = Bench("tensorrt-llm", blocks=10, enable_chunked_prefill=False)
    bench.add(8, 12)
    bench.add(8, 16)
    assert bench.run() == [(0, 8)]
    for _ in range(11):
        assert bench.run() == [(0, 1)]
    assert bench.run() == [(1, 8)]


def test_max_utilization_admits_more_and_pauses_who_started_last() -> None:
    bench = Bench(
        "tensorrt-llm", blocks=6, enable_chunked_prefill=False, options={"capacity": "max_utilization"}
    )
    first, second = bench.add(8, 12), bench.add(8, 16)
    assert bench.run() == [(0, 8), (1, 8)]
    while not second.preemptions:
        bench.run()
    assert first.preemptions == 0
    assert second.computed == 0
    assert first.known - first.prompt_tokens == second.known - second.prompt_tokens + 1 == 6


def test_batch_wait_holds_prompts_back_for_company() -> None:
    """Budget 16, wait up to 3 steps or until 0.5 x 16 tokens are in the step."""
    options = {"batch_wait_steps": 3, "batch_wait_tokens_fraction": 0.5}
    bench = Bench("tensorrt-llm", enable_chunked_prefill=False, options=options)
    bench.add(4, 20)
    assert bench.run() == [(0, 4)]  # nobody generates: no wait
    bench.add(4, 20)
    assert [bench.run() for _ in range(4)] == [[(0, 1)]] * 3 + [[(0, 1), (1, 4)]]
    bench.add(3, 20)
    assert bench.run() == [(0, 1), (1, 1)]
    bench.add(3, 20)
    assert bench.run() == [(0, 1), (1, 1), (2, 3), (3, 3)]  # 2 + 6 tokens


def test_prompts_per_step() -> None:
    bench = Bench("tensorrt-llm", options={"prompts_per_step": 1})
    bench.add(4, 2)
    bench.add(4, 2)
    assert bench.run() == [(0, 4)]
    assert bench.run() == [(0, 1), (1, 4)]


def test_unknown_options_are_refused_in_one_line() -> None:
    with pytest.raises(InvalidInput, match="capacity is 'static'"):
        Bench("tensorrt-llm", options={"capacity": "static"})
    with pytest.raises(InvalidInput, match="order is 'random'"):
        Bench("sglang", options={"order": "random"})


# TGI


def test_tgi_takes_all_blocks_at_the_start() -> None:
    bench = Bench("tgi", blocks=10, enable_chunked_prefill=False)
    bench.add(8, 12)
    bench.add(8, 16)
    assert bench.run() == [(0, 8)]
    assert bench.pool.free_blocks == 5


def test_tgi_joins_when_enough_wait_or_after_so_many_decode_steps() -> None:
    """Ten run, ratio 0.3: three must wait; one alone joins after 4 decode steps."""
    options = {"max_waiting_steps": 4}
    bench = Bench(
        "tgi",
        blocks=1000,
        max_num_seqs=64,
        max_num_batched_tokens=64,
        enable_chunked_prefill=False,
        options=options,
    )
    for _ in range(10):
        bench.add(4, 40)
    assert len(bench.run()) == 10
    bench.add(4, 40)
    assert [len(bench.run()) for _ in range(5)] == [10, 10, 10, 10, 1]
    bench.add(4, 40)
    assert [len(bench.run()) for _ in range(5)] == [11, 11, 11, 11, 1]
    for _ in range(3):
        bench.add(4, 40)
    assert bench.run() == [(12, 4), (13, 4), (14, 4)]


# any of them


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
@settings(max_examples=15, deadline=None)
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
