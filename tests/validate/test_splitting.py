"""What a fit is judged by: shapes that it never saw, between a smallest and a largest one that it did."""

import math
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch")

from capacity_validate.campaigns import load_campaign, order_cases
from capacity_validate.cases import Case, MeasuredCase, make_case
from capacity_validate.constant_fits import case_work, describe_split, fit_families, shape_key, split_cases
from capacity_validate.stages.steps import step_cases
from hypothesis import given
from hypothesis import strategies as st
from invented_kernels import H200, TRUE_GEMM, measured_case, timed

from capacity.model import load_model

PLAN = load_campaign("standard").cuda


def measured(case: Case, seconds: float = 1e-3, *, counted: bool = True) -> MeasuredCase:
    work = float(sum(dict(case.sizes).values())) if counted else 0.0
    return measured_case(case, seconds, flops=work)


def of_standard(operator: str, kernels: tuple[str, ...] = ("bf16",)) -> list[MeasuredCase]:
    return [
        measured(c)
        for c in order_cases(PLAN)
        if c.operator == operator
        and c.kernel in kernels
        and c.variant in ("", "paged", "flash", "grouped", "layer")
    ]


@pytest.mark.parametrize(
    "operator", ["gemm", "decode_attention", "prefill_attention", "mla_decode", "moe", "elementwise"]
)
def test_held_out_cases_of_standard_have_no_twin_among_the_fitted(operator: str) -> None:
    fitted, held_out = split_cases(of_standard(operator))
    assert len(held_out) >= 0.2 * (len(fitted) + len(held_out))
    assert not {shape_key(m.case) for m in fitted} & {shape_key(m.case) for m in held_out}
    assert describe_split(of_standard(operator)).startswith("whole shapes")


def test_kernels_of_one_matrix_are_held_out_together() -> None:
    """FP8 with a scale for all and with one for each row calibrate the same constants."""
    cases = of_standard("gemm", ("fp8", "fp8_rowwise"))
    kinds = Counter(shape_key(m.case) for m in split_cases(cases)[1])
    assert kinds
    assert all(count == sum(shape_key(m.case) == key for m in cases) for key, count in kinds.items())


def test_the_ends_of_steps_are_fitted_by_size_and_not_by_spelling() -> None:
    """Steps count no FLOPs; "batch=128" sorts before "batch=16", and batch 1 x 512 before neither."""
    stage = load_campaign("quick").cuda.transformer
    assert stage is not None
    steps = [measured(c, counted=False) for c in step_cases(stage, load_model("llama-3.1-8b"))]
    fitted, held_out = split_cases(steps)
    assert len(held_out) > 8
    for operator in ("model prefill", "model decode"):
        own = sorted((m for m in steps if m.case.operator == operator), key=case_work)
        assert own[0] in fitted
        assert any(case_work(m) == case_work(own[-1]) for m in fitted)
    batches = {m.case["batch"] for m in fitted if m.case.operator == "model decode"}
    assert {1, 128} <= batches
    assert not batches & {m.case["batch"] for m in held_out if m.case.operator == "model decode"}


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40, unique=True))
def test_a_single_shape_is_halved_between_its_ends(sizes: list[int]) -> None:
    cases = [measured(make_case("gemm", "bf16", m=m, n=64, k=64)) for m in sizes]
    fitted, held_out = split_cases(cases)
    assert sorted(m.case.id for m in (*fitted, *held_out)) == sorted(m.case.id for m in cases)
    assert len(held_out) == len(cases) // 2
    if len(cases) > 3:
        assert {min(sizes), max(sizes)} <= {m.case["m"] for m in fitted}


def test_a_split_is_the_same_whatever_the_order_and_the_times() -> None:
    cases = of_standard("gemm")
    slower = [measured(m.case, 2.0) for m in reversed(cases)]
    assert {m.case.id for m in split_cases(cases)[1]} == {m.case.id for m in split_cases(slower)[1]}


def test_a_shapes_own_efficiency_shows_in_its_error() -> None:
    """Each matrix up to 15 % off for good, as kernels are: twins on both sides would hide it."""
    rng = np.random.default_rng(4)
    products = [m.case for m in of_standard("gemm")]
    own = {shape_key(case): math.exp(0.15 * rng.normal()) for case in products}
    cases = []
    for case in products:
        truth = timed(case, TRUE_GEMM)
        cases.append(measured(case, truth.seconds * own[shape_key(case)]))
    (fit,), _ = fit_families(cases, H200, source="test")
    assert 0.05 < fit.error_after.median < 0.25
    assert fit.after.fit.held_out_by.startswith("whole shapes")
