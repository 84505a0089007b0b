"""Recurrences in a step: their products, states that no context makes longer, and that their time is assumed."""

from __future__ import annotations

import pytest
from hf_configs import read
from step_models import NO_HOST, flops_by_name, steps_of

from capacity.hardware import load_profile
from capacity.step import decode_shape, prefill_shape
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting

MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4}


def test_products_are_those_of_the_matrices_and_contexts_cost_nothing() -> None:
    model = read(model_type="granitemoehybrid", layer_types=["mamba"] * 4, **MAMBA2)
    step = steps_of(model)
    short, long = (flops_by_name(step.step_cost(decode_shape(8, context))) for context in (100, 1900))
    into, out = 128 + 128 + 2 * 16 + 8, 128
    assert short["mamba2 products"] == 4 * 2 * 8 * (64 * into + out * 64)
    assert short["mamba2 recurrence"] == 4 * 8 * 6 * 128 * 16
    assert long["mamba2 recurrence"] == short["mamba2 recurrence"]


def test_the_state_is_read_and_written_once_a_step_by_each_sequence() -> None:
    model = read(model_type="granitemoehybrid", layer_types=["mamba"] * 4, **MAMBA2)
    step = steps_of(model)
    one, two = (
        {op.name: op.bytes for op in step.step_cost(shape).operators}["mamba2 recurrence"]
        for shape in (prefill_shape(1, 512), prefill_shape(2, 256))
    )
    assert two - one == 2 * model.state_bytes_per_sequence()


def test_their_time_is_assumed_and_the_answer_says_so() -> None:
    plain, hybrid = steps_of(read()), steps_of(read(model_type="bamba", attn_layer_indices=[0], **MAMBA2))
    assert (plain.basis == "assumed", hybrid.basis) == (False, "assumed")
    assert any("times of mamba2 layers are roofline estimates (assumed)" in note for note in hybrid.notes)
    assert hybrid.residuals("decode").high > plain.residuals("decode").high


def test_attention_beside_it_is_timed_too() -> None:
    step = steps_of(read(model_type="falcon_h1", mamba_d_ssm=128, **MAMBA2))
    names = {op.name for op in step.step_cost(decode_shape(8, 1000)).operators}
    assert {"mamba2 recurrence", "attention decode", "qkv", "mamba2 products"} <= names


def test_tensor_parallelism_divides_products_and_states() -> None:
    model = read(model_type="granitemoehybrid", layer_types=["mamba"] * 4, **MAMBA2)
    one, two = (flops_by_name(steps_of(model, tp=tp).step_cost(decode_shape(8, 1000))) for tp in (1, 2))
    assert two["mamba2 recurrence"] == one["mamba2 recurrence"] / 2
    assert two["mamba2 products"] == one["mamba2 products"] / 2


def test_a_model_read_by_names_alone_is_assumed() -> None:
    assert steps_of(read(model_type="brand_new")).basis == "assumed"


@pytest.mark.parametrize("gpu", ["v100-sxm-32gb", "t4-16gb"])
def test_a_gpu_without_bf16_is_answered(gpu: str) -> None:
    model = read(model_type="granitemoehybrid", layer_types=["mamba"] * 4, **MAMBA2)
    step = StepModel(
        StepSetting(model=model, profile=load_profile(gpu), tensor_parallel_size=1, host=NO_HOST)
    )
    assert step.step_cost(decode_shape(8, 100)).seconds > 0
