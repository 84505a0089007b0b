"""Speed and memory: every row of the benchmark against the handbook's table, and a long day of clients.

Speeds are CPU time against SimPy's own timeouts in the same process. A row may be several times slower than where the
table was measured; a cliff (tenfold) is noticed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from core_runs import needs_core
from long_forms import mostly_slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SLOWER = 7  # times, than the table says: short runs take up to twice as long a request, machines differ


def imported() -> tuple[Any, Any]:
    """benchmarks/simulation_speed.py and simulation_cases.py."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import simulation_cases
        import simulation_speed

        return simulation_speed, simulation_cases
    finally:
        sys.path.pop(0)


speed, rows = imported()
CASES = rows.cases()
PAGE = speed.PAGE.read_text(encoding="utf-8")


@needs_core
@pytest.mark.parametrize(
    "case", mostly_slow(CASES, CASES[::8]), ids=lambda case: "-".join(case.key).replace(" ", "_")
)
def test_no_row_has_fallen_off_a_cliff(case: Any) -> None:
    block = speed.block_of(PAGE)
    least = speed.rows_of(block)[case.key] / speed.calibration_of(block) / SLOWER
    found = speed.measured(case, quick=True)
    assert found.requests_per_s / speed.timeouts_per_s() > least


def test_the_handbook_has_the_rows_of_the_program() -> None:
    assert list(speed.rows_of(speed.block_of(PAGE))) == [case.key for case in CASES]
    for size in speed.SIZES:
        assert f"\n| {size:,} | " in speed.block_of(PAGE)
    for peer in speed.PEERS:
        assert peer in speed.block_of(PAGE)


def test_a_block_is_written_in_the_place_of_the_last() -> None:
    case = CASES[0]
    measured = speed.Speed(
        case=case,
        count=1000,
        steps_per_request=3.21,
        mean_batch=12.0,
        requests_per_s=123_456.0,
        verdict_ratio=None,
    )
    block = "\n".join([f"| **{case.section}** |" + " |" * 6, speed.row(measured), speed.machine([1.5e6])])
    page = speed.written(PAGE, block)
    assert speed.rows_of(speed.block_of(page)) == {case.key: 123_000.0}
    assert speed.calibration_of(speed.block_of(page)) == 1.5e6
    assert page.partition(speed.START)[0] == PAGE.partition(speed.START)[0]
    assert page.partition(speed.END)[2] == PAGE.partition(speed.END)[2]
    assert speed.written(page, speed.block_of(PAGE).strip("\n")) == PAGE


@needs_core
@pytest.mark.slow
def test_the_program_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its short form over one row, a run in a process of its own, and the whole command."""
    monkeypatch.setattr(speed, "QUICK_SIZES", (100, 200))
    monkeypatch.setattr(speed, "QUICK_TRACE_REQUESTS", 50)
    chosen = [case for case in CASES if case.key == ("Other engines", "SGLang")]
    block = speed.report(chosen, quick=True, whole=True)
    shown = capsys.readouterr().out
    assert block in shown
    assert "| 200 | " in shown
    assert "`capacity simulate --trace`, 50 requests" in shown


@pytest.mark.parametrize("arguments", [("--write-docs", "--quick"), ("--write-docs", "--only", "V1")])
def test_a_part_is_not_written_into_the_handbook(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation_speed.py", *arguments])
    with pytest.raises(SystemExit):
        speed.main()
    assert "writes the whole" in capsys.readouterr().err


def day(requests: int) -> dict[str, float]:
    command = [sys.executable, str(BENCHMARKS / "simulation_speed.py"), "--day-alone", str(requests)]
    found: dict[str, float] = json.loads(
        subprocess.run(command, capture_output=True, check=True, text=True).stdout
    )
    return found


def check_memory(small: int, large: int) -> None:
    """A fuller day takes memory in proportion to its requests, and a kilobyte a request at most."""
    runs = day(small), day(large)
    grown_mb = [run["peak_mb"] - run["before_mb"] for run in runs]
    assert grown_mb[1] < 1.1 * large / small * grown_mb[0]
    assert (grown_mb[1] - grown_mb[0]) * 2**20 / (large - small) < 1024
    assert [run["completed"] for run in runs] == [small, large]


@pytest.mark.ci
def test_memory_grows_with_the_records_alone() -> None:
    check_memory(8_000, 24_000)


@pytest.mark.slow
def test_memory_grows_with_the_records_alone_in_the_long() -> None:
    check_memory(200_000, 400_000)
