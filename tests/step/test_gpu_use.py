"""Use of a GPU at a load: sums of steps by hand, and the same seconds as the GPU time of requests."""

from __future__ import annotations

import math

import pytest

from capacity.deployment import Pool
from capacity.pool.drafting.token_steps import TokenSteps
from capacity.pool.resolve import resolve
from capacity.step import OpCost, StepCost, StepShape
from capacity.step.closed_form import EngineLimits
from capacity.step.gpu_use import gpu_use, use_of_steps
from capacity.step.time_shares import EngineLoad, request_seconds

LIMITS = EngineLimits(
    max_num_seqs=256,
    max_num_batched_tokens=1_000_000,
    chunked_prefill=True,
    mixes_prefill_with_decode=True,
    window_tokens=None,
    request_latency_s=0.0,
)


class Linear:
    """A step takes 8 ms of GPU and 2 ms of host, 0.01 ms a prompt token; 1 GFLOP a token, 10 GB a step."""

    def step_seconds(self, shape: StepShape) -> float:
        return self.step_cost(shape).seconds

    def step_cost(self, shape: StepShape) -> StepCost:
        tokens = shape.decode_sequences + shape.prefill_tokens
        if not tokens:
            return StepCost(operators=())
        own_s = 0.008 + 1e-5 * shape.prefill_tokens
        kernel = OpCost(name="gemm", flops=1e9 * tokens, bytes=1e10, seconds=own_s, bound="memory")
        return StepCost(
            operators=(kernel, OpCost(name="host", flops=0.0, bytes=0.0, seconds=0.002, bound="host"))
        )


def load_of(rate: float) -> EngineLoad:
    return EngineLoad(requests_per_s=rate, input_len=1000, output_len=101, most_decoding=256)


def test_steps_at_a_rate_by_hand() -> None:
    steps = Linear()
    decode = steps.step_cost(StepShape(decode_sequences=10))
    found = use_of_steps([(50.0, decode)], duty=0.5)
    assert found.duty == 0.5
    assert found.kernel_fraction == pytest.approx(0.8)
    assert found.bytes_per_s == pytest.approx(1e12)  # 50 steps in half a second of each second
    assert found.flops_per_s == pytest.approx(50 * 1e10 / 0.5)


def test_trickle_of_requests_by_hand() -> None:
    """A prompt of its own takes 20 ms, 100 steps 10 ms each: 1.02 s of each 1,000; 1,100 tokens computed."""
    found = gpu_use(Linear(), LIMITS, load_of(1e-3))
    assert found.duty == pytest.approx(1.02e-3, rel=1e-3)
    assert found.flops_per_s == pytest.approx(1.1e12 / 1.02, rel=1e-3)
    assert found.bytes_per_s == pytest.approx(101 * 1e10 / 1.02, rel=0.02)


def test_saturated_engine_has_a_duty_of_one_and_each_request_the_flops_of_its_tokens() -> None:
    steps, load = Linear(), load_of(math.inf)
    found = gpu_use(steps, LIMITS, load)
    rate = 1 / request_seconds(steps, LIMITS, load).total_s
    assert found.duty == pytest.approx(1.0)
    assert found.flops_per_s == pytest.approx(rate * 1100e9, rel=1e-6)


def test_rate_beyond_the_capacity_is_the_highest_that_can_be_served() -> None:
    steps = Linear()
    assert gpu_use(steps, LIMITS, load_of(1e6)) == gpu_use(steps, LIMITS, load_of(math.inf))


def test_drafting_and_a_decode_only_engine_have_a_use() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100", speculator="ngram", num_speculative_tokens=3))
    load = EngineLoad(requests_per_s=2.0, input_len=1000, output_len=200, most_decoding=64, hit_fraction=1.0)
    found = gpu_use(TokenSteps(resolved), resolved.limits, load)
    assert 0 < found.duty < 1
    assert 0.05 < found.kernel_fraction <= 1
    assert 0 < found.bytes_per_s < resolved.profile.hbm_bytes_per_s
