"""Run a validation on a GPU in child processes, so that a crash or a broken CUDA context affects only one stage.

The parent process never uses CUDA, because a broken context keeps its memory until its process ends. If a child loses
its device or dies, the next child continues the same measurement file and skips the stage that failed. If the parent
dies, the child ends at once and releases the GPU.
"""

import contextlib
import importlib
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from capacity.base.errors import CapacityError
from capacity_validate.failures import error_line

MAX_PROCESSES = 8  # per run
MIN_REMAINING_S = 10.0  # minimum remaining budget to start another process
CASE_STAGE = "kernels and steps"  # the stage that marks each case in the measurement file
_START = "from capacity_validate.fresh_process import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutcome:
    """The outcome of one child process: the result of `work`, and if it lost the device, the stage and the reason."""

    answer: Any = None
    stage: str | None = None
    lost: str | None = None
    repeatable: bool = False  # the stage can continue after the failure; other stages are skipped


class MeasuringFailed(CapacityError):
    """Raised if no child process returned a result. The message names the stage that failed and how to continue."""


def run_in_fresh_processes(
    work: str,
    arguments: Mapping[str, Any],
    *,
    deadline: float,
    progress: Callable[[int, int, str], None] | None = None,
) -> Any:
    """Run `work` ("module:function") in child processes until one succeeds, and return its answer.

    `work` takes `arguments`, `budget_s` and `skip`, and returns a ProcessOutcome. `deadline` is a value of
    `time.monotonic`. Raises the exceptions of `work`, and MeasuringFailed.
    """
    skip: dict[str, str] = {}
    answer = None
    for number in range(MAX_PROCESSES):
        left_s = deadline - time.monotonic()
        if number and left_s < MIN_REMAINING_S:
            break
        outcome = _run_process(work, {**arguments, "budget_s": left_s, "skip": skip}, progress)
        answer = outcome.answer if outcome.answer is not None else answer
        if outcome.lost is None:
            return answer
        if not outcome.repeatable:
            skip[outcome.stage or ""] = outcome.lost
    if answer is None:
        raise MeasuringFailed(
            f"nothing could be measured: {outcome.lost}; run the same command again to continue with the results "
            "so far"
        )
    return answer


def _run_process(
    work: str, arguments: Mapping[str, Any], progress: Callable[[int, int, str], None] | None
) -> ProcessOutcome:
    ours, theirs = Pipe()
    paths = os.pathsep.join(part for part in sys.path if part)
    # unbuffered, to keep what it prints before it dies
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", _START, str(theirs.fileno())]
    with ours, subprocess.Popen(command, env=environment, pass_fds=(theirs.fileno(),)) as process:
        theirs.close()
        ours.send((work, dict(arguments)))
        answer, stage, interrupted = _listen(process, ours, progress)
    if isinstance(answer, BaseException):
        raise answer
    if answer is not None:
        return answer
    if interrupted:
        raise KeyboardInterrupt
    code = process.returncode
    how = f"signal {-code}" if code < 0 else f"code {code}"
    lost = f"the process ended with {how} in the stage {stage}"
    return ProcessOutcome(stage=stage, lost=lost, repeatable=stage == CASE_STAGE)


def _listen(
    process: subprocess.Popen[bytes], line: Connection, progress: Callable[[int, int, str], None] | None
) -> tuple[ProcessOutcome | BaseException | None, str, bool]:
    """Forward a child's progress; return its result or exception, its last stage, and whether Ctrl-C was pressed.

    The child receives Ctrl-C too. The first Ctrl-C lets the child end by itself; the second kills it.
    """
    stage, interrupts = CASE_STAGE, 0
    answer = None
    while True:
        try:
            kind, value = line.recv()
            if kind == "stage":
                stage = value
            elif kind == "progress" and progress is not None:
                progress(*value)
            elif kind == "answer":
                answer = value
        except (EOFError, ConnectionResetError):
            return answer, stage, interrupts > 0
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > 1:
                process.kill()
                raise


def main() -> None:
    """Run work in a child process: read it from the pipe given on the command line, and write the result there."""
    os.dup2(2, 1)  # keep output of kernels and libraries out of the command's stdout
    line = Connection(int(sys.argv[1]))
    work, arguments = line.recv()
    threading.Thread(target=_end_with_parent, args=(line,), name="parent", daemon=True).start()
    module, _, name = work.partition(":")

    def sender(kind: str) -> Callable[..., None]:
        return lambda *value: _send(line, kind, value[0] if kind == "stage" else value)

    answer: Any
    try:
        function = getattr(importlib.import_module(module), name)
        answer = function(**arguments, progress=sender("progress"), stage=sender("stage"))
    except (CapacityError, KeyboardInterrupt) as error:
        answer = error
    except Exception as error:
        traceback.print_exc()
        answer = MeasuringFailed(error_line(error))
    _send(line, "answer", answer)
    sys.stderr.flush()
    os._exit(0)  # skip teardown, because a lost context raises errors there


def _end_with_parent(line: Connection) -> None:
    """End this process when the parent's end of the pipe closes, as it does if the parent is killed."""
    line.poll(None)
    os._exit(1)


def _send(line: Connection, kind: str, value: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        line.send((kind, value))
