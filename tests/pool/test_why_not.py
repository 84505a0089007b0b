"""Refusals in words: how far off, and ways out that hold when they are tried."""

from __future__ import annotations

import pytest
from filled_pools import H100, H200, VLLM, VLLM_011, plan_of

from capacity.base.errors import DoesNotFit
from capacity.hardware import load_profile
from capacity.model import load_model


def test_not_fitting_says_how_far_off_and_what_would() -> None:
    model = load_model("llama-3.1-70b")
    plan = plan_of(model, H200, VLLM)
    assert not plan.fits
    assert plan.reason is not None
    assert plan.reason.startswith("llama-3.1-70b (bf16) needs 141.1 GB of weights")
    assert "Use --tensor-parallel-size 2, or --quantization fp8." in plan.reason
    assert "\n" not in plan.reason
    with pytest.raises(DoesNotFit) as caught:
        plan.require_fit()
    assert caught.value.needed_bytes > caught.value.usable_bytes == plan.usable_bytes
    assert plan_of(model, H200, VLLM, tensor_parallel_size=2).fits


def test_too_long_a_context_names_the_longest_that_fits() -> None:
    model = load_model("qwen3-32b")
    plan = plan_of(model, H100, VLLM_011)
    assert not plan.fits
    assert f"--max-model-len {plan.max_context_tokens}" in (plan.reason or "")
    assert plan_of(model, H100, VLLM_011, max_model_len=plan.max_context_tokens).fits
    assert not plan_of(model, H100, VLLM_011, max_model_len=plan.max_context_tokens + 1).fits


def test_what_fits_nowhere_says_so() -> None:
    plan = plan_of(load_model("deepseek-r1"), load_profile("l4-24gb"), VLLM)
    assert "No tensor parallelism up to 8 on this GPU fits" in (plan.reason or "")
