"""Mixtures over ranks: sliced or whole experts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_models import steps

from capacity.deployment import Pool
from capacity.hardware import load_profile
from capacity.hardware.coefficients import universal_family
from capacity.pool.resolve import resolve
from capacity.step import decode_shape, prefill_shape
from capacity.step.layers.feed_forward import FP32_ROUTER, UNEVEN_LOAD_FRACTION, add_matrix_walk
from capacity.step.operators import gemm_seconds, moe_seconds


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
        name: getattr(experts.constants, name) / UNEVEN_LOAD_FRACTION
        for name in ("compute_fraction", "routed_fraction")
    }
    balanced = replace(experts, constants=experts.constants.model_copy(update=even))
    lost = [
        experts.seconds(shape) / balanced.seconds(shape)
        for shape in (decode_shape(8, 1000), prefill_shape(1, 16_000))
    ]
    assert lost[0] == pytest.approx(1.0, abs=0.01)
    assert 1.05 < lost[1] < 1 / UNEVEN_LOAD_FRACTION


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
    """MiniMax-M2: 62 layers, on no tensor cores; as three products of bf16 since vLLM 0.30, on Blackwell alone."""
    whole, split = router_seconds("minimax-m2", "vllm@0.29"), router_seconds("minimax-m2", "vllm@0.30")
    assert whole > 62 * 2 * 8192 * 3072 * 256 / 75e12
    assert split < whole / 4
    of_16_bit = router_seconds("qwen3-235b-a22b", "vllm@0.19") / 94 * 62  # half of the experts, a third wider
    assert whole > 5 * of_16_bit
    hopper = [router_seconds("minimax-m2", engine, "h200-sxm-141gb") for engine in ("vllm@0.29", "vllm@0.30")]
    assert hopper[0] == hopper[1] > whole  # 67 TFLOP/s, of Blackwell 75


@pytest.mark.parametrize(
    ("tokens", "hidden", "width", "touched", "measured_us"),
    [
        # Qwen3-Omni-30B on a B200, tiles by default (vllm pull request 31448, 2025-12): distinct experts of random ones
        (1, 2048, 768, 8.0, 39.61),
        (2, 2048, 768, 15.5, 51.87),
        (4, 2048, 768, 29.1, 73.18),
        # aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), SGLang 0.5.14's sglang_fused_moe_triton, balanced
        (1, 4096, 14336, 1.0, 154.8),
        (384, 6144, 384, 128.0, 397.5),
        (96, 4096, 2048, 128.0, 1055.6),
    ],
)
def test_untuned_triton_as_it_was_measured(
    tokens: int, hidden: int, width: int, touched: float, measured_us: float
) -> None:
    card = load_profile("b200")
    matrices = 3 * hidden * width
    pairs = tokens * (4 if hidden == 6144 else 8) / (2 if (tokens, hidden) == (96, 4096) else 1)
    seconds = moe_seconds(
        2 * pairs * matrices,
        touched * matrices * 2 + pairs * (4 * hidden + 6 * width),
        pairs * hidden * 2,
        flops_per_s=card.dense_flops_per_s["bf16"],
        hbm_bytes_per_s=card.hbm_bytes_per_s,
        constants=add_matrix_walk(universal_family().moe["bf16_triton"], hidden + width),
    )
    assert seconds * 1e6 == pytest.approx(measured_us, rel=0.2)


def test_experts_by_the_backend_that_is_asked_for_or_the_engines() -> None:
    shape = decode_shape(1, 1000)

    def seconds(
        engine: str, backend: str = "auto", gpu: str = "b200", quantization: str | None = None
    ) -> float:
        pool = Pool(gpu=gpu, engine=engine, moe_backend=backend, quantization=quantization)
        return resolve("qwen3-30b-a3b", pool).step_model.step_seconds(shape)

    assert seconds("sglang@0.5.9") == seconds("sglang@0.5.9", "triton")
    assert seconds("sglang@0.5.10") == seconds("sglang@0.5.10", "flashinfer_trtllm")
    # 48 layers, each of which walks through 2,048 + 768 rows
    slower = seconds("sglang@0.5.10", "triton") - seconds("sglang@0.5.10", "flashinfer_trtllm")
    assert slower > 48 * 2816 * universal_family().moe["bf16_triton"].per_k_s * 0.5
    assert seconds("vllm", "triton", gpu="h100") == seconds("vllm", gpu="h100")  # whose tables are Triton's
    assert seconds("vllm", "triton", quantization="fp8") > seconds("vllm", quantization="fp8")
    assert seconds("vllm@0.11", quantization="fp8") == seconds("vllm@0.11", "triton", quantization="fp8")
    assert seconds("vllm", "triton", quantization="nvfp4") == seconds("vllm", quantization="nvfp4")


def test_a_backend_without_constants_is_said() -> None:
    def notes(gpu: str, backend: str, quantization: str | None = None) -> str:
        pool = Pool(gpu=gpu, engine="vllm", moe_backend=backend, quantization=quantization)
        return " ".join(resolve("qwen3-30b-a3b", pool).step_model.notes)

    assert "nvfp4 experts with triton on b200-sxm-180gb were not measured" in notes("b200", "triton", "nvfp4")
    assert "bf16 experts with deep_gemm on h100-sxm-80gb were not measured" in notes("h100", "deep_gemm")
    assert "not measured" not in notes("b200", "triton") + notes("b200", "triton", "fp8") + notes(
        "b200", "flashinfer_trtllm"
    ) + notes("h100", "triton")


@pytest.mark.parametrize(
    ("hidden", "width", "touched", "pairs", "routed", "measured_us"),
    [  # aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), SGLang 0.5.14's sglang_fused_moe_triton, FP8 blocks, balanced
        (4096, 512, 32.0, 32, 64, 90.8),
        (4096, 1024, 256.0, 512, 512, 649.6),
        (4096, 256, 256.0, 12288, 12288, 341.0),
        (7168, 3072, 96.0, 4608, 18432, 1582.6),
    ],
)
def test_untuned_triton_in_fp8_as_it_was_measured(
    hidden: int, width: int, touched: float, pairs: int, routed: int, measured_us: float
) -> None:
    card, matrices = load_profile("b200"), 3 * hidden * width
    seconds = moe_seconds(
        2 * pairs * matrices,
        touched * matrices + pairs * (3 * hidden + 6 * width),
        routed * hidden * 2,
        flops_per_s=card.dense_flops_per_s["fp8"],
        hbm_bytes_per_s=card.hbm_bytes_per_s,
        constants=add_matrix_walk(universal_family().moe["fp8_triton"], hidden + width),
    )
    assert seconds * 1e6 == pytest.approx(measured_us, rel=0.2)


def test_models_of_deepseeks_kind_have_kernels_before_others() -> None:
    pool = {"gpu": "b200", "tensor_parallel_size": 8, "engine": "sglang@0.5.4"}
    latent, other = ("deepseek-v3", "qwen3-235b-a22b")
    shape = decode_shape(16, 1000)

    def seconds(model: str, backend: str) -> float:
        asked = Pool.model_validate({**pool, "moe_backend": backend, "quantization": "fp8-block"})
        return resolve(model, asked).step_model.step_seconds(shape)

    assert seconds(latent, "auto") == seconds(latent, "flashinfer_trtllm") != seconds(latent, "triton")
    assert seconds(other, "auto") == seconds(other, "triton") != seconds(other, "flashinfer_trtllm")
