"""Kernels and timing on a CPU: results are checked before they are timed, and what fails is kept and said."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.campaigns import load_campaign, ordered_cases  # noqa: E402
from capacity_validate.cases import Case, MeasurementLog, make_case  # noqa: E402
from capacity_validate.kernels import Bench, Prepared, Unsupported, prepare  # noqa: E402
from capacity_validate.kernels.attention import reference_attention  # noqa: E402
from capacity_validate.kernels.paged import paged_decode_attention  # noqa: E402
from capacity_validate.kernels.prepared import live_peak_bytes, relative_error  # noqa: E402
from capacity_validate.runner import CaseRunner, DeviceLost  # noqa: E402
from capacity_validate.timing import CpuStopwatch, RunClock, ThreadClock  # noqa: E402

HEADER = {"environment": {"device": "d", "torch": "t"}, "profile": "cpu"}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(torch, "cpu", 2**20, torch.Generator().manual_seed(0), 1e9)


QUICK = ordered_cases(load_campaign("quick").cpu)
SMALLEST = list({case.family: case for case in reversed(QUICK)}.values())


@pytest.mark.parametrize("case", SMALLEST, ids=lambda case: case.family)
def test_every_cpu_kernel_is_right_or_says_that_it_is_missing(case: Case, bench: Bench) -> None:
    try:
        prepared = prepare(case, bench)
    except Unsupported as reason:
        pytest.skip(str(reason))
    if prepared.check is not None:
        assert prepared.check() <= prepared.tolerance
    assert prepared.calls


@pytest.mark.parametrize("kernel", ["fp8", "fp8_rowwise", "int8", "w4a16", "bf16", "fp16"])
def test_low_precision_products_are_far_from_wrong_inputs(kernel: str, bench: Bench) -> None:
    """The check would notice: an unrelated result is off by more than ten times the tolerance."""
    case = make_case("gemm", kernel, m=32, n=128, k=256)
    try:
        prepared = prepare(case, bench)
    except Unsupported as reason:
        pytest.skip(str(reason))
    out = prepared.calls[0]()
    assert isinstance(out, torch.Tensor)
    assert relative_error(torch, out.flip(0), out) > 10 * max(prepared.tolerance, 0.01)


def test_no_kernel_is_timed_on_zeros(bench: Bench) -> None:
    for values in (
        bench.random(64, 64, dtype=torch.float32),
        *bench.rotating(3, 64, 64, dtype=torch.float32),
    ):
        assert 0.5 < float(values.std()) < 2.0


def test_rotated_sets_are_different_memory(bench: Bench) -> None:
    sets = bench.rotating(4, 512, 512, dtype=torch.float32)
    assert len({t.data_ptr() for t in sets}) == 4


@pytest.mark.parametrize("window", [None, 5, 40])
def test_paged_decode_is_attention_over_the_tables_tokens(window: int | None) -> None:
    """Ragged contexts, scattered blocks, grouped heads; against plain softmax in float64."""
    generator = torch.Generator().manual_seed(3)
    keys, values = (torch.randn(32, 16, 2, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    contexts = [1, 17, 100]
    table = torch.randperm(32, generator=generator)[: 3 * 7].view(3, 7)
    query = torch.randn(3, 8, 32, generator=generator, dtype=torch.float64)
    out = paged_decode_attention(
        query, keys, values, table, torch.tensor(contexts), max_context=100, window_tokens=window
    )
    for row, context in enumerate(contexts):
        first = 0 if window is None else max(0, context - window)
        k, v = (c[table[row]].flatten(0, 1)[first:context].transpose(0, 1)[None] for c in (keys, values))
        expected = reference_attention(torch, query[row][None, :, None], k, v)[0, :, 0]
        assert float((out[row] - expected).abs().max()) < 1e-12


def test_causal_reference_masks_the_future() -> None:
    q, k, v = (torch.randn(1, 2, 6, 8, dtype=torch.float64) for _ in range(3))
    whole = reference_attention(torch, q, k, v, first_position=0)
    first_three = reference_attention(torch, q[:, :, :3], k[:, :, :3], v[:, :, :3], first_position=0)
    assert torch.allclose(whole[:, :, :3], first_three, atol=1e-14)


def test_plain_attention_needs_memory_by_the_square_and_flash_does_not() -> None:
    """Bytes created on the way, at 128 and 512 tokens: 16 times and 4 times (with what both must create)."""

    def created(tokens: int, backend: str) -> float:
        case = make_case(
            "prefill_attention",
            "fp32",
            variant=backend,
            batch=1,
            heads=2,
            kv_heads=2,
            head_dim=32,
            tokens=tokens,
        )
        prepared = prepare(case, Bench(torch, "cpu", 1, torch.Generator().manual_seed(0), 1e9))
        assert prepared.extra_bytes is not None
        return prepared.extra_bytes()

    assert created(512, "math") / created(128, "math") > 10
    assert created(512, "flash") / created(128, "flash") < 5


def test_the_live_peak_is_of_tensors_that_are_there_at_once() -> None:
    """Views count once, what is dropped counts no more, what was there before not at all."""
    a = torch.ones(1024)
    assert live_peak_bytes(torch, lambda: (a + 1) * 2) == 2 * 4096

    def dropping() -> object:
        x = a + 1
        for _ in range(5):
            x = x.view(32, 32) * 2
        return x

    assert live_peak_bytes(torch, dropping) == 2 * 4096
    assert live_peak_bytes(torch, lambda: a.view(2, 512).add_(1)) == 0
    assert live_peak_bytes(torch, lambda: [p + 1 for p in (a + 1).chunk(2)]) == 2 * 4096


# the runner


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


def test_thread_time_does_not_count_sleep_and_wall_time_does() -> None:
    samples, how = CpuStopwatch().sample([lambda: time.sleep(0.02)], budget_s=0, at_least=3, at_most=3)
    assert how == "thread time"
    assert max(samples) < 0.01
    samples, how = CpuStopwatch(threads=2).sample(
        [lambda: time.sleep(0.02)], budget_s=0, at_least=3, at_most=3
    )
    assert how == "wall time"
    assert min(samples) >= 0.02


def test_a_thread_clock_leaps_over_waiting() -> None:
    clock = ThreadClock()
    start = time.perf_counter()
    clock.wait_until(100.0)
    assert time.perf_counter() - start < 1.0
    assert clock.now_s() == pytest.approx(100.0, abs=0.1)
    wall = RunClock()
    wall.wait_until(0.02)
    assert wall.now_s() >= 0.02
