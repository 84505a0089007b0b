"""Formats of weights and of the KV cache: closed forms of their bytes, and what multiplies them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import UnknownName
from capacity.hardware.coefficients import Lookup
from capacity.model.quantization import (
    find_format,
    find_kv_cache_format,
    known_formats,
    kv_cache_format_names,
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
    assert find_format(name).bytes_per_weight == pytest.approx(bits / 8, rel=1e-12)


def test_partial_blocks_have_whole_scales() -> None:
    # DeepSeek-V3's kv_a_proj_with_mqa: 576 = 4.5 blocks of 128 rows
    assert find_format("fp8-block").matrix_bytes(576, 7168) == 576 * 7168 + 5 * 56 * 4


@given(
    name=st.sampled_from(known_formats()),
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    more=st.integers(1, 99),
)
def test_bytes_grow_with_the_matrix_and_cover_its_values(
    name: str, rows: int, columns: int, more: int
) -> None:
    stored = find_format(name)
    size = stored.matrix_bytes(rows, columns)
    assert size >= rows * columns * stored.value_bits / 8
    assert stored.matrix_bytes(rows + more, columns) > size
    assert stored.matrix_bytes(rows, columns + more) > size


def test_every_format_has_a_source_and_says_what_multiplies_it() -> None:
    for name in known_formats():
        stored = find_format(name)
        assert stored.source
        assert (stored.fallback_kernel is None) == (stored.compute_dtype not in ("fp8", "int8", "fp4"))


def test_every_format_has_constants_for_its_kernels() -> None:
    for stored in map(find_format, known_formats()):
        for kernel in {stored.kernel, stored.fallback_kernel} - {None}:
            assert Lookup((), "vllm").kernel("gemm", kernel).fit.basis == "assumed"
            assert Lookup((), "vllm").kernel("moe", kernel).fit.basis == "assumed"


def test_hardware_without_the_tensor_cores_runs_weight_only() -> None:
    a100, h100, b200 = (
        {"bf16", "fp16", "int8"},
        {"bf16", "fp16", "int8", "fp8"},
        {"bf16", "int8", "fp8", "fp4"},
    )
    fp8, nvfp4, awq = find_format("fp8"), find_format("nvfp4"), find_format("awq-int4")
    assert (fp8.execution(a100).kernel, fp8.execution(a100).compute_dtype) == ("w8a16", "bf16")
    assert "no fp8 tensor cores" in str(fp8.execution(a100).note)
    assert (fp8.execution(h100).kernel, fp8.execution(h100).note) == ("fp8", None)
    assert nvfp4.execution(h100).kernel == "w4a16"
    assert nvfp4.execution(b200).kernel == "nvfp4"
    assert all(awq.execution(gpu).kernel == "w4a16" for gpu in (a100, h100, b200))


def test_unknown_formats_suggest() -> None:
    with pytest.raises(UnknownName, match="nvfp4"):
        find_format("nvfp5")
    with pytest.raises(UnknownName, match="fp8"):
        find_kv_cache_format("fp88")


def test_kv_cache_formats() -> None:
    assert find_kv_cache_format("auto", model_dtype="fp16").name == "fp16"
    assert find_kv_cache_format("fp8_e4m3") is find_kv_cache_format("FP8")
    vectors = {name: find_kv_cache_format(name).vector_bytes(128) for name in kv_cache_format_names()}
    assert vectors == {
        "fp32": 512,
        "bf16": 256,
        "fp16": 256,
        "fp8": 128,
        "int8": 132,
        "int4": 68,
        "nvfp4": 72,
    }
