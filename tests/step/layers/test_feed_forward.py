"""Mixtures over ranks: sliced or whole experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from step_models import steps

from capacity.deployment import Pool
from capacity.hardware import load_profile
from capacity.hardware.coefficients import universal_family
from capacity.pool.resolve import resolve
from capacity.step import decode_shape, prefill_shape
from capacity.step.expert_load import moe_seconds
from capacity.step.layers.feed_forward import FP32_ROUTER, UNEVEN_LOAD_FRACTION, add_matrix_walk
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


@pytest.mark.parametrize(
    ("tokens", "hidden", "width", "experts", "topk", "ranks", "measured_us"),
    [  # aiconfigurator 0.10.0 (NVIDIA, Apache-2.0), vLLM 0.14.0 on H100, balanced, experts divided over `ranks` GPUs
        (64, 4096, 1536, 128, 8, 8, 293),
        (4096, 4096, 1536, 128, 8, 8, 1160),
        (512, 4096, 1536, 128, 8, 4, 704),
        (128, 2048, 768, 128, 8, 4, 158),
        (256, 4096, 14336, 8, 2, 4, 509),
        (128, 3072, 1536, 256, 8, 8, 437),
    ],
)
def test_untuned_triton_on_hopper_as_it_was_measured(
    tokens: int, hidden: int, width: int, experts: int, topk: int, ranks: int, measured_us: float
) -> None:
    card, matrices, pairs = load_profile("h100"), 3 * hidden * width, tokens * topk / ranks
    seconds = moe_seconds(
        2 * pairs * matrices,
        min(experts, tokens * topk) / ranks * matrices * 2 + pairs * (4 * hidden + 6 * width),
        tokens * topk * hidden * 2,
        flops_per_s=card.dense_flops_per_s["bf16"],
        hbm_bytes_per_s=card.hbm_bytes_per_s,
        constants=add_matrix_walk(universal_family().moe["bf16_untuned"], hidden + width),
    )
    assert seconds * 1e6 == pytest.approx(measured_us, rel=0.25)


@pytest.mark.parametrize(
    ("gpu", "kernel", "tokens", "hidden", "experts", "ranks", "measured_us"),
    [  # aiconfigurator 0.10.0 (NVIDIA, Apache-2.0), vLLM 0.19.0's fused_experts at 4 bit, balanced, 2,048 wide
        ("h100", "w4a16_triton", 8, 7168, 384, 1, 246),
        ("h100", "w4a16_triton", 64, 7168, 384, 1, 1251),
        ("h100", "w4a16_triton", 16384, 6144, 256, 8, 11689),
        ("b200", "w4a16_triton_blackwell", 128, 7168, 384, 1, 1398),
        ("b200", "w4a16_triton_blackwell", 512, 6144, 256, 8, 1180),
    ],
)
def test_triton_at_4_bit_as_it_was_measured(
    gpu: str, kernel: str, tokens: int, hidden: int, experts: int, ranks: int, measured_us: float
) -> None:
    card, width, pairs = load_profile(gpu), 2048 * ranks / 8, tokens * 8 / ranks
    matrices = 3 * hidden * width
    seconds = moe_seconds(
        2 * pairs * matrices,
        min(experts, tokens * 8) / ranks * matrices * 4.156 / 8 + pairs * (4 * hidden + 6 * width),
        tokens * 8 * hidden * 2,
        flops_per_s=card.dense_flops_per_s["bf16"],
        hbm_bytes_per_s=card.hbm_bytes_per_s,
        constants=add_matrix_walk(universal_family().moe[kernel], hidden + width),
    )
    assert seconds * 1e6 == pytest.approx(measured_us, rel=0.45)


def experts_seconds(engine: str, model: str = "qwen3-235b-a22b", tokens: int = 8, **pool: Any) -> float:
    asked = Pool.model_validate({"gpu": "h100", "tensor_parallel_size": 4, "engine": engine, **pool})
    cost = resolve(model, asked).step_model.step_cost(decode_shape(tokens, 500))
    return next(op.seconds for op in cost.operators if op.name == "experts")


def test_deepgemm_pads_experts_by_the_rules_of_the_release() -> None:
    whole = {"quantization": "fp8-block", "enable_expert_parallel": True}
    releases = [
        experts_seconds(f"vllm@{release}", **whole) for release in ("0.11.0", "0.11.1", "0.14", "0.15")
    ]
    assert releases[1] == releases[2] > 1.8 * releases[0] == 1.8 * releases[3]
    sliced = {"quantization": "fp8-block", "tensor_parallel_size": 8}
    assert experts_seconds("vllm@0.11.1", **sliced) > experts_seconds("vllm@0.12", **sliced)
    assert experts_seconds("vllm@0.12", **sliced) == experts_seconds("vllm@0.15", **sliced)
    assert experts_seconds("vllm@0.33", moe_backend="deep_gemm", **whole) == releases[1]
    per_tensor = {"quantization": "fp8", "enable_expert_parallel": True}
    assert experts_seconds("vllm@0.11.1", **per_tensor) == experts_seconds("vllm@0.15", **per_tensor)
    latent = {"model": "deepseek-v3", "gpu": "b200", "tensor_parallel_size": 8, **whole}
    assert experts_seconds("vllm@0.11.1", **latent) > 1.3 * experts_seconds("vllm@0.15", **latent)


def test_padded_experts_count_a_tile_for_each_expert_of_the_rank() -> None:
    operators = (
        steps(
            "qwen3-235b-a22b",
            engine="vllm@0.11.1",
            tp=4,
            enable_expert_parallel=True,
            quantization="fp8-block",
        )
        .step_cost(decode_shape(8, 500))
        .operators
    )
    experts = next(op for op in operators if op.name == "experts")
    assert experts.flops == pytest.approx(94 * 2 * (8 * 8 + 32 * 127) * 3 * 4096 * 1536)


def test_whole_experts_of_early_releases_on_hopper_have_untuned_tiles() -> None:
    whole = {"enable_expert_parallel": True, "tensor_parallel_size": 8, "tokens": 64}
    assert experts_seconds("vllm@0.16", **whole) > 1.1 * experts_seconds("vllm@0.17", **whole)
    sliced = {"tensor_parallel_size": 8}
    assert experts_seconds("vllm@0.16", **sliced) == experts_seconds("vllm@0.17", **sliced)
    assert experts_seconds("sglang@0.5.4", **whole) == experts_seconds("sglang@0.5.9", **whole)


def test_int4_experts_of_broken_groups_run_without_marlin() -> None:
    """Qwen3-235B's 1,536 on four GPUs are three groups of 128, on eight one and a half."""

    def seconds(gpus: int, engine: str = "vllm@0.12", gpu: str = "h100", **more: Any) -> float:
        return experts_seconds(
            engine, quantization="awq-int4", tokens=64, gpu=gpu, tensor_parallel_size=gpus, **more
        )

    for gpu in ("h100", "b200"):
        assert seconds(8, gpu=gpu) > 1.3 * seconds(4, gpu=gpu)
    assert seconds(8, enable_expert_parallel=True) < seconds(4)
    assert seconds(8, "sglang") < seconds(4, "sglang")


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
    cutlass = seconds("vllm", "flashinfer_cutlass", quantization="nvfp4")
    assert cutlass == seconds("vllm", quantization="nvfp4")


@pytest.mark.parametrize(
    ("gpu", "backend", "quantization", "note"),
    [
        (
            "b200",
            "cutlass",
            "nvfp4",
            "nvfp4 experts were not measured with it on b200-sxm-180gb, so the times are those of flashinfer_trtllm",
        ),
        (
            "h100",
            "flashinfer_cutlass",
            None,
            "bf16 experts were not measured with it on h100-sxm-80gb, so the times are those of triton",
        ),
        (
            "b200",
            "flashinfer_trtllm",
            "awq-int4",
            "w4a16 experts were not measured with it on b200-sxm-180gb, so the times are those of marlin",
        ),
        (
            "h100",
            "triton",
            "awq-no-marlin",
            "the step model has one set of constants for awq experts, the same for all backends",
        ),
        ("b200", "triton", None, ""),
        ("b200", "triton", "fp8", ""),
        ("b200", "flashinfer_trtllm", None, ""),
        ("b200", "marlin", "nvfp4", ""),
        ("h100", "triton", None, ""),
    ],
)
def test_backend_that_changes_no_time_has_a_note(
    gpu: str, backend: str, quantization: str | None, note: str
) -> None:
    pool = Pool(gpu=gpu, engine="vllm", moe_backend=backend, quantization=quantization)
    notes = [each for each in resolve("qwen3-30b-a3b", pool).step_model.notes if "--moe-backend" in each]
    assert notes == ([f"--moe-backend {backend} does not change predicted times: {note}"] if note else [])


def test_marlin_has_its_own_times_for_formats_of_other_kernels() -> None:
    def seconds(gpu: str, model: str, backend: str, tokens: int, **more: Any) -> float:
        pool = {"tensor_parallel_size": 1, "moe_backend": backend, **more}
        return experts_seconds("vllm@0.33", model, tokens, gpu=gpu, **pool)

    for gpu in ("h100", "b200"):
        assert seconds(gpu, "gpt-oss-20b", "marlin", 64) != seconds(gpu, "gpt-oss-20b", "auto", 64)
    # at the rate of 16 bit, large batches of NVFP4 take at least four times as long
    own, marlin = (
        seconds("b200", "qwen3-30b-a3b", each, 8192, quantization="nvfp4") for each in ("auto", "marlin")
    )
    assert marlin > 3 * own
    assert seconds("l40s", "gpt-oss-20b", "marlin", 64) == seconds("l40s", "gpt-oss-20b", "auto", 64)
    int4 = {"quantization": "awq-int4"}
    assert seconds("h100", "qwen3-30b-a3b", "triton", 64, **int4) > 2 * seconds(
        "h100", "qwen3-30b-a3b", "marlin", 64, **int4
    )


def test_minimax_on_blackwell_runs_deepgemm_in_two_releases() -> None:
    def seconds(release: str, gpu: str = "b200", model: str = "minimax-m2") -> float:
        return experts_seconds(f"vllm@{release}", model, gpu=gpu, quantization="fp8-block")

    assert seconds("0.15") == seconds("0.16") == seconds("0.19") < 0.6 * seconds("0.17")
    assert seconds("0.17") == seconds("0.18")
    assert seconds("0.16") < seconds("0.16", "h200") < seconds("0.17")  # which GPU is faster
    assert seconds("0.24", model="minimax-m3") > 1.5 * seconds("0.25", model="minimax-m3")
    assert seconds("0.17", model="qwen3-235b-a22b") == seconds("0.19", model="qwen3-235b-a22b")


def test_biased_routing_has_one_kernel_since_vllm_0_10_2() -> None:
    def step(release: str, model: str, tokens: int) -> float:
        pool = Pool(gpu="h200", tensor_parallel_size=8, engine=f"vllm@{release}")
        return resolve(model, pool).step_model.step_seconds(decode_shape(tokens, 500))

    added = step("0.10.1", "deepseek-v3", 1) - step("0.10.2", "deepseek-v3", 1)
    assert added == pytest.approx(58 * 28e-6, rel=0.1)
    more = step("0.10.1", "deepseek-v3", 256) - step("0.10.2", "deepseek-v3", 256)
    assert more - added == pytest.approx(58 * 255 * 25.6e-9, rel=0.15)
    assert step("0.10.1", "qwen3-235b-a22b", 1) == step("0.10.2", "qwen3-235b-a22b", 1)


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
