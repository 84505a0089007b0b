"""Kernel constants of another engine or GPU replace missing ones in a fixed order."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput
from capacity.hardware.coefficients import (
    Fit,
    GemmCoefficients,
    KernelFamily,
    StepCoefficients,
    universal_family,
)
from capacity.hardware.kernel_lookup import MARLIN_SLOWDOWN, KernelLookup

FIT = Fit(basis="fitted", source="a test", date="2026-11-21")


def gemm(fixed_s: float) -> GemmCoefficients:
    return GemmCoefficients(
        compute_fraction=0.5, bandwidth_fraction=0.5, sharpness=2.0, fixed_s=fixed_s, fit=FIT
    )


def test_lookup_prefers_own_engine_then_other_gpu_then_other_engine() -> None:
    own = StepCoefficients(families={"sglang": KernelFamily(gemm={"bf16": gemm(1e-6)})})
    other = StepCoefficients(families={"vllm": KernelFamily(gemm={"bf16": gemm(2e-6)})})
    lookup = KernelLookup((own, other), "vllm")
    assert lookup.kernel("gemm", "bf16").fixed_s == 2e-6
    assert lookup.assumed == ["gemm bf16"]
    assert KernelLookup((own, other), "sglang").kernel("gemm", "bf16").fixed_s == 1e-6
    assert KernelLookup((own,), "trtllm").kernel("gemm", "bf16").fixed_s == 1e-6


def test_an_unmeasured_kernel_takes_the_nearest() -> None:
    source = StepCoefficients(families={"vllm": KernelFamily(gemm={"bf16": gemm(1e-6)})})
    lookup = KernelLookup((source,), "vllm")
    assert lookup.kernel("gemm", "fp16").fixed_s == 1e-6  # not assumed: fp16 runs bf16's kernels
    assert lookup.kernel("gemm", "nvfp4") == universal_family().gemm["nvfp4"]
    assert lookup.kernel("gemm", "w8a16").fixed_s == universal_family().gemm["w8a16"].fixed_s
    assert lookup.assumed == ["gemm nvfp4", "gemm w8a16"]


def test_anothers_weight_only_kernel_stands_for_marlin_no_faster_than_that_is() -> None:
    family = KernelFamily(gemm={"bf16": gemm(1e-6), "w4a16": gemm(2e-6), "w8a16": gemm(2e-6)})
    source = StepCoefficients(families={"trtllm": family})
    sixteen = gemm(1e-6).compute_fraction
    for key, slower in MARLIN_SLOWDOWN.items():
        for engine in ("vllm", "sglang"):
            by_marlin = KernelLookup((source,), engine).kernel("gemm", key)
            assert by_marlin.compute_fraction == pytest.approx(sixteen / slower)
            assert by_marlin.fit.basis == "assumed"
        assert KernelLookup((source,), "trtllm").kernel("gemm", key) == gemm(2e-6)
    own = StepCoefficients(families={"vllm": family})
    assert KernelLookup((own,), "vllm").kernel("gemm", "w4a16") == gemm(2e-6)  # measured: as it was


def test_a_kernel_without_constants_is_refused_with_a_way_out() -> None:
    source = StepCoefficients(families={"vllm": KernelFamily(gemm={"bf16": gemm(1e-6)})})
    with pytest.raises(
        InvalidInput, match=r"gemm kernel 'fp6', only for bf16, .*step_time\.families"
    ) as error:
        KernelLookup((source,), "vllm").kernel("gemm", "fp6")
    assert "\n" not in str(error.value)
