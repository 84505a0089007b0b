"""Products by weight format: bytes, tensor cores that lack, and a format that none can multiply."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_models import steps

from capacity.base.errors import InvalidInput
from capacity.hardware import load_profile, profile_names
from capacity.model import load_model
from capacity.model.quantization import find_format, scheme_for, uniform_scheme
from capacity.model.quantization.gguf import GGUF_MIXES
from capacity.step import decode_shape, prefill_shape
from capacity.step.expert_load import Experts
from capacity.step.layers import build_operators
from capacity.step.layers.builder import Builder
from capacity.step.model import StepModel
from capacity.step.operators import Gemm
from capacity.step.setting import StepSetting


@pytest.mark.parametrize("quantization", ["fp8", "awq", "gptq-int8", "nvfp4", "mxfp4", "bitsandbytes"])
@pytest.mark.parametrize("gpu", ["a100", "h100", "b200"])
def test_quantization_never_adds_weight_bytes(quantization: str, gpu: str) -> None:
    def weights(own: StepModel) -> float:
        cost = own.step_cost(decode_shape(1, 1))
        return sum(op.bytes for op in cost.operators if op.name in ("qkv", "gate_up", "down"))

    assert weights(steps(gpu=gpu, quantization=quantization)) < weights(steps(gpu=gpu))


def test_weight_only_formats_multiply_at_16_bit() -> None:
    shape = prefill_shape(1, 16_000)
    bf16, awq = (
        {op.name: op.seconds for op in steps(quantization=q).step_cost(shape).operators}["gate_up"]
        for q in (None, "awq")
    )
    assert awq >= bf16 * 0.95  # no faster where compute binds
    small = decode_shape(1, 100)
    assert steps(quantization="awq").step_seconds(small) < steps().step_seconds(small)


def test_fp8_on_a_gpu_without_fp8_is_weight_only_and_says_so() -> None:
    own = steps(gpu="a100", quantization="fp8")
    assert any("no fp8 tensor cores" in note for note in own.notes)
    cost = {op.name: op for op in own.step_cost(prefill_shape(1, 16_000)).operators}["gate_up"]
    assert cost.seconds >= cost.flops / own.profile.dense_flops_per_s["bf16"]
    assert not steps(gpu="h100", quantization="fp8").notes


def test_a_format_without_roof_and_fallback_is_refused() -> None:
    int8 = replace(find_format("int8"), fallback_kernel=None)
    profile = load_profile("h100")
    roofs = {k: v for k, v in profile.dense_flops_per_s.items() if k == "bf16"}
    scheme = uniform_scheme("int8", int8, base=find_format("bf16"))
    old = profile.model_copy(update={"dense_flops_per_s": roofs})
    with pytest.raises(InvalidInput, match=r"h100-sxm-80gb has only bf16.*weight-only"):
        StepModel(StepSetting(model=load_model("llama-3.1-8b"), profile=old, scheme=scheme))


@pytest.mark.parametrize("quantization", [None, *GGUF_MIXES, "awq", "fp8-block", "experts-int8"])
@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "llama-3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"]
)
def test_a_step_reads_the_bytes_that_are_stored(model: str, quantization: str | None) -> None:
    """Every matrix once in a step of one row: of each part and layer in its own format, as memory counts them.

    Formats whose scales span a row are counted at a nominal width of 4096: 0.2 %.
    """
    spec = load_model(model)
    scheme = scheme_for(spec, quantization)
    setting = StepSetting(model=spec, profile=load_profile("h200"), scheme=scheme)
    operators = build_operators(Builder(setting))
    read = 0.0
    for operator in (*operators.per_token, *operators.per_sample, *operators.per_context):
        if isinstance(operator, Gemm) and operator.from_rows <= 1 < operator.below_rows:
            read += operator.count * operator.weight_bytes
        elif isinstance(operator, Experts):
            matrices = operator.num_experts * operator.matrices * operator.hidden * operator.intermediate
            read += operator.count * matrices * operator.weight_bits / 8
    tied = spec.tie_word_embeddings
    stored = sum(
        scheme.part_bytes(part)
        for part in spec.parameter_parts()
        if part.columns > 1 and (part.kind != "embedding" or tied)
    )
    assert read == pytest.approx(stored, rel=2e-3)


def test_mixtures_of_llama_cpp_differ_in_time_by_what_they_promote() -> None:
    shape = decode_shape(1, 300)
    times = {
        name: steps(engine=engine, quantization=name).step_seconds(shape)
        for engine in ("vllm", "llama.cpp")
        for name in ("q4_0", "q4_k_s", "q4_k_m")
    }
    assert times["q4_0"] < times["q4_k_s"] < times["q4_k_m"]
    one, other = (
        [op for op in steps(quantization=name).step_cost(shape).operators if op.name == "down"]
        for name in ("q4_0", "q4_k_m")
    )
    promoted = 16 * 14336 * 4096 * (6.5625 - 4.5) / 8
    assert sum(op.bytes for op in other) - sum(op.bytes for op in one) == pytest.approx(promoted)


WITHOUT_16_BIT_LANES = ("core-i9-13900k-64gb",)  # neither AMX nor AVX-512 BF16, which server CPUs have


@pytest.mark.parametrize("gpu", profile_names())
def test_fp32_is_not_tf32(gpu: str) -> None:
    """PyTorch multiplies FP32 on CUDA cores unless told otherwise: 19.5 TFLOP/s on an A100."""
    profile = load_profile(gpu)
    own = steps(gpu=gpu, model="llama-2-7b", quantization="fp32")
    rate = max(
        op.flops / op.seconds
        for op in own.step_cost(prefill_shape(1, 8192)).operators
        if op.name in ("qkv", "gate_up", "down")
    )
    share = (
        1.0
        if (own_fit := profile.step_time) is None or own_fit.chip_share is None
        else own_fit.chip_share.share
    )
    assert 0.5 * share * profile.dense_flops_per_s["fp32"] < rate < profile.dense_flops_per_s["fp32"]
    single, sixteen = (profile.dense_flops_per_s[name] for name in ("fp32", profile.compute_type_16_bit))
    if profile.platform == "metal" or profile.name in WITHOUT_16_BIT_LANES:
        assert single == sixteen
    else:
        assert single < sixteen
