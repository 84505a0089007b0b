"""The estimator's formulas on step times whose answer can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import capacity
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.step import OpCost, StepCost, StepShape, decode_shape, prefill_shape
from capacity.step.closed_form import EngineLimits, batch_times, closed_loop_times, main_bound, prefill_steps

LIMITS = EngineLimits(
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    chunked_prefill=True,
    mixes_prefill_with_decode=True,
    window_tokens=None,
    request_latency_s=0.0,
)


class Affine:
    """A step takes base + per_token x new tokens + per_context x decode contexts."""

    def __init__(self, base: float, per_token: float = 0.0, per_context: float = 0.0) -> None:
        self.base, self.per_token, self.per_context = base, per_token, per_context

    def step_seconds(self, shape: StepShape) -> float:
        return self.base + self.per_token * shape.num_tokens + self.per_context * shape.decode_context_tokens

    def step_cost(self, shape: StepShape) -> StepCost:
        op = OpCost(name="all", flops=1, bytes=1, seconds=self.step_seconds(shape), bound="memory")
        return StepCost(operators=(op,))


def test_one_request_alone_is_its_prefill_and_its_decode_steps() -> None:
    times = batch_times(Affine(0.01, 0.001), LIMITS, 1, input_len=100, output_len=11)
    assert times.ttft_s == pytest.approx(0.01 + 0.1)
    assert times.tpot_s == pytest.approx(0.011)
    assert times.e2e_s == pytest.approx(0.11 + 10 * 0.011)
    assert times.requests_per_s == pytest.approx(1 / times.e2e_s)


def test_a_batch_fills_the_token_budget_and_the_last_prompt_waits_for_all() -> None:
    times = batch_times(Affine(0.01, 0.001), LIMITS, 5, input_len=1000, output_len=2)
    assert times.ttft_s == pytest.approx(3 * 0.01 + 5000 * 0.001)  # 2048 + 2048 + 904 tokens
    assert times.tpot_s == pytest.approx(0.01 + 5 * 0.001)


def test_a_single_output_token_has_no_tpot() -> None:
    for times in (
        batch_times(Affine(0.01), LIMITS, 3, input_len=10, output_len=1),
        closed_loop_times(Affine(0.01), LIMITS, 3, input_len=10, output_len=1),
    ):
        assert times.tpot_s is None
        assert times.e2e_s == times.ttft_s


def test_a_closed_loop_of_one_is_a_batch_of_one() -> None:
    steps = Affine(0.01, 0.001, 1e-6)
    loop = closed_loop_times(steps, LIMITS, 1, input_len=500, output_len=50)
    batch = batch_times(steps, LIMITS, 1, input_len=500, output_len=50)
    assert loop == replace(batch, prefill_share=pytest.approx(batch.prefill_share))


def test_a_closed_loop_of_prefills_alone_is_bounded_by_the_gpu() -> None:
    times = closed_loop_times(Affine(0.0, 0.001), LIMITS, 64, input_len=1000, output_len=1)
    assert times.requests_per_s == pytest.approx(1.0)  # a second of GPU time each, whatever the concurrency


def test_a_closed_loop_conserves_gpu_time() -> None:
    """With per-token cost alone, throughput is 1 / (GPU time of a request): mixing costs nothing extra."""
    times = closed_loop_times(Affine(0.0, 1e-4), LIMITS, 32, input_len=300, output_len=100)
    rows = times.decode_sequences * 99 * 1e-4 / 32 + 300 * 1e-4
    assert times.requests_per_s == pytest.approx(1 / rows)


def test_client_latency_adds_to_ttft_and_slows_the_loop() -> None:
    steps, slow = Affine(0.01), replace(LIMITS, request_latency_s=0.5)
    near = closed_loop_times(steps, LIMITS, 4, input_len=10, output_len=20)
    far = closed_loop_times(steps, slow, 4, input_len=10, output_len=20)
    assert far.ttft_s == pytest.approx(near.ttft_s + 0.5)
    assert far.requests_per_s < near.requests_per_s


@given(
    prompts=st.integers(1, 60),
    input_len=st.integers(1, 5000),
    budget=st.integers(1, 4096),
    beside=st.integers(0, 100),
    chunked=st.booleans(),
    window=st.none() | st.integers(1, 600),
)
def test_prefill_steps_conserve_tokens_pairs_and_prompts(
    prompts: int, input_len: int, budget: int, beside: int, chunked: bool, window: int | None
) -> None:
    limits = replace(
        LIMITS,
        max_num_batched_tokens=max(budget, input_len // 200 + 1),
        chunked_prefill=chunked,
        window_tokens=window,
    )
    steps = list(prefill_steps(prompts, input_len, limits, decode=decode_shape(beside, 10)))
    whole = prefill_shape(prompts, input_len, window_tokens=window)
    assert sum(s.prefill_tokens for s in steps) == whole.prefill_tokens
    assert sum(s.prefill_pairs for s in steps) == whole.prefill_pairs
    assert sum(s.prefill_window_pairs for s in steps) == whole.prefill_window_pairs
    assert sum(s.prompts_completed for s in steps) == prompts
    assert all(s.decode_sequences == beside for s in steps)
    if not chunked:
        assert all(s.prefill_tokens % input_len == 0 for s in steps)
    elif limits.max_num_batched_tokens > beside:
        assert all(s.num_tokens <= limits.max_num_batched_tokens for s in steps)


def test_seats_bound_a_step_and_a_full_house_still_makes_progress() -> None:
    crowded = replace(LIMITS, max_num_seqs=4)
    assert len(list(prefill_steps(8, 16, crowded))) == 2
    assert len(list(prefill_steps(8, 16, crowded, decode=decode_shape(4, 10)))) == 8


def test_the_bound_is_that_of_most_of_the_time() -> None:
    def op(seconds: float, bound: str) -> OpCost:
        return OpCost(name=bound, flops=0, bytes=0, seconds=seconds, bound=bound)  # type: ignore[arg-type]

    cost = StepCost(operators=(op(3, "compute"), op(2, "memory"), op(2, "memory")))
    assert main_bound(cost) == "memory"


def test_prompts_that_begin_in_one_step_share_its_fixed_cost() -> None:
    """A second for any prefill: C/output = mu prompts end in a step (Poisson), mu/(1 - e^-mu) begin at a time."""

    class Launches(Affine):
        def step_seconds(self, shape: StepShape) -> float:
            return 0.001 + float(shape.prefill_sequences > 0)

    apart = replace(LIMITS, mixes_prefill_with_decode=False, max_num_batched_tokens=65536)
    times = closed_loop_times(Launches(0.0), apart, 100, input_len=10, output_len=50)
    together = 2 / (1 - math.exp(-2))
    cycle_s = 49 * 0.001 + 100 / together * 1.001
    assert times.requests_per_s == pytest.approx(100 / cycle_s, rel=0.001)


def test_the_formula_and_the_simulator_agree_where_a_prefills_cost_is_its_launch() -> None:
    """Lengths that differ, so that requests do not keep step; a small model, whose prefill is launches and host."""
    load: dict[str, Any] = {
        "gpu": "h100",
        "engine": "sglang",
        "input_len": 200,
        "output_len": 200,
        "concurrency": 128,
    }
    pool = resolve("qwen3-0.6b", Pool(gpu="h100", engine="sglang"))
    loop = closed_loop_times(pool.step_model, pool.limits_from(), 128, input_len=200, output_len=200)
    predicted = 200 * loop.requests_per_s
    run = capacity.simulate("qwen3-0.6b", **load, num_prompts=1000, random_range_ratio=0.3, seed=1).to_dict()
    assert predicted == pytest.approx(run["output_throughput"], rel=0.25)
