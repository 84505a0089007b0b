"""Formats of weights and of the KV cache: closed forms of their bytes, and what multiplies them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import UnknownName
from capacity.hardware.kernel_lookup import KernelLookup
from capacity.hardware.weight_kernels import weight_kernels
from capacity.model.quantization import (
    find_format,
    find_kv_cache_format,
    grouped_int_format,
    weight_formats,
)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp32", 32),
        ("bf16", 16),
        ("fp16", 16),
        ("fp8", 8 + 32 / 4096**2),
        ("fp8-channel", 8 + 16 / 4096),
        ("fp8-block", 8 + 32 / 128**2),
        ("mxfp8", 8 + 8 / 32),
        ("int8", 8 + 16 / 4096),
        ("gptq-int8", 8 + (16 + 8) / 128),
        ("gptq-int4", 4 + (16 + 4) / 128),
        ("awq-int4", 4 + (16 + 4) / 128),
        ("int4-g32-sym", 4 + 16 / 32),
        ("gptq-int3", 3 + (16 + 3) / 128),
        ("nf4", 4 + 32 / 64),
        ("nf4-dq", 4 + 8 / 64 + 32 / (64 * 256) + 32 / 4096**2),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5 + 32 / 4096**2),
        # bytes of ggml's blocks of 32 or 256 weights
        ("gguf-q4_0", 18 * 8 / 32),
        ("gguf-q4_1", 20 * 8 / 32),
        ("gguf-q5_0", 22 * 8 / 32),
        ("gguf-q5_1", 24 * 8 / 32),
        ("gguf-q8_0", 34 * 8 / 32),
        ("gguf-q2_k", 84 * 8 / 256),
        ("gguf-q3_k", 110 * 8 / 256),
        ("gguf-q4_k", 144 * 8 / 256),
        ("gguf-q5_k", 176 * 8 / 256),
        ("gguf-q6_k", 210 * 8 / 256),
    ],
)
def test_true_bits_per_weight(name: str, bits: float) -> None:
    assert find_format(name).bits_per_weight == pytest.approx(bits, rel=1e-12)


def test_every_format_has_a_source_and_says_what_multiplies_it() -> None:
    for name in weight_formats():
        stored = find_format(name)
        assert stored.source
        needed = stored.needs_dtype or stored.compute_dtype
        assert (stored.fallback_kernel is None) == (needed not in ("fp8", "int8", "fp4"))


def test_every_format_has_constants_for_its_kernels() -> None:
    for stored in map(find_format, weight_formats()):
        for kernel in {stored.kernel, stored.fallback_kernel} - {None, *weight_kernels()}:
            assert KernelLookup((), "vllm").kernel("gemm", kernel).fit.basis == "assumed"
            assert KernelLookup((), "vllm").kernel("moe", kernel).fit.basis == "assumed"


def test_unweight_formats_suggest() -> None:
    with pytest.raises(UnknownName, match="nvfp4"):
        find_format("nvfp5")
    with pytest.raises(UnknownName, match="fp8"):
        find_kv_cache_format("fp88")


@given(bits=st.sampled_from([2, 3, 4, 8]), group=st.integers(-1, 512), zero_point=st.booleans())
def test_grouped_integers_of_any_shape(bits: int, group: int, zero_point: bool) -> None:
    stored = grouped_int_format(bits, group, zero_point=zero_point)
    columns, rows = 2048, 64
    groups = -(-columns // group) if group > 0 else 1
    expected = rows * (columns * bits + groups * (16 + (bits if zero_point else 0))) / 8
    assert stored.matrix_bytes(rows, columns) == expected
