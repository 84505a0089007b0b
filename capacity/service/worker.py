"""Worker process: executes the function calls that it receives, one at a time, until its pipe closes."""

import importlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from capacity.base.errors import CapacityError, OverLimit
from capacity.base.processes import end_with_parent
from capacity.hardware import PROFILES_VARIABLE, user_profiles_directory
from capacity.service.quotas import Quota, limit_memory

ALLOWED = re.compile(r"capacity(_app|_validate)?[.:]")
REPORT_INTERVAL_S = 0.1
NICENESS = 5  # drawing pages has priority
PRELOADED_MODULES = ("capacity.answers.explain", "capacity.answers.simulate", "capacity.answers.grid")


def main(descriptor: int, most_bytes: int) -> None:
    """Execute calls from the pipe with this file descriptor, with at most `most_bytes` of memory."""
    os.dup2(2, 1)  # print to stderr
    limit_memory(most_bytes)
    end_with_parent(lambda: os.killpg(os.getpgrp(), signal.SIGKILL))  # including its children
    for module in PRELOADED_MODULES:
        importlib.import_module(module)
    os.nice(NICENESS)
    with Connection(descriptor) as pipe:
        while True:
            try:
                function, arguments, reports, profiles = pipe.recv()
                with _profiles_searched_first(profiles):
                    answer = _answer(pipe, function, arguments, reports, most_bytes)
                pipe.send((*answer, sum(os.times()[:4])))  # with the CPU time so far, ended children included
            except (EOFError, ConnectionError):
                return


def _answer(
    pipe: Connection, function: str, arguments: Mapping[str, Any], reports: bool, most_bytes: int
) -> tuple[str, dict[str, Any]]:
    """Call the function; return the job's status and the keywords for `Job.end` (`value`, `error` or `crash`)."""
    if reports:
        arguments = {**arguments, "progress": _Reports(pipe)}
    try:
        if not ALLOWED.match(function):
            raise ValueError(f"{function} is not a function of this project")
        return "done", {"value": resolve_name(function)(**arguments)}
    except CapacityError as error:
        return "failed", {"error": error}
    except MemoryError:
        return "failed", {"error": OverLimit(Quota(job_bytes=most_bytes).memory_message())}
    except Exception:
        return "failed", {"crash": traceback.format_exc()}


@contextmanager
def _profiles_searched_first(folders: Sequence[Path]) -> Iterator[None]:
    """Until the block ends, search these folders for GPU profiles first, here and in processes that the call starts."""
    before = os.environ.get(PROFILES_VARIABLE)
    if folders:
        own = user_profiles_directory()
        others = [before] if before else [str(own)] if own.is_dir() else []
        os.environ[PROFILES_VARIABLE] = os.pathsep.join([*map(str, folders), *others])
    try:
        yield
    finally:
        os.environ.pop(PROFILES_VARIABLE, None)
        if before is not None:
            os.environ[PROFILES_VARIABLE] = before


class _Reports:
    """Callable that sends progress reports through the pipe, at most one per `REPORT_INTERVAL_S` seconds."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._last_s = 0.0

    def __call__(self, *report: Any) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= REPORT_INTERVAL_S:
            self._last_s = now_s
            self._pipe.send(("progress", report, 0.0))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
