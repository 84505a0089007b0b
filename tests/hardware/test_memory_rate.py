"""Memory-bound kernels on cards with other memory than their sister's."""

from __future__ import annotations

import pytest

from capacity.hardware import load_profile
from capacity.hardware.coefficients import ElementwiseCoefficients, Fit, GemmCoefficients
from capacity.hardware.memory_rate import (
    ECC_RATE_SHARE,
    STREAMED_SHARE,
    has_inline_ecc,
    scale_to_memory,
    scaled_bandwidth_fraction,
    streamed_share,
)

A100, A100_40 = load_profile("a100-sxm-80gb"), load_profile("a100-sxm-40gb")
L40S, RTX_4090 = load_profile("l40s-48gb"), load_profile("rtx-4090-24gb")
FIT = Fit(basis="fitted", source="a table", date="2026-11-23")


def gemm(bandwidth_fraction: float) -> GemmCoefficients:
    return GemmCoefficients(
        compute_fraction=0.7, bandwidth_fraction=bandwidth_fraction, sharpness=2.0, fixed_s=5e-6, fit=FIT
    )


def test_memory_that_holds_its_own_check_bits_is_known_by_what_is_left_of_it() -> None:
    with_bits = ("l40s-48gb", "l4-24gb", "a10-24gb", "a10g-24gb", "a40-48gb", "t4-16gb")
    without = (
        "a100-sxm-80gb",
        "h100-sxm-80gb",
        "b200-sxm-180gb",
        "b300-sxm-288gb",
        "rtx-4090-24gb",
        "rtx-a6000-48gb",
    )
    assert [has_inline_ecc(load_profile(name)) for name in with_bits] == [True] * len(with_bits)
    assert [has_inline_ecc(load_profile(name)) for name in without] == [False] * len(without)
    assert streamed_share(L40S) == pytest.approx(STREAMED_SHARE * ECC_RATE_SHARE)


def test_a_kernel_takes_the_memorys_time_and_the_chips() -> None:
    fraction, sms = 0.75, A100.sm_count / load_profile("rtx-a6000-48gb").sm_count
    card = load_profile("rtx-a6000-48gb")
    of_memory = 1 / (STREAMED_SHARE * card.hbm_bytes_per_s)
    of_chip = 1 / (fraction * A100.hbm_bytes_per_s) - 1 / (STREAMED_SHARE * A100.hbm_bytes_per_s)
    rate = scaled_bandwidth_fraction(card, A100, fraction) * card.hbm_bytes_per_s
    assert 1 / rate == pytest.approx(of_memory + of_chip * sms)


def test_the_same_memory_changes_nothing_and_slower_memory_is_used_better() -> None:
    assert scaled_bandwidth_fraction(A100, A100, 0.7) == pytest.approx(0.7)
    shares = [
        scaled_bandwidth_fraction(A100_40.model_copy(update={"hbm_bytes_per_s": rate}), A100, 0.75)
        for rate in (3e11, 1e12, 2e12)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] < STREAMED_SHARE
    assert scaled_bandwidth_fraction(RTX_4090, L40S, 0.99) == 1.0


def test_measured_pairs() -> None:
    # FluidX3D, share of the datasheet's rate (README, read 2026-11): each ratio is more than a read-only kernel's,
    # since half of what it moves is written
    assert 1.02 < scaled_bandwidth_fraction(A100_40, A100, 0.7575) / 0.7575 < 0.84 / 0.77
    assert (
        1.02 < scaled_bandwidth_fraction(load_profile("rtx-6000-ada-48gb"), L40S, 0.792) / 0.792 < 0.80 / 0.67
    )
    # tables of the same products on H100 and H200 (aiconfigurator-core 0.12.0): 0.90, 0.86 and 0.88 of H100's memory,
    # 0.87, 0.86 and 0.88 of H200's
    h100, h200 = load_profile("h100-sxm-80gb"), load_profile("h200-sxm-141gb")
    for there, here in ((0.9001, 0.8673), (0.8552, 0.8631), (0.8752, 0.8808)):
        assert scaled_bandwidth_fraction(h200, h100, there) == pytest.approx(here, rel=0.05)


def test_scaled_constants_say_so_and_other_vendors_keep_theirs() -> None:
    scaled = scale_to_memory(gemm(0.7575), A100_40, A100)
    assert isinstance(scaled, GemmCoefficients)
    assert scaled.bandwidth_fraction == scaled_bandwidth_fraction(A100_40, A100, 0.7575)
    assert (scaled.compute_fraction, scaled.fixed_s, scaled.fit.basis) == (0.7, 5e-6, "assumed")
    assert "1.55 TB/s" in scaled.fit.source
    assert scale_to_memory(gemm(0.7), load_profile("mi300x-192gb"), load_profile("h100-sxm-80gb")) == gemm(
        0.7
    )
    norms = ElementwiseCoefficients(bandwidth_fraction=0.7, fixed_s=2e-6, fit=FIT)
    assert scale_to_memory(norms, A100, A100) is norms
