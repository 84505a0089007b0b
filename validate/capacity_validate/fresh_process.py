"""A validation run on a GPU in processes of its own: what breaks CUDA's context, or kills the process, costs its part.

This process never touches CUDA, for a broken context keeps its memory until its process ends. A process that lost its
device, or died, is followed by another that goes on with the same measurement file and leaves out the stage that broke.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from capacity.base.errors import CapacityError
from capacity_validate.trouble import first_line

MOST_PROCESSES = 8  # for one run
LEAST_LEFT_S = 10.0  # of the budget, below which no other process is worth its start
MARK = "\x1e"  # before a line of progress: kernels and libraries may print too
FIRST = "kernels and steps"  # the stage whose cases are marked in the measurement file, one by one
_START = "from capacity_validate.fresh_process import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one process came to: its answer, and the stage in which it lost the device, and how."""

    answer: Any = None
    stage: str | None = None
    lost: str | None = None
    repeatable: bool = False  # the stage goes on after what broke it; others are left out from then on


class MeasuringFailed(CapacityError):
    """Every process that measured died before it had an answer; the text says where, and what remains."""


def run_in_fresh_processes(
    work: str,
    arguments: Mapping[str, Any],
    *,
    deadline: float,
    progress: Callable[[int, int, str], None] | None = None,
) -> Any:
    """The answer of `work` ("module:function"), which takes `arguments`, `budget_s`, `skip` and gives an `Outcome`.

    Raises what `work` raises, and MeasuringFailed. `deadline` is of `time.monotonic`.
    """
    skip: dict[str, str] = {}
    answer = None
    for number in range(MOST_PROCESSES):
        left_s = deadline - time.monotonic()
        if number and left_s < LEAST_LEFT_S:
            break
        outcome = _one_process(work, {**arguments, "budget_s": left_s, "skip": skip}, progress)
        answer = outcome.answer if outcome.answer is not None else answer
        if outcome.lost is None:
            return answer
        if not outcome.repeatable:
            skip[outcome.stage or ""] = outcome.lost
    if answer is None:
        raise MeasuringFailed(
            f"nothing could be judged: {outcome.lost}; the same command goes on with what was kept"
        )
    return answer


def _one_process(
    work: str, arguments: Mapping[str, Any], progress: Callable[[int, int, str], None] | None
) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "request").write_bytes(pickle.dumps((work, dict(arguments))))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        with subprocess.Popen(
            [sys.executable, "-c", _START, name], stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            stage, interrupted = _listen(process, process.stdout, progress)
        answer = folder / "answer"
        if not answer.is_file() and interrupted:
            raise KeyboardInterrupt
        if not answer.is_file():
            ended = (
                f"signal {-process.returncode}" if process.returncode < 0 else f"code {process.returncode}"
            )
            return Outcome(
                stage=stage, lost=f"the process ended with {ended} in {stage}", repeatable=stage == FIRST
            )
        kind, value = pickle.loads(answer.read_bytes())
    if kind == "error":
        raise value
    outcome: Outcome = value
    return outcome


def _listen(
    process: subprocess.Popen[str], lines: IO[str], progress: Callable[[int, int, str], None] | None
) -> tuple[str, bool]:
    """Hand progress on until the process ends; the stage that it was in, and whether Ctrl-C came.

    Ctrl-C reaches both processes: the first is waited for, as it writes its report; the second ends it.
    """
    stage, interrupts = FIRST, 0
    while True:
        try:
            line = lines.readline()
            if not line:
                return stage, interrupts > 0
            if not line.startswith(MARK):
                sys.stderr.write(line)
                continue
            done, total, label, now = json.loads(line[1:])
            stage = now or stage
            if progress is not None and label is not None:
                progress(done, total, label)
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > 1:
                process.kill()
                raise


# the other side


def main() -> None:
    """Do what the folder named on the command line asks for, and leave the answer there."""
    folder = Path(sys.argv[1])
    work, arguments = pickle.loads((folder / "request").read_bytes())
    module, _, name = work.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        answer = ("outcome", function(**arguments, progress=_tell, stage=_enter))
    except (Exception, KeyboardInterrupt) as error:
        answer = ("error", _picklable(error))
    partial = folder / "partial"
    partial.write_bytes(pickle.dumps(answer))
    partial.rename(folder / "answer")
    sys.stdout.flush()
    os._exit(0)  # a lost context would only complain while it is taken down


def _picklable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return MeasuringFailed(first_line(error))
    return error


def _tell(done: int, total: int, label: str) -> None:
    _write([done, total, label, None])


def _enter(stage: str) -> None:
    _write([0, 0, None, stage])


def _write(message: list[Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(MARK + json.dumps(message), flush=True)
