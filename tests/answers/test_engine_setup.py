"""The scheduler's knobs on a real model and GPU: each changes what it should, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.answers.engine_setup import engine_setup, make_workload, scheduler_limits
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Traffic
from capacity.pool.resolve import resolve

LOAD: dict[str, Any] = {"input_len": 600, "output_len": 100, "request_rate": 4, "num_prompts": 40}


def simulate(**options: Any) -> dict[str, Any]:
    return capacity.simulate("llama-3.1-8b", gpu="h100", **LOAD, **options).to_dict()


def test_drafts_that_are_accepted_pay_and_those_that_are_not_cost() -> None:
    plain = simulate()
    good = simulate(speculator="eagle3", acceptance="0.9", num_speculative_tokens=3)
    bad = simulate(speculator="eagle3", acceptance="0.0", num_speculative_tokens=3)
    assert good["mean_tpot_ms"] < plain["mean_tpot_ms"] < bad["mean_tpot_ms"]
    assert good["total_output_tokens"] == bad["total_output_tokens"] == plain["total_output_tokens"]
    assert good["steps"] < plain["steps"]


def test_samples_of_one_prompt_share_its_blocks() -> None:
    """Three of four prompts find all full blocks but the last in the cache: 592 of 600 tokens."""
    answer = simulate(num_samples=4)
    assert answer["completed"] == 160
    assert answer["prefix_cache_hit_fraction"] == pytest.approx(3 / 4 * 592 / 600)


def test_contiguous_kv_holds_fewer_requests() -> None:
    crowded: dict[str, Any] = {"max_model_len": 8192, "gpu_memory_utilization": 0.4}
    paged, contiguous = simulate(**crowded), simulate(**crowded, kv_layout="contiguous")
    assert contiguous["kv_utilization_mean"] > paged["kv_utilization_mean"]
    assert contiguous["prefix_cache_hit_fraction"] is None


def test_switches_reach_the_scheduler() -> None:
    pool = Pool(gpu="h100", scheduler_reserve_full_isl=False, prefill_schedule_interval=3, watermark=0.1)
    limits = scheduler_limits(resolve("llama-3.1-8b", pool))
    assert (limits.reserve_full_isl, limits.prefill_schedule_interval, limits.watermark) == (False, 3, 0.1)
    assert scheduler_limits(resolve("llama-3.1-8b", Pool(gpu="h100"))).reserve_full_isl is True


def test_a_draft_takes_kv_blocks() -> None:
    plain = engine_setup(resolve("llama-3.1-8b", Pool(gpu="h100")))
    drafted = engine_setup(resolve("llama-3.1-8b", Pool(gpu="h100", speculator="eagle3")))
    assert drafted.num_blocks < plain.num_blocks


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"speculator": "eagle9"}, "Did you mean"),
        ({"num_speculative_tokens": 3}, "--speculator"),
        ({"acceptance": "0.5"}, "--speculator"),
        ({"speculator": "eagle3", "acceptance": "often"}, "acceptance"),
        ({"speculator": "eagle3", "engine": "vllm@0.6"}, "use --engine vllm"),
        ({"num_samples": 0}, "num_samples is 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        simulate(**options)


@pytest.mark.parametrize("question", [capacity.fit, capacity.estimate, capacity.explain])
def test_formulas_that_leave_drafts_out_say_so(question: Any) -> None:
    load = {} if question is capacity.fit else {"input_len": 10, "output_len": 10, "batch_size": 1}
    with pytest.raises(InvalidInput, match="simulate"):
        question("llama-3.1-8b", gpu="h100", speculator="eagle3", **load)


def test_the_workload_of_samples_keeps_arrivals() -> None:
    workload = make_workload(Traffic(input_len=10, output_len=2, num_prompts=3, num_samples=2))
    assert len(workload) == 6
    assert (workload.arrival_s[0::2] == workload.arrival_s[1::2]).all()


def test_one_token_pages_of_windowed_caches_are_simulated_coarser() -> None:
    """The capacity in tokens stays, to less than a page."""
    windowed = resolve("gemma-3-27b", Pool(gpu="h200", engine="sglang"))
    assert windowed.memory.kv_block_tokens == 1
    setup = engine_setup(windowed)
    tokens = windowed.memory.kv_capacity_blocks - 1
    assert setup.block_size == 16
    assert tokens - 16 < setup.num_blocks * 16 <= tokens
    plain = engine_setup(resolve("llama-3.1-8b", Pool(gpu="h200", engine="sglang")))
    assert plain.block_size == 1
