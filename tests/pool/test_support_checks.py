"""What runs on what: refusals in one line with the way out, FP16 where there is no BF16, formats by capability."""

from __future__ import annotations

import re
from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.engines import engine_names, find_engine
from capacity.hardware import load_profile, profile_names
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import StepShape


def resolved(gpu: str, **fields: Any) -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool.model_validate({"gpu": gpu, "max_model_len": 4096, **fields}))


@pytest.mark.parametrize(
    ("gpu", "fields", "text"),
    [
        (
            "tpu-v5e",
            {"engine": "tensorrt-llm"},
            r"does not run on Google TPUs \(tpu-v5e-16gb\).*--engine .*vllm",
        ),
        ("m4-max", {"engine": "deepspeed-mii"}, r"does not run on Apple silicon.*--engine .*llama\.cpp"),
        ("t4", {"engine": "tensorrt-llm"}, r"needs compute capability 8\.0, t4-16gb has 7\.5: use --engine"),
        ("v100", {"engine": "sglang"}, r"needs compute capability 7\.5, v100-sxm-32gb has 7\.0"),
        ("t4", {"dtype": "bfloat16"}, r"no BF16 tensor cores.*--dtype half"),
        (
            "t4",
            {"quantization": "fp8"},
            r"on t4-16gb, only from compute capability 8\.0; there it loads 16-bit",
        ),
        (
            "epyc-9755",
            {"quantization": "fp8"},
            r"does not load fp8 weights \(fp8\) on epyc-9755-768gb; there",
        ),
        ("a100", {"engine": "tensorrt-llm", "quantization": "fp8"}, r"only from compute capability 8\.9"),
        ("gaudi3", {"engine": "llama.cpp", "quantization": "q4_k_m"}, "does not run on Intel Gaudi"),
    ],
)
def test_what_does_not_run_is_refused_with_the_way_out(gpu: str, fields: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidInput, match=text) as caught:
        resolved(gpu, **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gpu", ["t4", "v100"])
def test_models_run_in_fp16_where_there_is_no_bf16(gpu: str) -> None:
    """As vLLM falls back to; memory and steps are FP16's, and the answer says so."""
    pool = resolved(gpu)
    assert pool.model.dtype == "fp16"
    assert any("has no BF16" in note for note in pool.notes)
    assert pool.scheme.name == resolved(gpu, dtype="half").scheme.name == "fp16"
    assert not any("has no BF16" in note for note in resolved("a100").notes)


def test_what_the_ways_out_name_is_accepted() -> None:
    """The engines that a refusal names do run there."""
    for gpu in ("tpu-v5e", "m4-max", "t4", "gaudi3", "epyc-9755"):
        for name in engine_names():
            profile, engine = load_profile(gpu), find_engine(name)
            if engine.runs_on_platform(profile.platform, profile.capability):
                resolved(
                    gpu, engine=name, **({"quantization": "q8_0"} if "llama" in name or "oll" in name else {})
                )
            else:
                with pytest.raises(InvalidInput, match=r"does not run on|needs compute"):
                    resolved(gpu, engine=name)


@pytest.mark.parametrize("gpu", profile_names())
def test_every_profile_runs_under_some_engine_and_is_timed(gpu: str) -> None:
    """A step of each: faster than no memory could be read, slower than all of it at once."""
    profile = load_profile(gpu)
    engine = "vllm" if profile.platform != "metal" else "llama.cpp"
    pool = resolve(
        "llama-3.2-1b",
        Pool.model_validate({"gpu": gpu, "engine": engine, "max_model_len": 2048, "dtype": "half"}),
    )
    shape = StepShape(decode_sequences=1, decode_context_tokens=512, decode_window_context_tokens=512)
    seconds = pool.step_model.step_seconds(shape)
    least = pool.memory.weights_bytes * 0.75 / profile.hbm_bytes_per_s
    assert least < seconds < 20 * least + 0.01


def test_text_alone_leaves_a_models_towers_out() -> None:
    """Their weights, at 16 bit, and what their profile run holds beside the language model's."""
    plans = [
        resolve("gemma-3-27b", Pool(gpu="h100", language_model_only=alone)).memory for alone in (False, True)
    ]
    whole, text = plans
    assert whole.weights_bytes - text.weights_bytes == 2 * 423_060_336  # as published
    assert text.activations_bytes < whole.activations_bytes
    assert text.kv_capacity_tokens > whole.kv_capacity_tokens


@pytest.mark.parametrize(
    ("model", "fields", "why"),
    [
        ("llama-3.1-8b", {}, "has no towers; leave the flag out"),
        ("gemma-3-4b", {"engine": "sglang"}, "has no such setting; use --engine vllm, or"),
    ],
)
def test_text_alone_is_refused_where_it_changes_nothing(model: str, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        resolve(model, Pool(gpu="h100", language_model_only=True, **fields))


def test_the_engines_that_are_named_do_it_here() -> None:
    with pytest.raises(InvalidInput) as refused:
        capacity.fit("llama-3.1-70b", gpu="h100", engine="llama.cpp", quantization="nvfp4")
    named = re.search(r"--engine ([\w. -]+)$", str(refused.value))
    assert named is not None
    for engine in named[1].split(" or "):  # SGLang loads NVFP4, but not on a Hopper
        assert capacity.fit("llama-3.1-70b", gpu="h100", engine=engine, quantization="nvfp4").weight_format
    with pytest.raises(InvalidInput, match=r"another --quantization \(no supported engine can\)"):
        capacity.fit("llama-3.1-8b", gpu="tpu-v6e", engine="vllm@0.11", quantization="gptq")


@pytest.mark.parametrize("asked", [{"moe_backend": "triton"}, {"enable_expert_parallel": True}])
def test_what_is_of_experts_is_refused_of_a_model_without_them(asked: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInput, match=r"has no effect without experts, and llama-3\.1-8b has none: leave it"
    ):
        resolve("llama-3.1-8b", Pool.model_validate({"gpu": "b200", **asked}))
    pool = Pool.model_validate({"gpu": "b200", "tensor_parallel_size": 2, **asked})
    assert resolve("qwen3-30b-a3b", pool).model.is_moe


@pytest.mark.parametrize(
    ("gpu", "quantization", "backend", "use"),
    [
        (
            "h100",
            "fp8-block",
            "flashinfer_trtllm",
            "use triton, deep_gemm, flashinfer_cutlass, marlin, or leave it out",
        ),
        (
            "b200",
            "nvfp4",
            "triton",
            "use cutlass, flashinfer_trtllm, flashinfer_cutlass, marlin, or leave it out",
        ),
        ("b200", "bf16", "deep_gemm", "use triton, flashinfer_trtllm, flashinfer_cutlass, or leave it out"),
        ("rtx-pro-6000", "fp8-block", "flashinfer_trtllm", "use triton, marlin, or leave it out"),
        ("a100", "fp8-block", "triton", "use marlin, or leave it out"),
        ("mi300x", "bf16", "flashinfer_cutlass", "use triton, or leave it out"),
    ],
)
def test_moe_backend_that_vllm_does_not_run_is_refused(
    gpu: str, quantization: str, backend: str, use: str
) -> None:
    asked = Pool(gpu=gpu, engine="vllm", quantization=quantization, moe_backend=backend)
    with pytest.raises(
        InvalidInput, match=rf"^--moe-backend {backend}: vllm@\S+ does not run .* with it on .*; {use}$"
    ):
        resolve("qwen3-30b-a3b", asked)
    resolve(
        "qwen3-30b-a3b", asked.model_copy(update={"engine": "sglang", "gpu": "b200", "quantization": "bf16"})
    )


@pytest.mark.parametrize("engine", ["llama.cpp", "tgi", "tensorrt-llm"])
def test_expert_kernels_are_no_choice_of_engines_without_such_a_flag(engine: str) -> None:
    choice = "does not support this flag, only vllm and sglang do; leave it out"
    limit = rf"--moe-backend triton: {engine}@\S+ {choice}"
    with pytest.raises(InvalidInput, match=limit):
        resolve("qwen3-30b-a3b", Pool(gpu="b200", engine=engine, moe_backend="triton"))
    for other in ("vllm", "sglang", "static"):
        resolve("qwen3-30b-a3b", Pool(gpu="b200", engine=other, moe_backend="triton"))


@pytest.mark.parametrize(
    ("gpu", "engine", "noted"),
    [("mi300x", "vllm", True), ("mi300x", "sglang", False), ("h100", "vllm", False)],
)
def test_vllm_on_amd_gpus_is_predicted_with_aiter_and_says_so(gpu: str, engine: str, noted: bool) -> None:
    notes = resolve("llama-3.1-8b", Pool(gpu=gpu, engine=engine)).notes
    assert any("VLLM_ROCM_USE_AITER=1" in note for note in notes) == noted
