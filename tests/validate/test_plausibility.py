"""Times that cannot be are named, and end the run; kernels unlike their family are named."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from capacity_validate import runner as runner_module  # noqa: E402
from capacity_validate.cases import Case, MeasuredCase, MeasurementLog, make_case  # noqa: E402
from capacity_validate.constant_fits import fit_families  # noqa: E402
from capacity_validate.kernels import KernelContext, PreparedCase  # noqa: E402
from capacity_validate.plausibility import (  # noqa: E402
    bound_remarks,
    explain_impossible_speed,
    find_equal_times,
    outlying_shapes,
    reach_remarks,
    reference_deviation,
    roof_fraction,
    time_drift,
)
from capacity_validate.runner import CaseRunner, RunOutcome  # noqa: E402
from capacity_validate.telemetry import Reading, Telemetry  # noqa: E402
from capacity_validate.timing import CudaStopwatch, How, is_precise  # noqa: E402
from fake_cuda import FakeCuda  # noqa: E402
from invented_kernels import H200, TRUE_GEMM, gemm_cases, measured_case, timed  # noqa: E402

HEADER = {"environment": {"device": "d", "torch": "t"}, "profile": "h200-sxm-141gb"}


def product(m: int, seconds: float, *, n: int = 4096, k: int = 4096, how: How = "graph") -> MeasuredCase:
    work = {"flops": 2.0 * m * n * k, "bytes": 2.0 * (n * k + m * k + m * n)}
    return measured_case(make_case("gemm", "bf16", m=m, n=n, k=k), seconds, how, **work)


def copied(seconds: float) -> MeasuredCase:
    case = make_case("bandwidth", "fp32", variant="copy", bytes=2**30)
    return measured_case(case, seconds, "events", bytes=2.0 * 2**30)


def test_what_is_faster_than_the_datasheet_is_said_with_both_numbers() -> None:
    fair = product(8192, 8192 * 2 * 4096**2 / 700e12)
    assert explain_impossible_speed(fair, H200) is None
    assert roof_fraction(fair, H200) == pytest.approx(700 / 989, rel=0.01)
    assert explain_impossible_speed(product(8192, 1e-4), H200) == "2749 TFLOP/s, but h200-sxm-141gb has 989"
    assert explain_impossible_speed(copied(4.5e-4), H200) is None  # 4.77 TB/s of 4.8
    assert explain_impossible_speed(copied(2e-4), H200) == "10737 GB/s, but h200-sxm-141gb has 4800"
    (remark,) = reach_remarks([fair, copied(5e-4)], H200)
    assert "best copy 4,295 GB/s (89% of h200" in remark
    assert "best matrix multiplication 700 TFLOP/s (71% of" in remark


def test_one_time_for_all_sizes_is_not_a_kernels_time() -> None:
    stuck = [product(m, 1e-3) for m in (1, 512, 4096, 16384)]
    assert "4 sizes all take 1000 us" in next(iter(find_equal_times(stuck, H200).values()))
    bound_by_weights = [product(m, 12e-6) for m in (1, 2, 4, 8, 16)]  # as much work each: rightly alike
    assert find_equal_times(bound_by_weights, H200) == {}
    launches = [product(m, 1e-3, n=64, k=64) for m in (1, 64, 2048)]  # far below a launch: rightly alike
    assert find_equal_times(launches, H200) == {}


def run(tmp_path: Path, seconds: Callable[[int], float], *, passes: int = 1) -> tuple[RunOutcome, CaseRunner]:
    fake = FakeCuda(launch_s=0.0)
    counts: dict[str, int] = {}

    def prepared(case: Case) -> PreparedCase:
        counts[case.id] = counts.get(case.id, 0) + 1
        example = product(case["m"], 1.0, n=case["n"], k=case["k"])
        return PreparedCase(
            calls=[fake.kernel(seconds(case["m"]) * (1 + 0.3 * (counts[case.id] - 1)))],
            check=None, tolerance=0.0, flops=example.flops, bytes=example.bytes, capturable=False,
        )  # fmt: skip

    runner = CaseRunner(
        bench=KernelContext(fake.torch, "cuda:0", 2**20, None, 1e9),
        stopwatch=CudaStopwatch(fake.torch, "cuda:0"),
        log=MeasurementLog(tmp_path / "m.jsonl", HEADER),
        case_s=0.01,
        own_calls=prepared,
        datasheet=H200,
    )
    cases = [make_case("gemm", "bf16", m=m, n=4096, k=4096) for m in range(2048, 2048 * 13, 2048)]
    return runner.run(cases, passes=passes, deadline=time.monotonic() + 60), runner


def honest(m: int) -> float:
    return 2.0 * m * 4096**2 / 600e12


def test_a_few_times_that_cannot_be_end_the_run_and_no_fit_takes_them(tmp_path: Path) -> None:
    outcome, runner = run(tmp_path, lambda m: honest(m) / (10 if m > 4096 else 1))
    assert outcome.stopped.startswith("3 cases have impossible times (gemm/bf16/")
    assert [m.status for m in runner.log.done.values()] == ["ok", "ok", *["implausible"] * 3]
    assert outcome.timed == 2
    again = MeasurementLog(tmp_path / "m.jsonl", HEADER)
    assert all(again.is_settled(case.case) for case in runner.log.done.values())


def test_a_clock_that_stands_still_ends_the_run(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, lambda m: honest(2048 * 12))  # noqa: ARG005
    assert "sizes all take" in outcome.stopped


@pytest.mark.parametrize(
    ("operator", "factor", "stopped"),
    [("gemm", 1.3, False), ("gemm", 3.0, False), ("bandwidth", 1.14, False), ("bandwidth", 3.0, True)],
)
def test_bandwidth_beyond_the_datasheet_is_marked_and_ends_a_run_only_if_copies_are_far_beyond(
    tmp_path: Path, operator: str, factor: float, stopped: bool
) -> None:
    """A cache, or memory that is faster than its datasheet, makes single kernels impossibly fast, not the clock."""
    sizes = [2**29 + 2**20 * i for i in range(5)]
    fake = FakeCuda(launch_s=0.0)
    runner = CaseRunner(
        bench=KernelContext(fake.torch, "cuda:0", 2**20, None, 1e9),
        stopwatch=CudaStopwatch(fake.torch, "cuda:0"),
        log=MeasurementLog(tmp_path / "m.jsonl", HEADER),
        case_s=0.01,
        own_calls=lambda case: PreparedCase(
            calls=[fake.kernel(case["bytes"] / H200.hbm_bytes_per_s / factor)], bytes=float(case["bytes"])
        ),
        datasheet=H200,
    )
    cases = [make_case(operator, "bf16", bytes=size) for size in sizes]
    outcome = runner.run(cases, passes=1, deadline=time.monotonic() + 60)
    assert bool(outcome.stopped) == stopped
    assert {m.status for m in runner.log.done.values()} == {"implausible"}
    assert outcome.skipped == (3 if stopped else 5)


def test_an_honest_run_is_not_stopped(tmp_path: Path) -> None:
    outcome, runner = run(tmp_path, honest)
    assert (outcome.stopped, outcome.timed, outcome.drift) == ("", 12, 0.0)
    assert {m.status for m in runner.log.done.values()} == {"ok"}


def test_a_drift_from_pass_to_pass_is_told(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, honest, passes=2)
    assert outcome.drift == pytest.approx(0.3, rel=1e-6)
    assert time_drift({"a": 1.0}, {"a": 2.0}) == 0.0  # one case drifts by itself


def test_the_reference_case_shows_heat_in_a_single_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No case runs twice, and none tells: the card is 20 % slower from the middle of the run on."""
    monkeypatch.setattr(runner_module, "REFERENCE_EVERY_S", 0.0)
    fake = FakeCuda(launch_s=0.0)
    reference = make_case("gemm", "bf16", m=1, n=1, k=1)
    hot: list[str] = []

    def prepared(case: Case, _: object = None) -> PreparedCase:
        if case["m"] == 6:
            hot.append(case.id)
        slow = lambda: 1.2 if hot else 1.0  # noqa: E731
        return PreparedCase(calls=[lambda: fake.kernel(1e-3 * slow())()], capturable=False)

    monkeypatch.setattr(runner_module, "prepare", prepared)
    telemetry = Telemetry(lambda: None)
    telemetry.readings.append(Reading(at_s=0.0, sm_clock_hz=1.7e9, power_watts=650.0))
    runner = CaseRunner(
        bench=KernelContext(fake.torch, "cuda:0", 2**20, None, 1e9),
        stopwatch=CudaStopwatch(fake.torch, "cuda:0"),
        log=MeasurementLog(tmp_path / "m.jsonl", HEADER),
        case_s=0.01,
        telemetry=telemetry,
        reference=reference,
    )
    cases = [make_case("gemm", "bf16", m=m, n=4096, k=4096) for m in range(1, 12)]
    outcome = runner.run(cases, passes=1, deadline=time.monotonic() + 60)
    assert outcome.drift == pytest.approx(0.2, rel=0.01)
    assert len(outcome.references) == 12
    assert (outcome.references[0].clock_hz, outcome.references[0].power_watts) == (1.7e9, 650.0)
    times = [reading.seconds for reading in outcome.references]
    assert reference_deviation(outcome.references) == pytest.approx(max(times) / statistics.median(times) - 1)
    assert reference.id not in runner.log.done


def test_a_kernel_unlike_its_family_is_named_with_its_shape() -> None:
    shapes = [(n, k) for n in (2048, 8192, 57344) for k in (2048, 8192)]
    more = [make_case("gemm", "bf16", m=m, n=n, k=k) for n, k in shapes for m in (1, 64, 1024)]
    cases = [timed(case, TRUE_GEMM) for case in (*gemm_cases(), *more)]
    fits, _ = fit_families(cases, H200, source="test")
    assert outlying_shapes(cases, fits, H200) == ()
    spoiled = [
        measured_case(m.case, 2.2 * m.seconds) if (m.case["n"], m.case["k"]) == (8192, 2048) else m
        for m in cases
    ]
    fits, _ = fit_families(spoiled, H200, source="test")
    (named,) = outlying_shapes(spoiled, fits, H200)
    assert named.startswith("gemm/bf16 with k=2048, n=8192 is 2.")
    assert "times as slow as the other shapes" in named


def test_samples_that_agree_are_enough_and_scattered_ones_are_not() -> None:
    assert not is_precise([1.0] * 20)
    assert is_precise([1.0] * 40)
    assert not is_precise([1.0, 1.2] * 20)
    fake = FakeCuda(launch_s=0.0)
    watch = CudaStopwatch(fake.torch, "cuda:0")
    taken = watch.sample([fake.kernel(1e-5)], budget_s=1.0, at_least=5, at_most=200, capturable=False)
    assert len(taken.seconds) == 32


def test_a_roof_that_is_too_low_shows_as_a_constant_on_its_bound() -> None:
    """Products that take 90 % of what the roof allows: no fraction up to 1 explains them."""
    cases = [timed(case, TRUE_GEMM) for case in gemm_cases()]
    fits, _ = fit_families(cases, H200, source="test")
    assert bound_remarks(fits) == ()
    low = {"dense_flops_per_s": {**H200.dense_flops_per_s, "bf16": 0.5 * H200.dense_flops_per_s["bf16"]}}
    fits, _ = fit_families(cases, H200.model_copy(update=low), source="test")
    assert any("gemm bf16: compute_fraction reached its limit" in remark for remark in bound_remarks(fits))
