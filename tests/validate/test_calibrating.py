"""Calibration: invented kernels with known constants must give them back; thin and torn evidence must be refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from capacity_validate import calibrate
from capacity_validate.cases import Case, MeasuredCase, MeasurementLog, make_case
from capacity_validate.fitting import fit_families, fit_host_time
from capacity_validate.predictions import (
    FAMILY,
    Predictor,
    calibrates,
    constants_of,
    formula,
    lookup_of,
    target_of,
)
from capacity_validate.small_models import (
    cut_layers,
    extrapolated_s,
    find_model,
    layers_that_fit,
    small_model,
    small_model_names,
)
from capacity_validate.timing import summarise_samples

from capacity.base.errors import InvalidInput, OutsideValidity
from capacity.deployment import Pool, build
from capacity.hardware import load_profile
from capacity.pool.resolve import resolve
from capacity.step import decode_shape, prefill_shape

H200 = load_profile("h200")
BASE_GEMM = lookup_of(H200).kernel("gemm", "bf16")
TRUE_GEMM = SimpleNamespace(  # what is not fitted is as in the profile
    compute_fraction=0.7,
    bandwidth_fraction=0.8,
    sharpness=3.0,
    fixed_s=4e-6,
    per_k_s=BASE_GEMM.per_k_s,
    quantize_fraction=None,
)
BASE_DECODE = lookup_of(H200).kernel("decode_attention", "16bit")
TRUE_DECODE = SimpleNamespace(
    compute_fraction=BASE_DECODE.compute_fraction,
    bandwidth_fraction=0.9,
    sharpness=min(4.0, BASE_DECODE.sharpness),
    fixed_s=1.2e-5,
    occupancy_s=2e-6,
    per_doubling_s=BASE_DECODE.per_doubling_s,
)


def gemm_cases() -> list[Case]:
    shapes = [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)]
    return [make_case("gemm", "bf16", m=m, n=n, k=k) for m in (1, 8, 64, 256, 1024, 8192) for n, k in shapes]


def decode_cases() -> list[Case]:
    return [
        make_case(
            "decode_attention",
            "bf16",
            variant="paged",
            batch=b,
            context=c,
            heads=32,
            kv_heads=8,
            head_dim=128,
        )
        for b in (1, 4, 16, 64, 128)
        for c in (512, 2048, 8192, 16384)
    ]


def timed(case: Case, constants: Any, *, noise: float = 0.0, rng: Any = None) -> MeasuredCase:
    function = formula(case, H200)
    assert function is not None
    seconds = function(constants) * (math.exp(noise * rng.normal()) if noise else 1.0)
    return MeasuredCase(
        case=case,
        status="ok",
        timing=summarise_samples([seconds] * 3, "graph"),
        flops=case.get("m", 1) * 1.0,
        bytes=1.0,
    )


def write(
    path: Path, cases: list[MeasuredCase], *, device: str = "NVIDIA H200", profile: str = H200.name
) -> Path:
    header = {"environment": {"device": device, "torch": "2.13.0", "kind": "cuda"}, "profile": profile}
    log = MeasurementLog(path, header)
    for case in cases:
        log.add(case)
    return path


def evidence(noise: float = 0.0, seed: int = 0) -> list[MeasuredCase]:
    rng = np.random.default_rng(seed)
    return [
        *(timed(case, TRUE_GEMM, noise=noise, rng=rng) for case in gemm_cases()),
        *(timed(case, TRUE_DECODE, noise=noise, rng=rng) for case in decode_cases()),
    ]


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


def test_a_calibrated_profile_is_written_found_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "profiles"
    answer = calibrate([write(tmp_path / "m.jsonl", evidence())], name="mine", out=folder)
    assert (folder / "h200-sxm-141gb@mine.toml").is_file()
    monkeypatch.setenv("CAPACITY_PROFILES", str(folder))
    profile = load_profile("h200@mine")
    assert profile.provenance == H200.provenance
    assert profile.step_time is not None
    fit = profile.step_time.families[FAMILY].gemm["bf16"].fit
    assert fit.basis == "fitted"
    assert "NVIDIA H200" in fit.source
    resolved = [resolve("llama-3.1-8b", build(Pool, {"gpu": gpu})) for gpu in ("h200", "h200@mine")]
    seconds = [r.step_model.step_seconds(decode_shape(32, 1024)) for r in resolved]
    assert seconds[0] != seconds[1]
    assert {m.name for m in answer.moved} >= {"fixed_s", "bandwidth_fraction"}
    assert answer.lines()[-1].endswith("use it with --gpu h200-sxm-141gb@mine")
    assert json.loads(json.dumps(answer.to_dict()))["schema"] == "capacity/calibration/v1"


def test_no_host_name_is_in_a_profile(tmp_path: Path) -> None:
    import platform

    path = calibrate([write(tmp_path / "m.jsonl", evidence())], out=tmp_path).path
    assert platform.node() not in Path(path).read_text()


def test_thin_evidence_is_refused(tmp_path: Path) -> None:
    few = [timed(case, TRUE_GEMM) for case in gemm_cases()[:5]]
    with pytest.raises(OutsideValidity, match="5 cases are too few"):
        calibrate([write(tmp_path / "m.jsonl", few)], out=tmp_path)
    with pytest.raises(InvalidInput, match="no measurement file"):
        calibrate([])


def test_contradictory_evidence_is_refused(tmp_path: Path) -> None:
    """Times that no constants explain; and two files that disagree about the same cases."""
    rng = np.random.default_rng(1)
    torn = [timed(case, TRUE_GEMM, noise=2.5, rng=rng) for case in gemm_cases()]
    with pytest.raises(OutsideValidity, match="contradictory"):
        calibrate([write(tmp_path / "torn.jsonl", torn)], out=tmp_path)
    slow = SimpleNamespace(
        **{**vars(TRUE_GEMM), "compute_fraction": 0.3, "bandwidth_fraction": 0.3, "fixed_s": 1e-5}
    )
    one = write(tmp_path / "one.jsonl", [timed(case, TRUE_GEMM) for case in gemm_cases()])
    two = write(tmp_path / "two.jsonl", [timed(case, slow) for case in gemm_cases()])
    with pytest.raises(OutsideValidity, match="contradict each other"):
        calibrate([one, two], out=tmp_path)


def test_files_of_one_device_combine_and_of_two_do_not(tmp_path: Path) -> None:
    cases = evidence()
    one, two = write(tmp_path / "1.jsonl", cases[:30]), write(tmp_path / "2.jsonl", cases[20:])
    assert calibrate([one, two], out=tmp_path).cases == len(cases)
    other = write(tmp_path / "3.jsonl", cases, device="NVIDIA B200")
    with pytest.raises(InvalidInput, match="different devices"):
        calibrate([one, other], out=tmp_path)
    with pytest.raises(InvalidInput, match="letters, digits"):
        calibrate([one], name="../../etc", out=tmp_path)


def test_experimental_variants_are_compared_but_not_fitted() -> None:
    sizes = {"batch": 1, "heads": 32, "kv_heads": 32, "head_dim": 128, "tokens": 512}
    assert calibrates(make_case("prefill_attention", "bf16", variant="flash", **sizes), on_gpu=True)
    assert not calibrates(make_case("prefill_attention", "bf16", variant="math", **sizes), on_gpu=True)
    assert target_of(make_case("gemm", "fp32", m=1, n=1, k=1), on_gpu=True) is None


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


# models cut to fit


@pytest.mark.parametrize("name", small_model_names())
def test_small_models_are_small(name: str) -> None:
    assert 1e7 < find_model(name).total_params < 6e7


def test_cut_models_lose_layers_and_nothing_else() -> None:
    whole = find_model("llama-3.1-8b")
    cut = cut_layers(whole, 4)
    assert cut.num_layers == 4
    per_layer = (whole.total_params - cut.total_params) / (whole.num_layers - 4)
    assert per_layer == (cut.total_params - cut_layers(whole, 2).total_params) / 2
    assert cut_layers(whole, 99) is whole
    with pytest.raises(InvalidInput, match="at least 1 layer"):
        cut_layers(whole, 0)


def test_layers_are_cut_to_the_memory() -> None:
    model = find_model("llama-3.1-70b")
    fitting = layers_that_fit(model, 100e9)
    assert 0 < fitting < model.num_layers
    assert (
        2 * cut_layers(model, fitting).total_params <= 100e9 < 2 * cut_layers(model, fitting + 1).total_params
    )
    assert layers_that_fit(model, 1e9) == 0


def test_two_depths_extrapolate_to_all_layers() -> None:
    assert extrapolated_s(few=4, few_s=1.4, more=8, more_s=1.8, layers=80) == pytest.approx(9.0)


# the formulas of the cases are those of a step


def one_layer_steps(name: str) -> dict[str, float]:
    """Operators of a decode step of 8 sequences at 300 tokens, and of a prefill of 200, in one layer."""
    steps = Predictor(H200, on_gpu=True, model=cut_layers(small_model(name), 1)).step_model()
    costs = (steps.step_cost(decode_shape(8, 300)), steps.step_cost(prefill_shape(1, 200)))
    return {
        f"{op.name}, {phase}": op.seconds
        for cost, phase in zip(costs, "dp", strict=True)
        for op in cost.operators
    }


def predicted(operator: str, *, variant: str = "", kernel: str = "fp32", **sizes: int) -> float:
    case = make_case(operator, kernel, variant=variant, **sizes)
    constants, function = constants_of(case, lookup_of(H200), on_gpu=True), formula(case, H200)
    assert function is not None
    return function(constants)


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
    assert predicted("gemm", kernel="tf32", m=200, n=768, k=512) == pytest.approx(step["qkv, p"], rel=1e-6)


def test_experts_of_a_case_are_those_of_a_step() -> None:
    step = one_layer_steps("tiny-moe")
    case = predicted("moe", tokens=8, experts=8, top_k=2, hidden=512, intermediate=512)
    assert case == pytest.approx(step["experts, d"], rel=0.02)


def test_a_layers_elementwise_case_is_that_of_a_step() -> None:
    step = one_layer_steps("tiny")
    sizes = {"rows": 8, "hidden": 512, "heads": 8, "kv_heads": 2, "head_dim": 64, "intermediate": 1536}
    case = predicted("elementwise", variant="layer", **sizes)
    assert case == pytest.approx(step["norms, rope, activation, d"], rel=1e-6)


def test_what_was_measured_on_a_cpu_is_no_gpu(tmp_path: Path) -> None:
    header = {"environment": {"device": "a CPU", "torch": "2.13.0", "kind": "cpu"}, "profile": "cpu"}
    log = MeasurementLog(tmp_path / "m.jsonl", header)
    for case in evidence():
        log.add(case)
    with pytest.raises(InvalidInput, match="a CPU is not a GPU, and cannot be h200-sxm-141gb"):
        calibrate([tmp_path / "m.jsonl"], gpu="h200", out=tmp_path)


@pytest.mark.parametrize("verb", ["validate", "calibrate", "compare"])
def test_an_unknown_format_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    import sys
    from unittest.mock import patch

    from capacity.cli.main import main

    arguments = ["capacity", verb, *(["x"] if verb != "validate" else []), "--format", "yaml"]
    with patch.object(sys, "argv", arguments), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().endswith("--format is 'yaml': must be one of table, json")


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf])
def test_a_tolerance_is_a_share(tolerance: float, tmp_path: Path) -> None:
    from capacity_validate import validate

    with pytest.raises(InvalidInput, match="must be a share such as"):
        validate("cpu", out=tmp_path, tolerance_tpot=tolerance)
