"""Mixtures over ranks: sliced or whole experts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_models import steps

from capacity.hardware import load_profile
from capacity.step import decode_shape, prefill_shape
from capacity.step.layers.feed_forward import FP32_ROUTER, UNEVEN_LOADS
from capacity.step.operators import gemm_seconds


def test_expert_parallel_ranks_hold_whole_experts() -> None:
    shape = decode_shape(512, 1000)
    sliced, whole = (
        {
            op.name: op
            for op in steps("deepseek-v3", tp=8, enable_expert_parallel=ep).step_cost(shape).operators
        }
        for ep in (False, True)
    )
    # All 256 experts are touched either way; the busiest rank has some tokens more than the mean.
    assert whole["experts"].bytes == pytest.approx(sliced["experts"].bytes, rel=0.1)
    assert whole["experts"].flops > sliced["experts"].flops
    dispatched = steps("deepseek-v3", tp=1, data_parallel_size=8, enable_expert_parallel=True).step_cost(
        shape
    )
    assert "expert exchange" in {op.name for op in dispatched.operators}


def test_a_gated_shared_expert_pays_for_its_gate() -> None:
    shape = decode_shape(8, 1000)
    gated, plain = (
        {op.name: op for op in steps(model, tp=8).step_cost(shape).operators}
        for model in ("qwen3-next-80b-a3b", "deepseek-v3")
    )
    assert "shared gate_up" in plain
    assert "shared gate" not in plain
    assert gated["shared gate"].flops == 48 * 2 * 8 * 2048


def test_a_balanced_router_touches_more_experts() -> None:
    skewed, balanced = (
        next(op for op in steps(model, tp=8)._operators.per_token if op.name == "experts")
        for model in ("qwen3-235b-a22b", "deepseek-v3")
    )
    assert skewed.evenness < balanced.evenness
    assert skewed.work(64.0)[1] < replace(skewed, evenness=balanced.evenness).work(64.0)[1]


def test_uneven_loads_slow_large_batches_down_and_leave_small_ones_alone() -> None:
    own = steps("deepseek-v3", tp=8)
    experts = next(op for op in own._operators.per_token if op.name == "experts")
    even = {
        name: getattr(experts.constants, name) / UNEVEN_LOADS
        for name in ("compute_fraction", "routed_fraction")
    }
    balanced = replace(experts, constants=experts.constants.model_copy(update=even))
    lost = [
        experts.seconds(shape) / balanced.seconds(shape)
        for shape in (decode_shape(8, 1000), prefill_shape(1, 16_000))
    ]
    assert lost[0] == pytest.approx(1.0, abs=0.01)
    assert 1.05 < lost[1] < 1 / UNEVEN_LOADS


@pytest.mark.parametrize(
    ("tokens", "measured_us"), [(64, 15.36), (256, 21.95), (1024, 53.66), (4096, 174.43), (16384, 438.72)]
)
def test_a_router_in_32_bit_as_it_was_measured(tokens: int, measured_us: float) -> None:
    """cuBLAS, 6144 x 128, on GB300: vLLM pull request 55899."""
    gpu = load_profile("gb300-nvl72")
    predicted_s = gemm_seconds(
        tokens,
        128,
        6144,
        weight_bytes=6144 * 128 * 4,
        activation_bits=32,
        flops_per_s=gpu.dense_flops_per_s["fp32"],
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        constants=FP32_ROUTER,
    )
    assert predicted_s * 1e6 == pytest.approx(measured_us, rel=0.25)


def router_seconds(model: str, engine: str, gpu: str = "b200-sxm-180gb", *, tokens: int = 8192) -> float:
    """Of all layers, in a prefill."""
    routed = next(
        op for op in steps(model, gpu=gpu, engine=engine)._operators.per_token if op.name == "router"
    )
    return routed.seconds(prefill_shape(1, tokens))


def test_a_router_in_32_bit_takes_long_in_prefill_and_newer_engines_split_it_on_blackwell() -> None:
    """MiniMax-M2: 62 layers, on no tensor cores; as three products of bf16 since vLLM 0.33, on Blackwell alone."""
    whole, split = router_seconds("minimax-m2", "vllm@0.19"), router_seconds("minimax-m2", "vllm@0.33")
    assert whole > 62 * 2 * 8192 * 3072 * 256 / 75e12
    assert split < whole / 4
    of_16_bit = router_seconds("qwen3-235b-a22b", "vllm@0.19") / 94 * 62  # half of the experts, a third wider
    assert whole > 5 * of_16_bit
    hopper = [router_seconds("minimax-m2", engine, "h200-sxm-141gb") for engine in ("vllm@0.19", "vllm@0.33")]
    assert hopper[0] == hopper[1] > whole  # 67 TFLOP/s, of Blackwell 75
