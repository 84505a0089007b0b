"""Runs in processes of their own: one that loses its device, or dies, is followed by one that goes on."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from capacity_validate.fresh_process import (
    CASE_STAGE,
    MeasuringFailed,
    ProcessOutcome,
    run_in_fresh_processes,
)

from capacity.base.errors import InvalidInput, UnknownName

THIS = "test_fresh_process"


def count(folder: str) -> int:
    """How many processes have asked before this one."""
    path = Path(folder) / "count"
    number = int(path.read_text()) if path.exists() else 0
    path.write_text(str(number + 1))
    return number


def eventful(
    *, folder: str, budget_s: float, skip: Mapping[str, str], progress: Any, stage: Any
) -> ProcessOutcome:
    """Dies in the first stage, then loses the device there, then in serving; the fourth comes through."""
    number = count(folder)
    stage(CASE_STAGE)
    progress(number, 4, "case")
    print("a library that prints")
    if number == 0:
        os.abort()
    if number == 1:
        return ProcessOutcome(
            answer="partial", stage=CASE_STAGE, lost="an illegal instruction", repeatable=True
        )
    stage("serving")
    if "serving" not in skip:
        return ProcessOutcome(answer="most", stage="serving", lost="the launch timed out")
    return ProcessOutcome(answer=[dict(skip), 0 < budget_s < 60])


def wrong(*, kind: str, **_: Any) -> ProcessOutcome:
    if kind == "input":
        raise InvalidInput("--device is 'x'")
    if kind == "name":
        raise UnknownName("GPU", "h20", ["h200"])
    raise TypeError("a defect of ours")


def dying(*, stage: Callable[[str], None], skip: Mapping[str, str], **_: Any) -> ProcessOutcome:
    stage("memory" if "serving" in skip else "serving")
    os._exit(9)


def silent(*, skip: Mapping[str, str], **_: Any) -> ProcessOutcome:
    return ProcessOutcome(answer="partial", stage=CASE_STAGE, lost=f"gone {len(skip)}", repeatable=True)


def beating(*, folder: str, **_: Any) -> ProcessOutcome:
    """Writes its process id, then works for a minute without a word to its parent."""
    (Path(folder) / "pid").write_text(str(os.getpid()))
    time.sleep(60)
    return ProcessOutcome(answer="never")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])


def test_what_breaks_is_left_behind_and_the_rest_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, int, str]] = []
    answer = run_in_fresh_processes(
        f"{THIS}:eventful",
        {"folder": str(tmp_path)},
        deadline=time.monotonic() + 60,
        progress=lambda *report: seen.append(report),
    )
    assert answer == [{"serving": "the launch timed out"}, True]
    assert seen == [(number, 4, "case") for number in range(4)]
    assert "a library that prints" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "error"), [("input", InvalidInput), ("name", UnknownName), ("defect", MeasuringFailed)]
)
def test_errors_cross_processes(kind: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run_in_fresh_processes(f"{THIS}:wrong", {"kind": kind}, deadline=time.monotonic() + 60)


def test_processes_that_all_die_are_one_sentence() -> None:
    with pytest.raises(
        MeasuringFailed,
        match=r"^nothing could be measured: the process ended with code 9 in the stage memory",
    ):
        run_in_fresh_processes(f"{THIS}:dying", {}, deadline=time.monotonic() + 12)


def test_a_spent_budget_starts_no_other_process() -> None:
    answer = run_in_fresh_processes(f"{THIS}:silent", {}, deadline=time.monotonic() + 5)
    assert answer == "partial"


def test_the_measuring_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Its parent is killed, as by the kernel for want of memory: nobody may stay on the card."""
    code = (
        "import sys, time\n"
        "from capacity_validate.fresh_process import run_in_fresh_processes\n"
        f"run_in_fresh_processes('{THIS}:beating', {{'folder': sys.argv[1]}}, deadline=time.monotonic() + 60)\n"
    )
    pid = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment) as parent:
        wait_until(lambda: pid.exists() and bool(pid.read_text()))
        parent.kill()
    wait_until(lambda: has_ended(int(pid.read_text())))


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"
