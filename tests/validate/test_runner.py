"""Cases one after the other: results are checked before they are timed, and what fails is kept and said."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import Case, MeasurementLog, make_case  # noqa: E402
from capacity_validate.kernels import Bench, Prepared  # noqa: E402
from capacity_validate.runner import CaseRunner, DeviceLost  # noqa: E402
from capacity_validate.timing import CpuStopwatch  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


HEADER = {"environment": {"device": "d", "torch": "t"}, "profile": "cpu"}


def runner(path: Path, prepared: Callable[[Case], Prepared]) -> CaseRunner:
    return CaseRunner(
        bench=Bench(torch, "cpu", 2**20, torch.Generator().manual_seed(0), 1e9),
        stopwatch=CpuStopwatch(),
        log=MeasurementLog(path, HEADER),
        case_s=0.001,
        own_calls=prepared,
    )


def cases(count: int) -> list[Case]:
    return [make_case("gemm", "fp32", m=m) for m in range(1, count + 1)]


def simple(call: Callable[[], object], *, error: float = 0.0) -> Prepared:
    return Prepared(calls=[call], check=lambda: error, tolerance=1e-3, flops=1.0, bytes=1.0)


def test_a_wrong_kernel_is_not_timed(tmp_path: Path) -> None:
    run = runner(
        tmp_path / "m.jsonl", lambda case: simple(lambda: None, error=0.1 if case["m"] == 2 else 0.0)
    )
    outcome = run.run(cases(3), passes=2, deadline=time.monotonic() + 60)
    assert (outcome.timed, outcome.skipped) == (2, 1)
    found = run.log.done[cases(2)[1].id]
    assert (found.status, found.timing) == ("wrong", None)
    assert "float64 reference" in found.note


def test_out_of_memory_skips_the_case_and_says_so(tmp_path: Path) -> None:
    def allocate(case: Case) -> Prepared:
        if case["m"] == 1:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore lines")
        if case["m"] == 2:
            raise MemoryError
        return simple(lambda: None)

    run = runner(tmp_path / "m.jsonl", allocate)
    outcome = run.run(cases(3), passes=1, deadline=time.monotonic() + 60)
    assert (outcome.timed, outcome.skipped) == (1, 2)
    assert [m.status for m in run.log.done.values()] == ["out of memory", "out of memory", "ok"]


def test_an_allocation_that_really_fails_skips_its_case(tmp_path: Path) -> None:
    """Eight PiB: the allocator of this machine refuses, and the next case runs."""
    sizes = [make_case("bandwidth", "fp32", variant="read", bytes=n) for n in (2**53, 4096)]
    run = CaseRunner(
        bench=Bench(torch, "cpu", 2**20, torch.Generator().manual_seed(0), 1e9),
        stopwatch=CpuStopwatch(),
        log=MeasurementLog(tmp_path / "m.jsonl", HEADER),
        case_s=0.001,
    )
    outcome = run.run(sizes, passes=1, deadline=time.monotonic() + 60)
    assert (outcome.timed, outcome.skipped) == (1, 1)
    failed = run.log.done[sizes[0].id]
    assert failed.status == "out of memory"
    assert "memory" in failed.note


def test_a_case_that_crashes_is_said_and_the_others_run(tmp_path: Path) -> None:
    def crash(case: Case) -> Prepared:
        if case["m"] == 1:
            raise TypeError("unexpected keyword 'use_fast_accum'")
        return simple(lambda: None)

    run = runner(tmp_path / "m.jsonl", crash)
    outcome = run.run(cases(2), passes=1, deadline=time.monotonic() + 60)
    assert (outcome.timed, outcome.skipped) == (1, 1)
    (failed, _) = run.log.done.values()
    assert (failed.status, failed.note) == ("failed", "TypeError: unexpected keyword 'use_fast_accum'")


def test_a_broken_context_ends_the_run_and_the_next_goes_on_after_the_case(tmp_path: Path) -> None:
    def broken(case: Case) -> Prepared:
        if case["m"] == 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")
        return simple(lambda: None)

    run = runner(tmp_path / "m.jsonl", broken)
    with pytest.raises(DeviceLost, match=r"gemm/fp32/m=2.*run the same command again"):
        run.run(cases(4), passes=1, deadline=time.monotonic() + 60)
    outcome = runner(tmp_path / "m.jsonl", broken).run(cases(4), passes=1, deadline=time.monotonic() + 60)
    assert (outcome.timed, outcome.skipped, outcome.left_out) == (3, 1, ())


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    def interrupted(case: Case) -> Prepared:
        if case["m"] == 3:
            raise KeyboardInterrupt
        return simple(lambda: None)

    run = runner(tmp_path / "m.jsonl", interrupted)
    outcome = run.run(cases(5), passes=1, deadline=time.monotonic() + 60)
    assert outcome.interrupted
    assert len(MeasurementLog(tmp_path / "m.jsonl", HEADER).done) == 2


def test_a_spent_budget_leaves_cases_out_and_names_them(tmp_path: Path) -> None:
    run = runner(tmp_path / "m.jsonl", lambda _: simple(lambda: time.sleep(0.01)))
    outcome = run.run(cases(50), passes=1, deadline=time.monotonic() + 0.2)
    assert outcome.timed + len(outcome.left_out) == 50
    assert outcome.left_out


def test_a_second_run_takes_up_where_the_first_ended(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(case: Case) -> Prepared:
        calls.append(case["m"])
        return simple(lambda: None)

    runner(tmp_path / "m.jsonl", counted).run(cases(2), passes=1, deadline=time.monotonic() + 60)
    outcome = runner(tmp_path / "m.jsonl", counted).run(cases(4), passes=1, deadline=time.monotonic() + 60)
    assert calls == [1, 2, 3, 4]
    assert outcome.timed == 4


def test_passes_pool_their_samples(tmp_path: Path) -> None:
    run = runner(tmp_path / "m.jsonl", lambda _: simple(lambda: None))
    run.run(cases(1), passes=1, deadline=time.monotonic() + 60)
    once = next(iter(run.log.done.values())).timing
    pooled = runner(tmp_path / "n.jsonl", lambda _: simple(lambda: None))
    pooled.run(cases(1), passes=3, deadline=time.monotonic() + 60)
    thrice = next(iter(pooled.log.done.values())).timing
    assert once is not None
    assert thrice is not None
    assert thrice.repetitions >= 3 * 5
