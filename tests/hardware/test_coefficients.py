"""Coefficients as data: read back identically, refused where they do not belong, found in the right order."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from capacity.hardware import dump_profile, load_profile, parse_profile, profile_names
from capacity.hardware.coefficients import (
    AttentionCoefficients,
    Coefficients,
    Fit,
    GemmCoefficients,
    KernelFamily,
    StepCoefficients,
    universal_family,
)
from capacity.hardware.kernel_lookup import KernelLookup

FIT = Fit(basis="fitted", source="a test", date="2026-11-21")


def gemm(fixed_s: float) -> GemmCoefficients:
    return GemmCoefficients(
        compute_fraction=0.5, bandwidth_fraction=0.5, sharpness=2.0, fixed_s=fixed_s, fit=FIT
    )


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_reads_back_identically(name: str) -> None:
    profile = load_profile(name)
    assert profile.step_time is not None
    assert profile.step_time.gpu == name
    assert parse_profile(dump_profile(profile)) == profile


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_states_source_and_error_of_its_fits(name: str) -> None:
    step_time = load_profile(name).step_time
    assert step_time is not None
    for family in step_time.families.values():
        for kind in KernelFamily.model_fields:
            sets = getattr(family, kind)
            for constants in sets.values() if isinstance(sets, dict) else filter(None, [sets]):
                assert constants.fit.source
                assert constants.fit.rows > 0
                assert constants.fit.median_error is not None
    assert set(step_time.residuals) == {"prefill", "decode", "decode_moe"}
    if not step_time.families:
        assert step_time.transferred_from is not None or step_time.error_factor > 1
        assert step_time.residuals["decode"].fit.basis == "assumed"


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="extra"):
        GemmCoefficients.model_validate({**gemm(1e-6).model_dump(), "speed": 3})


@pytest.mark.parametrize(
    "change", [{"compute_fraction": 1.2}, {"bandwidth_fraction": 0.0}, {"sharpness": 0.5}, {"fixed_s": -1.0}]
)
def test_unphysical_constants_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        GemmCoefficients.model_validate({**gemm(1e-6).model_dump(), **change})


def test_anothers_constants_are_turned_into_this_cards() -> None:
    family = KernelFamily(gemm={"bf16": gemm(1e-6)})
    own, other = StepCoefficients(families={"trtllm": family}), StepCoefficients(families={"vllm": family})

    def slower(constants: Coefficients) -> Coefficients:
        return constants.model_copy(update={"compute_fraction": 0.1})

    lookup = KernelLookup((own, other), "vllm", on_this_card=slower)
    assert lookup.kernel("gemm", "bf16").compute_fraction == 0.1
    assert KernelLookup((own, other), "trtllm", on_this_card=slower).kernel("gemm", "bf16") == gemm(1e-6)
    assert lookup.kernel("gemm", "nvfp4") == universal_family().gemm["nvfp4"]


def test_without_any_fit_the_universal_set_holds_for_everything() -> None:
    lookup = KernelLookup((), "vllm")
    for kind in ("prefill_attention", "decode_attention", "mla_prefill", "mla_decode"):
        for dtype in ("16bit", "8bit"):
            assert isinstance(lookup.kernel(kind, dtype), AttentionCoefficients)
    for kernel in ("bf16", "fp16", "fp32", "fp8", "fp8_block", "int8", "w4a16", "w8a16", "nvfp4", "mxfp4"):
        assert lookup.kernel("gemm", kernel).fit.basis == "assumed"
        assert lookup.kernel("moe", kernel).fit.basis == "assumed"
    assert lookup.all_reduce().fit.basis == "assumed"
    assert lookup.residuals("decode").low < 0 < lookup.residuals("decode").high
