"""Fits: invented kernels with known constants give them back."""

from __future__ import annotations

import pytest
from capacity_validate.cases import MeasuredCase, make_case
from capacity_validate.fitting import fit_families, fit_host_time
from capacity_validate.predictions import (
    Predictor,
)
from capacity_validate.small_models import (
    small_model,
)
from capacity_validate.timing import summarise_samples
from invented_kernels import H200, evidence

from capacity.step import decode_shape, prefill_shape


def test_known_constants_come_back() -> None:
    fits, _ = fit_families(evidence(), H200, source="test", on_gpu=True, final=True)
    after = {fit.target.operator: fit.after for fit in fits}
    for name, true in (("compute_fraction", 0.7), ("bandwidth_fraction", 0.8), ("fixed_s", 4e-6)):
        assert getattr(after["gemm"], name) == pytest.approx(true, rel=0.05), name
    for name, true in (("bandwidth_fraction", 0.9), ("fixed_s", 1.2e-5), ("occupancy_s", 2e-6)):
        assert getattr(after["decode_attention"], name) == pytest.approx(true, rel=0.15), name


def test_held_out_error_is_the_noise_of_the_evidence() -> None:
    """With 5 % of noise a right form is off by 0.67 sigma at the median; twice that is allowed for."""
    fits, _ = fit_families(evidence(noise=0.05), H200, source="test", on_gpu=True)
    for fit in fits:
        assert fit.error_after.median < 2 * 0.67 * 0.05
        assert fit.error_after.rows > 5


def test_the_fit_never_sees_the_cases_it_is_scored_on() -> None:
    """Held-out times made ten times longer must not move the constants."""
    cases = evidence()
    before, _ = fit_families(cases, H200, source="test", on_gpu=True)
    from capacity_validate.cases import split

    held_out = {m.case.id for m in split([c for c in cases if c.case.operator == "gemm"])[1]}
    spoiled = [
        MeasuredCase(
            case=m.case,
            status="ok",
            timing=summarise_samples([m.seconds * 1.4], "graph"),
            flops=m.flops,
            bytes=1.0,
        )
        if m.case.id in held_out
        else m
        for m in cases
    ]
    after, _ = fit_families(spoiled, H200, source="test", on_gpu=True)
    gemm = [next(f for f in fits if f.target.operator == "gemm") for fits in (before, after)]
    assert gemm[0].after.model_dump(exclude={"fit"}) == gemm[1].after.model_dump(exclude={"fit"})
    assert gemm[1].error_after.median > 0.2


def test_host_time_is_what_the_operators_leave_unexplained() -> None:
    """Steps made of the operators' sum plus 300 us and 5 us a sequence give these back."""
    model = small_model("tiny")
    steps = Predictor(H200, on_gpu=True, model=model).step_model()
    cases = [
        *(
            (make_case("model prefill", "fp32", tokens=n, layers=6), prefill_shape(1, n))
            for n in (16, 64, 256)
        ),
        *(
            (make_case("model decode", "fp32", batch=b, context=128, layers=6), decode_shape(b, 128))
            for b in (1, 8, 32)
        ),
    ]
    measured = []
    for case, shape in cases:
        seconds = (
            steps.step_seconds(shape) + 300e-6 + 5e-6 * (shape.prefill_sequences + shape.decode_sequences)
        )
        measured.append(MeasuredCase(case=case, status="ok", timing=summarise_samples([seconds], "graph")))
    host = fit_host_time(measured, steps)
    assert host.step_s == pytest.approx(300e-6, rel=1e-3)
    assert host.per_sequence_s == pytest.approx(5e-6, rel=1e-3)
