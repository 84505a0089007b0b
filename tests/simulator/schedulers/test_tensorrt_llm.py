"""TensorRT-LLM's scheduler: hand-worked schedules."""

from __future__ import annotations

import pytest
from scheduler_bench import Bench

from capacity.base.errors import InvalidInput


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


def test_guaranteed_no_evict_reserves_the_last_token_too() -> None:
    """10 blocks of 4: requests of 8 + 13 tokens reserve 6 blocks each, so the second waits until the first ends."""
    bench = Bench("tensorrt-llm", blocks=10, enable_chunked_prefill=False)
    bench.add(8, 12)
    bench.add(8, 13)
    assert bench.run() == [(0, 8)]


def test_prompt_below_a_block_uses_the_budget_that_a_longer_one_cannot() -> None:
    """Budget 10, blocks of 4: after 8 tokens of the first prompt, 2 are too few for the second, not for the third."""
    bench = Bench("tensorrt-llm", max_num_batched_tokens=10)
    bench.add(20, 3)
    bench.add(9, 3)
    bench.add(2, 3)
    assert bench.run() == [(0, 8), (2, 2)]
    assert bench.run() == [(2, 1), (0, 8)]


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


@pytest.mark.parametrize(("max_tokens", "requests"), [(4096, 89), (None, 358)])
def test_max_tokens_says_how_many_requests_a_cache_holds(max_tokens: int | None, requests: int) -> None:
    """453,000 tokens of KV, prompts of 1,012 and outputs of 255: reserved are 5,107 or 1,266 slots a request.

    453,000 / 5,107 = 88.7 and 453,000 / 1,266 = 357.8: in whole requests one less than rounded.
    """
    bench = Bench(
        "tensorrt-llm", blocks=453_000, block_size=1, max_num_seqs=1024, max_num_batched_tokens=1 << 20
    )
    for _ in range(400):
        bench.add(1012, 255, max_tokens=max_tokens)
    assert len(bench.run()) == requests - 1
