"""Process that runs vLLM's scheduler, in the Python environment that contains vLLM (`worker.py`).

A separate process keeps vLLM's imports (torch, CUDA) out of this one, and may use another Python version. It is started
once for each location of a vLLM and serves all engines. Messages in both directions are lines of JSON.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from capacity.base.errors import InvalidInput

Json: TypeAlias = dict[str, Any]  # a line of the pipe

INSTALLED = "installed"
OLDEST, NEWEST = (0, 16), (0, 33)  # releases whose schedules were compared with those of our own engines
SCHEDULER_FILE = Path("vllm") / "v1" / "core" / "sched" / "scheduler.py"


class VllmProcess:
    """A running worker process. `version`: version of its vLLM; `settings`: field names of its SchedulerConfig."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._opened = 0
        self.closed: list[int] = []  # schedulers that no policy uses any more; told with the next question
        command = [*_command(source)]
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - open as long as the process
        unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # what it prints before it dies is kept
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._log, text=True, env=unbuffered
            )
        except OSError as error:
            raise InvalidInput(
                f"--scheduler {source}: {command[0]} cannot be run: {error.strerror}"
            ) from None
        atexit.register(self.end)
        found = self._read()
        if "missing" in found:
            self.end()
            raise InvalidInput(self._explain_missing(str(found["missing"]), command[0]))
        self.version = str(found["version"])
        self.settings = frozenset(found["settings"])
        if _release(self.version) is not None and self.version_pair < OLDEST:
            self.end()
            raise InvalidInput(
                f"--scheduler {source} has vLLM {self.version}: {_text(OLDEST)} or newer is needed"
            )

    @property
    def version_pair(self) -> tuple[int, int]:
        """Major and minor version of vLLM; the newest tested version if vLLM reports none."""
        return _release(self.version) or NEWEST

    @property
    def is_tested(self) -> bool:
        """Whether schedules of this release were compared with those of the simulator's own scheduler."""
        return _release(self.version) is not None and OLDEST <= self.version_pair <= NEWEST

    def _explain_missing(self, name: str, python: str) -> str:
        if name.partition(".")[0] != "vllm":
            return f"--scheduler {self.source}: vLLM needs the package {name}, which {python} does not have: install it"
        if self.source == INSTALLED:
            return f"--scheduler installed: {python} has no vLLM; install it, or name a folder or a Python that has it"
        return f"--scheduler {self.source} contains no vLLM V1 scheduler: {name} is missing"

    def open_scheduler(self, settings: Json) -> int:
        self._opened += 1
        self.ask("open", self._opened, **settings)
        return self._opened

    def ask(self, verb: str, number: int, /, **values: Any) -> Json:
        """Send the command `verb` for scheduler `number` to the worker; return the reply. Raises InvalidInput."""
        assert self._process.stdin is not None
        try:
            closed, self.closed = self.closed, []
            question = {"verb": verb, "of": number, "close": closed, **values}
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended; reading says why
        return self._read()

    def _read(self) -> Json:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = [line.strip() for line in self._log if line.strip()]
            raise InvalidInput(
                f"--scheduler {self.source} ended unexpectedly{f': {said[-1][:300]}' if said else ''}"
            )
        found: Json = json.loads(line)
        if "error" in found:
            name = f"vLLM {self.version}" if hasattr(self, "version") else "vLLM"
            raise InvalidInput(f"--scheduler {self.source}: {name} failed: {found['error']}")
        return found

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()
        atexit.unregister(self.end)


def find_process(source: str) -> VllmProcess:
    """Return the process for the vLLM at `source`, started at first use. Raises InvalidInput. `source`: "installed" (in
    this environment), a folder with an unpacked wheel or a checkout, or a Python executable."""
    return _start(source, os.getpid())


@cache
def _start(source: str, owner: int) -> VllmProcess:  # noqa: ARG001 - a forked process must not share the pipes
    return VllmProcess(source)


def _command(source: str) -> list[str]:
    worker = str(Path(__file__).with_name("worker.py"))
    if source == INSTALLED:
        return [sys.executable, worker]
    try:
        path = Path(source).expanduser()
        is_folder, is_program = path.is_dir(), path.is_file() and os.access(path, os.X_OK)
    except (OSError, RuntimeError):  # a name that no file can have, or a user that does not exist
        is_folder = is_program = False
    if is_folder:
        if not (path / SCHEDULER_FILE).is_file():
            raise InvalidInput(
                f"--scheduler {source}: {SCHEDULER_FILE} is not in this folder; give the folder of an unpacked wheel "
                "or of a checkout"
            )
        return [sys.executable, worker, str(path.absolute())]
    if is_program:
        return [str(path.absolute()), worker]
    raise InvalidInput(
        f"--scheduler {source}: no such folder or Python; give installed, a folder with vLLM, or a Python that has it"
    )


def _release(version: str) -> tuple[int, int] | None:
    """Return major and minor version; None if `version` has no numbers, as in some checkouts."""
    parts = version.split(".")[:2]
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(map(str.isdigit, parts)) else None


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
