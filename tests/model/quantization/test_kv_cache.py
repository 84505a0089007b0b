"""Formats of the KV cache: bytes of a head's vector."""

from __future__ import annotations

from capacity.model.quantization import find_kv_cache_format, kv_cache_format_names


def test_kv_cache_formats() -> None:
    assert find_kv_cache_format("auto", model_dtype="fp16").name == "fp16"
    assert find_kv_cache_format("fp8_e4m3") is find_kv_cache_format("FP8")
    vectors = {name: find_kv_cache_format(name).vector_bytes(128) for name in kv_cache_format_names()}
    assert vectors == {
        "fp32": 512,
        "bf16": 256,
        "fp16": 256,
        "fp8": 128,
        "fp8_ds_mla": 128,
        "int8": 132,
        "int4": 68,
        "nvfp4": 72,
        "kivi2": 48,  # 128 x 2 bits, and 4 groups' scales and zero points of 32 bits
    }
