"""The formulas of measured cases are those of a step."""

import pytest
from capacity_validate.cases import make_case
from capacity_validate.predictions import (
    Predictor,
    calibration_target,
    case_constants,
    formula,
    is_calibration_case,
    profile_lookup,
)
from capacity_validate.small_models import cut_layers, small_model
from invented_kernels import H200

from capacity.hardware.power import sustained_constants
from capacity.step import decode_shape, prefill_shape


def one_layer_steps(name: str) -> dict[str, float]:
    """Operators of a decode step of 8 sequences at 300 tokens, and of a prefill of 200, in one layer."""
    steps = Predictor(H200, model=cut_layers(small_model(name), 1)).step_model()
    costs = (steps.step_cost(decode_shape(8, 300)), steps.step_cost(prefill_shape(1, 200)))
    return {
        f"{op.name}, {phase}": op.seconds
        for cost, phase in zip(costs, "dp", strict=True)
        for op in cost.operators
    }


def predicted(operator: str, *, variant: str = "", kernel: str = "fp32", **sizes: int) -> float:
    case = make_case(operator, kernel, variant=variant, **sizes)
    constants, function = case_constants(case, profile_lookup(H200)), formula(case, H200)
    assert function is not None
    return function(sustained_constants(constants, H200))  # as steps take them


def test_attention_of_a_case_is_that_of_a_step() -> None:
    step = one_layer_steps("tiny")
    decode = predicted("decode_attention", batch=8, context=300, heads=8, kv_heads=2, head_dim=64)
    assert decode == pytest.approx(step["attention decode, d"], rel=1e-6)
    prefill = predicted("prefill_attention", batch=1, tokens=200, heads=8, kv_heads=2, head_dim=64)
    assert prefill == pytest.approx(step["attention prefill, p"], rel=1e-6)


def test_latent_attention_of_a_case_is_that_of_a_step() -> None:
    step = one_layer_steps("tiny-mla")
    case = predicted("mla_decode", batch=8, context=300, heads=8, latent=128, rope=32)
    assert case == pytest.approx(step["attention decode, d"], rel=1e-6)


def test_a_product_of_a_case_is_that_of_a_step() -> None:
    step = one_layer_steps("tiny")
    assert predicted("gemm", m=200, n=768, k=512) == pytest.approx(step["qkv, p"], rel=1e-6)


def test_experts_of_a_case_are_those_of_a_step() -> None:
    step = one_layer_steps("tiny-moe")
    case = predicted("moe", tokens=8, experts=8, top_k=2, hidden=512, intermediate=512)
    assert case == pytest.approx(step["experts, d"], rel=0.02)


def test_a_layers_elementwise_case_is_that_of_a_step() -> None:
    step = one_layer_steps("tiny")
    sizes = {"rows": 8, "hidden": 512, "heads": 8, "kv_heads": 2, "head_dim": 64, "intermediate": 1536}
    case = predicted("elementwise", variant="layer", **sizes)
    assert case == pytest.approx(step["norms, rope, activation, d"], rel=1e-6)


def test_experimental_variants_are_compared_but_not_fitted() -> None:
    sizes = {"batch": 1, "heads": 32, "kv_heads": 32, "head_dim": 128, "tokens": 512}
    assert is_calibration_case(make_case("prefill_attention", "bf16", variant="flash", **sizes), H200)
    assert not is_calibration_case(make_case("prefill_attention", "bf16", variant="math", **sizes), H200)
    assert calibration_target(make_case("gemm", "tf32", m=1, n=1, k=1)) is None
