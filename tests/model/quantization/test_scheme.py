"""Bytes of whole checkpoints against files, logs and pages that others published."""

from __future__ import annotations

import pytest

from capacity.model import load_model
from capacity.model.quantization import (
    scheme_for,
    weight_bytes,
)

GIB = 2**30


def test_gpt_oss_checkpoint_to_the_byte() -> None:
    # the published checkpoint's tensor bytes, openai/gpt-oss-120b model.safetensors.index.json
    assert weight_bytes(load_model("gpt-oss-120b")) == 65_248_815_744


def test_deepseek_checkpoint_to_the_value() -> None:
    """The hub's page: 680,571,043,840 FP8 values and 41,555,600 FP32, the MTP layer included.

    FP32 are the scales and the score correction biases of 59 routed layers.
    """
    model = load_model("deepseek-v3")
    scheme = model.checkpoint
    parts = [
        p for p in (*model.parameter_parts(), *model.mtp_parts()) if p.quantizable and p.kind != "router"
    ]
    eight_bit = [p for p in parts if p.name != "eh_proj" and scheme.format_of(p.kind).value_bits == 8]
    values = sum(part.params for part in eight_bit)
    scales = sum(scheme.part_bytes(part) - part.params for part in eight_bit) / 4
    assert (values, scales + 59 * 256) == (680_571_043_840, 41_555_600)


@pytest.mark.parametrize(
    ("name", "quantization", "gib", "tolerance"),
    [
        # vLLM 0.11 logs, llm-d-planner docs/empirical-vllm-memory-results.md: weights in GiB at TP 1; ours is
        # tensors only, the logs also hold buffers
        ("llama-3.1-8b", None, 14.99, 0.003),
        ("qwen3-32b", None, 61.03, 0.003),
        ("llama-3.3-70b", "fp8", 67.72, 0.003),
        ("qwen3-0.6b", None, 1.12, 0.01),
        # vLLM 0.15 log, InferenceX: nvidia/Llama-3.3-70B-Instruct-FP4
        ("llama-3.3-70b", "nvfp4", 39.89, 0.004),
    ],
)
def test_weights_in_engine_logs(name: str, quantization: str | None, gib: float, tolerance: float) -> None:
    model = load_model(name)
    assert weight_bytes(model, scheme_for(model, quantization)) / GIB == pytest.approx(gib, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "quantization", "gigabytes", "tolerance"),
    [
        ("kimi-k2.5", None, 595.1, 0.002),  # the published files; what is left is the vision tower
        ("minimax-m2", None, 230.12, 0.001),  # hf-mem; its router is FP32, 0.1 GB more than ours
        # file sizes on the hub: bartowski/Meta-Llama-3.1-8B-Instruct-GGUF (2024-07); tokenizer and metadata inside
        ("llama-3.1-8b", "gguf-q4_k_m", 4.92, 0.004),
        ("llama-3.1-8b", "gguf-q6_k", 6.60, 0.004),
        ("llama-3.1-8b", "gguf-q8_0", 8.54, 0.004),
        ("llama-3.1-8b", "gguf-q5_k_m", 5.73, 0.004),
        ("llama-3.1-8b", "gguf-q2_k", 3.18, 0.004),
    ],
)
def test_published_file_sizes(
    name: str, quantization: str | None, gigabytes: float, tolerance: float
) -> None:
    model = load_model(name)
    assert weight_bytes(model, scheme_for(model, quantization)) / 1e9 == pytest.approx(
        gigabytes, rel=tolerance
    )
