"""Kernels that a release serves with, where tables of its engine measured another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.step import decode_shape, prefill_shape
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting


def step_setting(model: str, gpu: str, engine: str, *, ranks: int = 1) -> StepSetting:
    """A setting by names."""
    return StepSetting(
        model=load_model(model),
        profile=load_profile(gpu),
        engine=find_engine(engine),
        tensor_parallel_size=ranks,
    )


def experts_seconds(setting: StepSetting, sequences: int, context_tokens: int) -> float:
    """Of a decode step, the time of its routed experts."""
    cost = StepModel(setting).step_cost(decode_shape(sequences, context_tokens))
    return sum(operator.seconds for operator in cost.operators if operator.name == "experts")


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_step_cost_mxfp4_experts_under_sglang_on_hopper_take_the_time_of_vllms(gpu: str) -> None:
    """Both run OpenAI's Triton kernels there."""
    sglang, vllm = (
        experts_seconds(step_setting("gpt-oss-120b", gpu, engine, ranks=2), 64, 1024)
        for engine in ("sglang@0.5.9", "vllm@0.15")
    )
    assert sglang == pytest.approx(vllm, rel=0.05)


def test_step_cost_mxfp4_experts_under_sglang_on_sm120_read_four_bits_a_weight() -> None:
    """Marlin: 221 output tokens/s of one request were measured (sglang pull request 32668), 4.5 ms a step."""
    setting = step_setting("gpt-oss-20b", "rtx-pro-6000", "sglang@0.5.16")
    cost = StepModel(setting).step_cost(decode_shape(1, 768))
    (experts,) = (operator for operator in cost.operators if operator.name == "experts")
    assert experts.bytes / experts.seconds > 0.4 * setting.profile.hbm_bytes_per_s
    assert 0.0036 < cost.seconds < 0.0054


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_step_cost_fp8_latents_under_sglang_on_hopper_are_no_slower_than_16_bit_ones(gpu: str) -> None:
    setting = step_setting("deepseek-r1", gpu, "sglang@0.5.9", ranks=16 if gpu == "h100" else 8)
    sixteen, eight = (
        StepModel(replace(setting, kv_cache_dtype=kv_cache_dtype)) for kv_cache_dtype in ("auto", "fp8")
    )
    for sequences in (16, 64, 256):
        shape = decode_shape(sequences, 9216)
        assert eight.step_seconds(shape) < sixteen.step_seconds(shape)
    assert any("--attention-backend flashmla" in note for note in eight.notes)
    assert not any("flashmla" in note for note in sixteen.notes)


@pytest.mark.parametrize("engine", ["vllm@0.15", "sglang@0.5.9"])
@pytest.mark.parametrize("tokens", [64, 512, 2_048, 8_192, 32_768])
def test_step_cost_mxfp4_experts_on_h200_are_no_slower_than_on_h100(engine: str, tokens: int) -> None:
    """The same chip with faster memory."""
    h100, h200 = (
        StepModel(step_setting("gpt-oss-20b", gpu, engine)).step_cost(prefill_shape(1, tokens))
        for gpu in ("h100", "h200")
    )
    seconds = [sum(op.seconds for op in cost.operators if op.name == "experts") for cost in (h100, h200)]
    assert seconds[1] <= seconds[0]


def test_graph_sizes_gpt_oss_under_vllm_end_at_1024() -> None:
    """As its wheels override the default of 512 (models/config.py): 1,024, but 992 in 0.11.0."""
    releases = {"0.10": 512, "0.10.1": 1024, "0.11": 992, "0.11.1": 1024, "0.15": 1024, "0.33": 1024}
    for release, most in releases.items():
        largest = [
            StepModel(step_setting(model, "h200", f"vllm@{release}")).largest_graph
            for model in ("gpt-oss-20b", "qwen3-30b-a3b")
        ]
        assert largest == [most, 512]


def test_chip_share_slows_every_rate_and_latency_of_the_other_chip_alike() -> None:
    share = load_profile("mi300x").step_time.chip_share  # type: ignore[union-attr]
    own = load_profile("h100").step_time.families["vllm"].gemm["bf16"]  # type: ignore[union-attr]
    assert share is not None
    scaled = share.convert_constants(own)
    assert isinstance(scaled, type(own))
    assert scaled.compute_fraction == pytest.approx(own.compute_fraction * share.share)
    assert scaled.bandwidth_fraction == pytest.approx(own.bandwidth_fraction * share.share)
    assert scaled.fixed_s == pytest.approx(own.fixed_s / share.share)
    assert (scaled.sharpness, scaled.fit.basis) == (own.sharpness, "assumed")


@pytest.mark.parametrize("gpu", ["mi300x", "mi325x"])
def test_chip_share_of_the_profile_makes_steps_slower_by_it(gpu: str) -> None:
    """Steps without it were 37 % too fast at the median of four sources (tests/data/served_chips.csv)."""
    setting = step_setting("llama-3.1-8b", gpu, "vllm@0.20")
    own = setting.profile.step_time
    assert own is not None
    without = setting.profile.model_copy(update={"step_time": own.model_copy(update={"chip_share": None})})
    shape = decode_shape(32, 1536)
    measured, transferred = (
        StepModel(replace(setting, profile=profile)).step_seconds(shape)
        for profile in (setting.profile, without)
    )
    assert 1.4 < measured / transferred < 1 / own.chip_share.share  # type: ignore[union-attr]
