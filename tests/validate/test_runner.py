"""Cases one after the other: results are checked before they are timed, and what fails is kept and said."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import PROCESS_DIED, Case, MeasurementLog, make_case  # noqa: E402
from capacity_validate.failures import DeviceLost  # noqa: E402
from capacity_validate.kernels import KernelContext, PreparedCase  # noqa: E402
from capacity_validate.plausibility import timing_remarks  # noqa: E402
from capacity_validate.runner import CaseRunner, RunOutcome  # noqa: E402
from capacity_validate.telemetry import Reading, Telemetry  # noqa: E402
from capacity_validate.timing import CpuStopwatch, CudaStopwatch, Samples  # noqa: E402
from fake_cuda import GIB, FakeCuda, FakeDevice  # noqa: E402
from kernel_checks import cpu_bench  # noqa: E402

from capacity.base.errors import InvalidInput  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


HEADER = {"environment": {"device": "d", "torch": "t"}, "profile": "cpu"}


def runner(
    path: Path, prepared: Callable[[Case], PreparedCase | None], fake: FakeCuda | None = None
) -> CaseRunner:
    """Of this CPU, or of a fake card."""
    bench, stopwatch = cpu_bench(), CpuStopwatch()
    if fake is not None:
        bench = KernelContext(fake.torch, "cuda:0", 2**20, None, 1e9)
        stopwatch = CudaStopwatch(fake.torch, "cuda:0")
    log = MeasurementLog(path, HEADER)
    return CaseRunner(bench=bench, stopwatch=stopwatch, log=log, case_s=0.001, own_calls=prepared)


def cases(count: int) -> list[Case]:
    return [make_case("gemm", "fp32", m=m) for m in range(1, count + 1)]


def finish(run: CaseRunner, count: int = 1, *, passes: int = 1) -> RunOutcome:
    """Run the first `count` cases to their end."""
    return run.run(cases(count), passes=passes, deadline=time.monotonic() + 60)


def simple(call: Callable[[], object], *, error: float = 0.0) -> PreparedCase:
    return PreparedCase(calls=[call], check=lambda: error, tolerance=1e-3, flops=1.0, bytes=1.0)


def test_a_wrong_kernel_is_not_timed(tmp_path: Path) -> None:
    run = runner(
        tmp_path / "m.jsonl", lambda case: simple(lambda: None, error=0.1 if case["m"] == 2 else 0.0)
    )
    outcome = finish(run, 3, passes=2)
    assert (outcome.timed, outcome.skipped) == (2, 1)
    found = run.log.done[cases(2)[1].id]
    assert (found.status, found.timing) == ("wrong", None)
    assert "against float64" in found.note


def test_out_of_memory_skips_the_case_and_says_so(tmp_path: Path) -> None:
    def allocate(case: Case) -> PreparedCase:
        if case["m"] == 1:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore lines")
        if case["m"] == 2:
            raise MemoryError
        return simple(lambda: None)

    run = runner(tmp_path / "m.jsonl", allocate)
    outcome = finish(run, 3)
    assert (outcome.timed, outcome.skipped) == (1, 2)
    assert [m.status for m in run.log.done.values()] == ["out of memory", "out of memory", "ok"]


def test_an_allocation_that_really_fails_skips_its_case(tmp_path: Path) -> None:
    """Eight PiB: the allocator of this machine refuses, and the next case runs."""
    sizes = [make_case("bandwidth", "fp32", variant="read", bytes=n) for n in (2**53, 4096)]
    run = runner(tmp_path / "m.jsonl", lambda _: None)
    outcome = run.run(sizes, passes=1, deadline=time.monotonic() + 60)
    assert (outcome.timed, outcome.skipped) == (1, 1)
    failed = run.log.done[sizes[0].id]
    assert failed.status == "out of memory"
    assert "memory" in failed.note


def test_a_case_that_crashes_is_said_and_the_others_run(tmp_path: Path) -> None:
    def crash(case: Case) -> PreparedCase:
        if case["m"] == 1:
            raise TypeError("unexpected keyword 'use_fast_accum'")
        return simple(lambda: None)

    run = runner(tmp_path / "m.jsonl", crash)
    outcome = finish(run, 2)
    assert (outcome.timed, outcome.skipped) == (1, 1)
    (failed, _) = run.log.done.values()
    assert (failed.status, failed.note) == ("failed", "TypeError: unexpected keyword 'use_fast_accum'")


@pytest.mark.parametrize("text", ["an illegal memory access was encountered", "uncorrectable ECC error"])
def test_a_broken_context_ends_the_process_and_a_fresh_one_goes_on_after_the_case(
    tmp_path: Path, text: str
) -> None:
    def on(fake: FakeCuda) -> Callable[[Case], PreparedCase]:
        return lambda case: simple(
            fake.kernel(breaks=f"CUDA error: {text}") if case["m"] == 2 else fake.kernel()
        )

    fake = FakeCuda()
    with pytest.raises(DeviceLost, match=r"gemm/fp32/m=2 made the device's context unusable"):
        finish(runner(tmp_path / "m.jsonl", on(fake), fake), 4)
    fresh = FakeCuda()
    run = runner(tmp_path / "m.jsonl", on(fresh), fresh)
    outcome = finish(run, 4)
    assert (outcome.timed, outcome.skipped, outcome.left_out) == (3, 1, ())
    assert run.log.done[cases(2)[1].id].status == "failed"


def test_a_kernel_that_is_refused_breaks_nothing(tmp_path: Path) -> None:
    fake = FakeCuda()
    run = runner(
        tmp_path / "m.jsonl",
        lambda case: simple(
            fake.kernel(fails="no valid config for sm_89") if case["m"] == 1 else fake.kernel()
        ),
        fake,
    )
    outcome = finish(run, 2)
    assert (outcome.timed, outcome.skipped) == (1, 1)
    assert run.log.done[cases(1)[0].id].status == "unsupported"


def test_a_refused_capture_costs_no_later_case_its_graph(tmp_path: Path) -> None:
    fake = FakeCuda()
    run = runner(tmp_path / "m.jsonl", lambda case: simple(fake.kernel(waits=case["m"] == 1)), fake)
    finish(run, 3)
    found = [m.timing.how for m in run.log.done.values() if m.timing is not None]
    assert found == ["events", "graph", "graph"]
    assert [m.has_launch_gaps for m in run.log.done.values()] == [True, False, False]


def test_a_spoiled_allocator_asks_for_a_fresh_process_and_keeps_the_case(tmp_path: Path) -> None:
    fake = FakeCuda(private_ends=False)
    run = runner(tmp_path / "m.jsonl", lambda _: simple(fake.kernel(waits=True)), fake)
    with pytest.raises(DeviceLost, match="allocator"):
        finish(run, 3)
    assert [m.status for m in run.log.done.values()] == ["ok"]


def test_no_memory_on_the_card_leaves_the_case_out_and_the_next_runs(tmp_path: Path) -> None:
    fake = FakeCuda(devices=(FakeDevice(total_bytes=8 * GIB),))
    run = runner(
        tmp_path / "m.jsonl", lambda case: simple(fake.kernel(bytes=16 * GIB if case["m"] == 1 else 0)), fake
    )
    outcome = finish(run, 2)
    assert (outcome.timed, outcome.skipped) == (1, 1)
    assert run.log.done[cases(1)[0].id].status == "out of memory"


def test_a_torch_without_this_gpu_ends_the_run_at_once(tmp_path: Path) -> None:
    fake = FakeCuda()
    text = "CUDA error: no kernel image is available for execution on the device"
    run = runner(tmp_path / "m.jsonl", lambda _: simple(fake.kernel(fails=text)), fake)
    with pytest.raises(InvalidInput, match="no code for this GPU"):
        finish(run, 3)


@pytest.mark.parametrize("text", ["CUDA out of memory. Tried", "no valid config", "unexpected keyword"])
def test_a_later_pass_that_fails_keeps_the_earlier_ones_time(tmp_path: Path, text: str) -> None:
    passes: list[int] = []

    def second_fails(case: Case) -> PreparedCase:
        passes.append(case["m"])
        if len(passes) > 1:
            raise (TypeError if "keyword" in text else RuntimeError)(text)
        return simple(lambda: None)

    run = runner(tmp_path / "m.jsonl", second_fails)
    outcome = finish(run, passes=2)
    assert (outcome.timed, outcome.skipped) == (1, 0)
    for done in (run.log.done, MeasurementLog(tmp_path / "m.jsonl", HEADER).done):
        (found,) = done.values()
        assert found.status == "ok"
        assert found.timing is not None
        assert text[:10] in found.note


def test_what_failed_or_had_no_memory_gets_one_more_chance(tmp_path: Path) -> None:
    tried: list[int] = []

    def failing(case: Case) -> PreparedCase:
        tried.append(case["m"])
        if case["m"] == 3:
            return simple(lambda: None)
        raise MemoryError if case["m"] == 1 else RuntimeError("not built")

    for _ in range(3):
        finish(runner(tmp_path / "m.jsonl", failing), 3)
    assert tried == [1, 2, 3, 1]  # no memory: twice; unsupported and timed: once


def test_a_case_that_kills_the_process_is_known_to_the_next_and_tried_once_more(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from capacity_validate.cases import MeasurementLog, make_case\n"
        "from capacity_validate.kernels import KernelContext, PreparedCase\n"
        "from capacity_validate.runner import CaseRunner\n"
        "from capacity_validate.timing import CpuStopwatch\n"
        "def prepared(case):\n"
        "    call = os.abort if case['m'] == 2 else (lambda: None)\n"
        "    return PreparedCase(calls=[call], check=None, tolerance=0.0, flops=1.0, bytes=1.0)\n"
        f"log = MeasurementLog(Path(sys.argv[1]), {HEADER!r})\n"
        "run = CaseRunner(bench=KernelContext(None, 'cpu', 2**20, None, 1e9), stopwatch=CpuStopwatch(), log=log,\n"
        "                 case_s=0.001, own_calls=prepared)\n"
        "cases = [make_case('gemm', 'fp32', m=m) for m in range(1, 4)]\n"
        "print(run.run(cases, passes=1, deadline=time.monotonic() + 60).timed)\n"
    )
    ends = []
    for _ in range(3):
        command = [sys.executable, "-W", "ignore", "-c", code, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        ends.append((done.returncode != 0, done.stdout.strip()))
    assert ends == [(True, ""), (True, ""), (False, "2")]
    assert MeasurementLog(path, HEADER).done[cases(2)[1].id].note == PROCESS_DIED


def test_samples_of_different_kinds_are_not_mixed(tmp_path: Path) -> None:
    """Near a millisecond a call is a graph's mean in one pass and an event's in the next: the first kind stays."""
    fake = FakeCuda()
    lengths = iter([0.5e-3, 2e-3])
    run = runner(tmp_path / "m.jsonl", lambda _: simple(fake.kernel(next(lengths))), fake)
    finish(run, passes=2)
    (found,) = run.log.done.values()
    assert found.timing is not None
    assert found.timing.how == "graph"
    assert found.seconds == pytest.approx(0.5e-3, rel=0.02)
    assert found.timing.spread < 0.1


class Heated:
    """A stopwatch of 100 calls in a second, 1 ms each, and 2 ms while `hot`."""

    spoiled = False

    def __init__(self, *, hot: range) -> None:
        self.seconds = [2e-3 if i in hot else 1e-3 for i in range(100)]

    def sample(self, _: Any, **__: Any) -> Samples:
        return Samples(self.seconds, "events", began_s=10.0, ended_s=10.0 + sum(self.seconds))


def hot_telemetry(watch: Heated, hot: range) -> Telemetry:
    """Readings every 10 ms: heat holds the clocks down while the hot samples are taken."""
    instants = watch.sample(None).instants
    first, last = (instants[hot[0]] - 1e-3, instants[hot[-1]] + 1e-3) if hot else (0.0, 0.0)
    telemetry = Telemetry(lambda: None)
    for step in range(30):
        at_s = 10.0 + 0.01 * step
        heat = ("heat (hardware)",) if first <= at_s <= last else ()
        telemetry.readings.append(Reading(at_s=at_s, sm_clock_hz=1e9 if heat else 2e9, reasons=heat))
    return telemetry


def heated_run(folder: Path, hot: range) -> CaseRunner:
    run = runner(folder / "m.jsonl", lambda _: simple(lambda: None))
    run.stopwatch = Heated(hot=hot)
    run.telemetry = hot_telemetry(run.stopwatch, hot)
    finish(run)
    return run


def test_samples_taken_while_heat_held_the_clocks_down_are_left_out_and_counted(tmp_path: Path) -> None:
    heated_run(tmp_path, range(30, 60))
    (found,) = MeasurementLog(tmp_path / "m.jsonl", HEADER).done.values()
    assert found.timing is not None
    assert found.seconds == pytest.approx(1e-3)
    assert found.timing.high_s < 1.5e-3
    assert 25 <= found.timing.held_down <= 35
    assert found.conditions is not None
    assert found.conditions["clock_low_hz"] == 1e9
    assert found.conditions["reasons"] == ["heat (hardware)"]
    (remark,) = timing_remarks([found])
    assert remark == "clocks were throttled in some samples of 1 cases; these samples are excluded"


def test_a_case_that_was_hot_throughout_keeps_its_times_and_is_named(tmp_path: Path) -> None:
    run = heated_run(tmp_path, range(100))
    (found,) = run.log.done.values()
    assert found.seconds == pytest.approx(2e-3)
    assert timing_remarks([found])[-1] == (
        "clocks were throttled in all samples of gemm/fp32/m=1, so no fit uses their times"
    )


def test_a_sustained_case_tells_its_burst_from_what_it_settles_to(tmp_path: Path) -> None:
    """1 ms calls for the first 60 ms of the run, 1.2 ms ones after: told apart, and measured in the first pass only."""

    class Watch:
        spoiled = False

        def sample(self, _: Any, *, budget_s: float, at_most: int, sustained: bool, **__: Any) -> Samples:
            assert (budget_s, at_most, sustained) == (5.0, 10**6, True)
            seconds = [1e-3] * 60 + [1.2e-3] * 4116
            return Samples(seconds, "events", began_s=10.0, ended_s=10.0 + sum(seconds))

    run = runner(tmp_path / "m.jsonl", lambda _: replace(simple(lambda: None), sustained_s=5.0, flops=1e12))
    run.stopwatch = Watch()
    finish(run, passes=2)
    (found,) = run.log.done.values()
    assert found.burst_s == pytest.approx(1e-3)
    assert found.seconds == pytest.approx(1.2e-3)
    (remark,) = timing_remarks([found])
    assert "1000 TFLOP/s in a burst, 833 sustained (+20.0% time)" in remark


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    def interrupted(case: Case) -> PreparedCase:
        if case["m"] == 3:
            raise KeyboardInterrupt
        return simple(lambda: None)

    run = runner(tmp_path / "m.jsonl", interrupted)
    outcome = finish(run, 5)
    assert outcome.interrupted
    assert len(MeasurementLog(tmp_path / "m.jsonl", HEADER).done) == 2


def test_a_spent_budget_leaves_cases_out_and_names_them(tmp_path: Path) -> None:
    run = runner(tmp_path / "m.jsonl", lambda _: simple(lambda: time.sleep(0.01)))
    outcome = run.run(cases(50), passes=1, deadline=time.monotonic() + 0.2)
    assert outcome.timed + len(outcome.left_out) == 50
    assert outcome.left_out


def test_a_second_run_takes_up_where_the_first_ended(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(case: Case) -> PreparedCase:
        calls.append(case["m"])
        return simple(lambda: None)

    finish(runner(tmp_path / "m.jsonl", counted), 2)
    outcome = finish(runner(tmp_path / "m.jsonl", counted), 4)
    assert calls == [1, 2, 3, 4]
    assert outcome.timed == 4


def test_passes_pool_their_samples(tmp_path: Path) -> None:
    run = runner(tmp_path / "m.jsonl", lambda _: simple(lambda: None))
    finish(run)
    once = next(iter(run.log.done.values())).timing
    pooled = runner(tmp_path / "n.jsonl", lambda _: simple(lambda: None))
    finish(pooled, passes=3)
    thrice = next(iter(pooled.log.done.values())).timing
    assert once is not None
    assert thrice is not None
    assert thrice.repetitions >= 3 * 5


def test_a_case_with_one_of_two_passes_done_gets_its_second(tmp_path: Path) -> None:
    """A process that ended between passes: the next takes what there is and adds what lacks."""
    taken: list[int] = []

    def counted(case: Case) -> PreparedCase:
        taken.append(case["m"])
        return simple(lambda: None)

    path = tmp_path / "m.jsonl"
    finish(runner(path, counted), 2)
    before = MeasurementLog(path, HEADER).done[cases(1)[0].id]
    assert before.timing is not None
    run = runner(path, counted)
    finish(run, 3, passes=2)
    assert taken == [1, 2, 3, 1, 2, 3]
    after = run.log.done[cases(1)[0].id]
    assert after.timing is not None
    assert (before.passes, after.passes) == (1, 2)
    assert after.timing.repetitions > before.timing.repetitions
    finish(runner(path, counted), 3, passes=2)
    assert len(taken) == 6


def test_each_pass_runs_in_a_random_order_of_the_seed(tmp_path: Path) -> None:
    taken: list[int] = []

    def counted(case: Case) -> PreparedCase:
        taken.append(case["m"])
        return simple(lambda: None)

    orders = []
    for name in ("a", "b"):
        run = runner(tmp_path / f"{name}.jsonl", counted)
        run.seed = 7
        finish(run, 64, passes=2)
        orders.append(tuple(taken))
        taken.clear()
    assert orders[0] == orders[1]
    first, second = orders[0][:64], orders[0][64:]
    assert sorted(first) == sorted(second) == list(range(1, 65))
    assert first != second
    assert sorted(first[:32]) == list(range(1, 33))  # a run that ends early keeps its balanced sample
    assert first[:32] != tuple(range(1, 33))
