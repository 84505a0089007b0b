"""Products by weight format: bytes, tensor cores that lack, and a format that none can multiply."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_models import steps

from capacity.base.errors import InvalidInput
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.model.quantization import find_format, uniform_scheme
from capacity.step import decode_shape, prefill_shape
from capacity.step.model import StepModel
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
    with pytest.raises(InvalidInput, match=r"h100-sxm-80gb has no tensor cores.*weight-only"):
        StepModel(StepSetting(model=load_model("llama-3.1-8b"), profile=old, scheme=scheme))
