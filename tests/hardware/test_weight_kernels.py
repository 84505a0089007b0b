"""Kernels known by others' measurements: slower or faster than 16 bit, and by about how much, as they measured."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest

import capacity
from capacity.answers.records import Quantity
from capacity.deployment import Pool
from capacity.hardware.coefficients import universal_family
from capacity.hardware.weight_kernels import weight_kernels
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import decode_shape, prefill_shape

CHAT = {"input_len": 220, "output_len": 200}  # mean lengths of ShareGPT


@lru_cache(maxsize=32)
def resolved(model: str, gpu: str, quantization: str | None, **pool: Any) -> ResolvedPool:
    return resolve(model, Pool(gpu=gpu, quantization=quantization, **pool))


def decode_s(model: str, gpu: str, quantization: str | None, batch: int, **pool: Any) -> float:
    return resolved(model, gpu, quantization, **pool).step_model.step_seconds(decode_shape(batch, 300))


def tokens_per_s(model: str, gpu: str, quantization: str | None, concurrency: int, **question: Any) -> float:
    answer = capacity.estimate(
        model, gpu=gpu, quantization=quantization, concurrency=concurrency, **(CHAT | question)
    )
    return answer.output_tokens_per_s.value


def test_every_kernel_says_where_it_is_from() -> None:
    for kernel in weight_kernels().values():
        assert kernel.remark
        assert kernel.experts in universal_family().moe
        starts = [path.from_rows for path in kernel.paths]
        assert starts == sorted(set(starts))
        for path in kernel.paths:
            assert (path.gemm is None) == (path.product is not None) == (path.dequantize is not None)
            for constants in (path.gemm, path.dequantize):
                assert constants is None or (len(constants.fit.source) > 30 and constants.fit.date)


def test_one_number_of_rows_takes_one_path() -> None:
    """Whatever the rows, the products of a layer are those of one kernel: FLOPs as at 16 bit."""
    for name in ("nf4", "llm-int8", "awq-no-marlin", "gptq-no-marlin", "gguf-q4_0"):
        for rows in (1, 2, 3, 7, 8, 50, 51, 255, 256, 8192):
            shape = prefill_shape(1, rows)
            products = {
                quantization: sum(
                    op.flops
                    for op in resolved("llama-3.1-8b", "h100", quantization)
                    .step_model.step_cost(shape)
                    .operators
                    if op.name in ("qkv", "gate_up", "down", "attention output")
                )
                for quantization in (None, name)
            }
            assert products[name] == pytest.approx(products[None])


@pytest.mark.parametrize("quantization", ["nf4", "nf4-dq", "llm-int8", "q4_k_m", "awq-no-marlin"])
@pytest.mark.parametrize(("model", "gpu"), [("qwen2.5-32b", "h200"), ("llama-3.1-8b", "a100")])
def test_slower_than_bf16_in_batches(quantization: str, model: str, gpu: str) -> None:
    """vllm issue 9535 (A100: 71 s in NF4, 45 s in bf16), bitsandbytes issues 181 and 347, JarvisLabs on an H200."""
    assert decode_s(model, gpu, quantization, 32) > 1.3 * decode_s(model, gpu, None, 32)


def test_two_requests_in_nf4_as_measured() -> None:
    """unslothai/unsloth issue 3143: Gemma-3-27B on an RTX 6000 Ada (960 GB/s; the L40S here has 864)."""
    measured = {("nf4", 1): 20.0, ("nf4", 2): 9.4, ("awq-int4", 1): 30.0, ("awq-int4", 2): 56.6}
    for (quantization, requests), expected in measured.items():
        found = tokens_per_s(
            "gemma-3-27b", "l40s", quantization, requests, input_len=20, output_len=1000, max_model_len=4096
        )
        assert found == pytest.approx(expected, rel=0.25)


def test_llm_int8_as_measured_alone() -> None:
    """optimum-quanto PR 62: Llama-2-7B on an A10G 164 ms a token, fp16 37 ms, bnb 4 bit 42 ms; one request."""
    whole, nf4, int8 = (
        decode_s("llama-2-7b", "a10g", q, 1, max_model_len=2048) for q in (None, "nf4", "llm-int8")
    )
    assert int8 / whole == pytest.approx(164 / 37, rel=0.6)
    assert nf4 < int8


def test_awq_and_gguf_beside_marlin_as_measured() -> None:
    """JarvisLabs, Qwen2.5-32B on an H200: 741 tokens/s by Marlin, 68 without; GGUF about eight times slower than 741;
    fp16 1.6 times slower. Its 461 tokens/s of fp16 are some ten requests at a time."""
    marlin, plain, gguf, whole = (
        tokens_per_s("qwen2.5-32b", "h200", q, 10) for q in ("awq", "awq-no-marlin", "q4_k_m", None)
    )
    assert marlin / plain == pytest.approx(741 / 68, rel=0.3)
    assert marlin / gguf == pytest.approx(8, rel=0.4)
    assert marlin / whole == pytest.approx(1.6, rel=0.2)
    assert plain == pytest.approx(68, rel=0.3)


def test_gguf_prompts_in_vllm_as_measured() -> None:
    """vllm issue 35987: a prompt of 925 tokens nearly nine times slower than AWQ (RTX 4060 Ti; here 4090)."""
    prompt = prefill_shape(1, 925)
    gguf, marlin = (
        resolved("qwen3-14b", "rtx-4090", q, max_model_len=4096).step_model.step_seconds(prompt)
        for q in ("q4_k_m", "awq")
    )
    assert gguf / marlin == pytest.approx(8.7, rel=0.6)


def test_llama_cpp_has_better_kernels_of_its_own() -> None:
    """ggml-org/llama.cpp PR 15802: Llama 8B Q4_0 in steps of 1, 2, 4, 8 rows: 155, 277, 469, 571 tokens/s on an RTX
    3090; their ratios hold for the kernels here (an RTX 4090's, whose CUDA cores are faster against its memory)."""
    times = [
        decode_s("llama-3.1-8b", "rtx-4090", "q4_0", rows, engine="llama.cpp", max_model_len=4096)
        for rows in (1, 8)
    ]
    assert 1.0 < times[1] / times[0] < 8 * 155 / 571
    vllm = decode_s("llama-3.1-8b", "rtx-4090", "q4_0", 8, max_model_len=4096)
    assert vllm > times[1]


def test_vllm_before_torch_compile_chose_by_rows() -> None:
    """AutoAWQ issue 106: at 32 rows about as fast as fp16, at 256 half; vllm PR 30783: since V1 always slow."""
    old = [decode_s("llama-2-13b", "a100", q, 32, engine="vllm@0.6") for q in ("awq-no-marlin", None)]
    new = [decode_s("llama-2-13b", "a100", q, 32) for q in ("awq-no-marlin", None)]
    assert old[0] < 1.2 * old[1]
    assert new[0] > 2 * new[1]


def width(quantity: Quantity | None) -> float:
    assert quantity is not None
    assert quantity.low is not None
    assert quantity.high is not None
    return quantity.high / quantity.low


def test_answers_that_rest_on_them_say_so() -> None:
    question = {"gpu": "h100", **CHAT}
    sure = capacity.estimate("llama-3.1-8b", quantization="awq", batch_size=8, **question)
    load = {"concurrency": 4, "num_prompts": 8}
    sure_run = capacity.simulate("llama-3.1-8b", quantization="awq", **load, **question)
    assert sure.basis == "calibrated"
    for name in ("nf4", "llm-int8", "q4_k_m", "awq-no-marlin", "gptq-no-marlin"):
        answer = capacity.estimate("llama-3.1-8b", quantization=name, batch_size=8, **question)
        run = capacity.simulate("llama-3.1-8b", quantization=name, **load, **question)
        assert answer.basis == "assumed"
        assert width(answer.tpot_s) > 2 * width(sure.tpot_s)
        assert width(answer.ttft_s) > 2 * width(sure.ttft_s)
        assert width(run.mean_tpot_ms) > 2 * width(sure_run.mean_tpot_ms)
        (remark,) = resolved("llama-3.1-8b", "h100", name).step_setting.remarks
        assert answer.warnings.count(remark) == run.warnings.count(remark) == 1


def test_starts_are_ascending() -> None:
    for kernel in weight_kernels().values():
        assert all(one.from_rows < other.from_rows for one, other in pairwise(kernel.paths))
