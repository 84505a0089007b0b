"""The vision encoder's operator: its FLOPs by hand, and that a step's time is the sum of both."""

from __future__ import annotations

import pytest

from capacity.base.errors import UnsupportedModel
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.step import StepShape, prefill_shape
from capacity.step.layers.builder import Builder
from capacity.step.layers.vision import encoder_operator
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting

TOKENS = 256  # of an image in Gemma 3, from 4,096 patches


def steps(model: str = "gemma-3-4b", ranks: int = 1) -> StepModel:
    profile = load_profile("h100-sxm-80gb")
    return StepModel(StepSetting(model=load_model(model), profile=profile, tensor_parallel_size=ranks))


def with_images(images: int, tokens: int = TOKENS) -> StepShape:
    shape = prefill_shape(1, 2000)
    return shape._replace(encoder_tokens=images * tokens, encoder_pairs=images * tokens**2)


def test_a_step_with_an_image_takes_its_own_time_and_the_encoders() -> None:
    model, plain, image = steps(), with_images(0), with_images(1)
    rows = {cost.name: cost for cost in model.step_cost(image).operators}
    encoder = rows.pop("vision encoder")
    assert encoder.seconds > 0.003
    assert model.step_seconds(image) == pytest.approx(model.step_seconds(plain) + encoder.seconds, rel=1e-12)
    assert model.step_cost(image).seconds == pytest.approx(model.step_seconds(image), rel=1e-12)
    assert tuple(rows.values()) == model.step_cost(plain).operators
    assert model.step_ps(image) - model.step_ps(plain) == pytest.approx(encoder.seconds * 1e12, abs=2)


def test_the_flops_are_those_of_the_towers_products() -> None:
    """27 layers of SigLIP: four projections and two matrices of the MLP a patch, 4 x width a pair of patches."""
    encoder = next(
        cost for cost in steps().step_cost(with_images(2)).operators if cost.name == "vision encoder"
    )
    width, intermediate, patches = 1152, 4304, 2 * 4096
    products = 27 * (4 * width**2 + 2 * width * intermediate) + 3 * 14**2 * width
    attention = 27 * 4 * width * 2 * 4096**2
    projector = 2 * TOKENS * 2 * width * 2560
    assert encoder.flops == pytest.approx(2 * patches * products + attention + projector, rel=1e-9)


def test_images_of_one_step_are_a_batch_and_ranks_divide_it() -> None:
    def encoder_s(model: StepModel, images: int) -> float:
        return model.step_seconds(with_images(images)) - model.step_seconds(with_images(0))

    one, two = encoder_s(steps(), 1), encoder_s(steps(), 2)
    assert 1.5 * one < two <= 2 * one
    assert one / 2 < encoder_s(steps(ranks=2), 1) < one


def test_attention_within_tiles_grows_with_their_number_alone() -> None:
    """Llama 4: an image of four tiles costs what four of one tile do; one of Gemma's four would cost more."""
    llama = steps("llama-4-scout", ranks=8)
    assert llama.step_seconds(with_images(4, 144)) == llama.step_seconds(with_images(1, 4 * 144))
    gemma = steps()
    assert gemma.step_seconds(with_images(4)) < gemma.step_seconds(with_images(1, 4 * TOKENS))


def test_data_parallel_ranks_wait_for_the_one_that_encodes() -> None:
    model, plain, image = steps(), with_images(0), with_images(1)
    encoder_s = model.step_seconds(image) - model.step_seconds(plain)
    added = model.joint_seconds([plain, image]) - model.joint_seconds([plain, plain])
    assert added == pytest.approx(encoder_s, rel=1e-9)


def test_a_model_without_an_encoder_refuses_images() -> None:
    with pytest.raises(UnsupportedModel, match="its vision or audio encoder is not supported"):
        steps("llama-3.1-8b").step_seconds(with_images(1))


def test_windows_of_patches_do_not_grow_with_the_image() -> None:
    """28 of Qwen2.5-VL's 32 layers attend within 64 patches: of an image twice as large they take twice the time."""
    model = load_model("qwen2.5-vl-7b")
    assert model.vision is not None
    setting = StepSetting(model=model, profile=load_profile("h100-sxm-80gb"))
    operator = encoder_operator(Builder(setting), model.vision)
    attention = [op for op in operator.of_patches if op.name == "encoder attention"]

    def flops(tokens: int) -> list[float]:
        shape = StepShape(encoder_tokens=tokens, encoder_pairs=tokens**2)
        return [op.cost(own).flops for op, own in operator._parts(shape) if op in attention]

    small, large = flops(1000), flops(2000)
    assert small[0] == 4 * 4 * 1280 * 4000**2
    assert small[1] == 28 * 4 * 1280 * 4000 * 64
    assert [after / before for before, after in zip(small, large, strict=True)] == [4, 2]
