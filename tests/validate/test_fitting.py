"""Fits: invented kernels with known constants give them back."""

from dataclasses import replace

import numpy as np
import pytest
from capacity_validate.cases import MeasuredCase, make_case
from capacity_validate.constant_fits import evidence_by_target, fit_families, fit_host_time, split_cases
from capacity_validate.plausibility import timing_remarks
from capacity_validate.predictions import Predictor, step_shape
from capacity_validate.small_models import small_model
from capacity_validate.timing import How
from invented_kernels import H200, evidence, measured_case

from capacity.model import load_model
from capacity.step.setting import HostTime, graph_sizes


def test_known_constants_come_back() -> None:
    fits, _ = fit_families(evidence(), H200, source="test", final=True)
    after = {fit.target.operator: fit.after for fit in fits}
    for name, true in (
        ("compute_fraction", 0.7),
        ("bandwidth_fraction", 0.8),
        ("fixed_s", 4e-6),
        ("per_k_s", 6e-10),
    ):
        assert getattr(after["gemm"], name) == pytest.approx(true, rel=0.05), name
    for name, true in (("bandwidth_fraction", 0.9), ("fixed_s", 1.2e-5), ("occupancy_s", 2e-6)):
        assert getattr(after["decode_attention"], name) == pytest.approx(true, rel=0.15), name


def test_held_out_error_is_the_noise_of_the_evidence() -> None:
    """With 5 % of noise a right form is off by 0.67 sigma at the median; twice that is allowed for."""
    fits, _ = fit_families(evidence(noise=0.05), H200, source="test")
    for fit in fits:
        assert fit.error_after.median < 2 * 0.67 * 0.05
        assert fit.error_after.rows > 5


def test_the_fit_never_sees_the_cases_it_is_scored_on() -> None:
    """Held-out times made ten times longer must not move the constants."""
    cases = evidence()
    before, _ = fit_families(cases, H200, source="test")

    held_out = {m.case.id for m in split_cases([c for c in cases if c.case.operator == "gemm"])[1]}
    spoiled = [
        measured_case(m.case, m.seconds * 1.4, flops=m.flops, bytes=1.0) if m.case.id in held_out else m
        for m in cases
    ]
    after, _ = fit_families(spoiled, H200, source="test")
    gemm = [next(f for f in fits if f.target.operator == "gemm") for fits in (before, after)]
    assert gemm[0].after.model_dump(exclude={"fit"}) == gemm[1].after.model_dump(exclude={"fit"})
    assert gemm[1].error_after.median > 0.2


def test_host_time_is_what_the_operators_leave_unexplained() -> None:
    """Steps made of the operators' sum plus 300 us and 5 us a sequence give these back."""
    model = small_model("tiny")
    steps = Predictor(H200, model=model).step_model()
    cases = [make_case("model prefill", "fp32", tokens=n, layers=6) for n in (16, 64, 256)]
    cases += [make_case("model decode", "fp32", batch=b, context=128, layers=6) for b in (1, 8, 32)]
    measured = []
    for case in cases:
        shape = step_shape(case)
        sequences = shape.prefill_sequences + shape.decode_sequences
        seconds = steps.step_seconds(shape) + 300e-6 + 5e-6 * sequences
        measured.append(measured_case(case, seconds))
    host = fit_host_time(measured, steps)
    assert host.step_s == pytest.approx(300e-6, rel=1e-3)
    assert host.per_sequence_s == pytest.approx(5e-6, rel=1e-3)


@pytest.mark.parametrize("eager_s", [0.0, 5e-3, 9e-3, 14e-3])
def test_launches_of_prefills_are_fitted_apart_from_what_every_step_costs(eager_s: float) -> None:
    """An H200 whose decode steps replay graphs and whose prefills are launched in `eager_s`, 4 % scatter beside.

    One term for both would charge decode for the launches, and leave short prompts up to 40 % off.
    """
    model = load_model("llama-3.1-8b")
    plain = Predictor(H200, model=model).step_model()
    sizes = graph_sizes(128)
    truth = HostTime(step_s=400e-6, per_sequence_s=4e-6, overlapped=False)
    truth = replace(truth, eager_s=eager_s, graph_sizes=sizes, graphs_for_prefill=False)
    true = Predictor(H200, model=model, host=truth)
    rng = np.random.default_rng(3)
    cases = [make_case("model prefill", "bf16", tokens=2**n, layers=32) for n in range(5, 13)]
    cases += [
        make_case("model decode", "bf16", batch=b, context=c, layers=32)
        for b in (1, 2, 8, 32, 128)
        for c in (512, 2048)
    ]
    measured = [
        measured_case(case, (true.seconds(case) or 0.0) * rng.lognormal(0.0, 0.04), "events")
        for case in cases
    ]
    host = fit_host_time(measured, plain, graphs=True)
    fitted = Predictor(H200, model=model, host=host)
    errors = {case.id: abs((fitted.seconds(case) or 0.0) / (true.seconds(case) or 1.0) - 1) for case in cases}
    assert max(errors.values()) < 0.06, errors
    assert (host.graph_sizes, host.graphs_for_prefill) == (sizes, False)
    if eager_s:
        assert host.eager_s == pytest.approx(eager_s, rel=0.05)
        short = cases[0]
        single = Predictor(H200, model=model, host=fit_host_time(measured, plain))
        assert abs((single.seconds(short) or 0.0) / (true.seconds(short) or 1.0) - 1) > 0.10


def test_short_kernels_by_events_are_no_evidence_beside_kernels_in_graphs() -> None:
    """Launch gaps are in their times; where nothing could be captured, they are all there is."""

    def gemm(m: int, seconds: float, how: How) -> MeasuredCase:
        return measured_case(make_case("gemm", "bf16", m=m, n=4096, k=4096), seconds, how)

    mixed = [gemm(1, 20e-6, "graph"), gemm(2, 30e-6, "events"), gemm(8192, 5e-3, "events")]
    (rows,) = evidence_by_target(mixed, H200).values()
    assert [row.case["m"] for row in rows] == [1, 8192]
    (all_by_events,) = evidence_by_target(mixed[1:], H200).values()
    assert [row.case["m"] for row in all_by_events] == [2, 8192]
    (remark,) = timing_remarks(mixed)
    assert "no CUDA graph could be captured for gemm/bf16/k=4096,m=2,n=4096" in remark


def test_a_sustained_product_is_shown_and_never_fitted() -> None:
    case = make_case("gemm", "bf16", variant="sustained", m=8192, n=8192, k=8192)
    assert evidence_by_target([measured_case(case, 1e-3, "events")], H200) == {}
    assert Predictor(H200).seconds(case)
