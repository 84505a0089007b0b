"""A process that runs tests on mutants of one file: `python mutant_runner.py FILE TEST...`.

It imports what the file does not change and forks for each mutant, so a mutant costs only the imports of the modules
that depend on the file, and the tests until one fails. First come the tests that run the changed line, the quickest
first, from one file; the whole set follows if they pass. A test that takes 10 times its CPU time, or a run that takes
10 times its seconds, kills the mutant. Standard input has a JSON object with `source` and `line` for each mutant,
standard output `true` for each that is killed. A null source has no mutation.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings
from mutant_import import MutantFinder

ROOT = Path(__file__).parent.parent
OPTIONS = (
    "-x",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-o",
    "addopts=--import-mode=importlib",
    "--tb=no",
    "-q",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)
MARGIN, MARGIN_S = 10, 5  # of the time that a test takes without a mutation
IMPORTED = (
    "numpy.random",
    "scipy.stats",
    "scipy.optimize",
    "scipy.special",
    "simpy",
    "pandas",
    "hypothesis.strategies",
)


class TestRun(NamedTuple):
    """A test without a mutation: its file, CPU time (with tracing), and the lines of the mutated file that it runs."""

    path: str
    cpu_s: float
    lines: frozenset[int]


class _Trace:
    """Plugin: records what each test runs of the file."""

    def __init__(self, file: Path) -> None:
        self._file, self._lines = str(file), set[int]()
        self.runs: dict[str, TestRun] = {}

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:  # noqa: ARG002
        return self._step if frame.f_code.co_filename == self._file else None

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._lines.add(frame.f_lineno)
        return self._step

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        began = time.process_time()
        self._lines = set()
        sys.settrace(self._enter)
        result = yield
        sys.settrace(None)
        self.runs[item.nodeid] = TestRun(str(item.path), time.process_time() - began, frozenset(self._lines))
        return result


class _Order:
    """Plugin: runs tests of the changed line first, each with a limit of CPU time that ends the process."""

    def __init__(self, runs: dict[str, TestRun], line: int, passed: str | None) -> None:
        self._runs, self._line, self._passed = runs, line, passed  # a file whose tests passed

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        found = settings(
            phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False
        )  # not the smallest
        settings.register_profile("mutant", found)
        settings.load_profile("mutant")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if str(item.path) != self._passed]
        items.sort(key=lambda item: _rank(self._runs.get(item.nodeid), self._line))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        run = self._runs.get(item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, MARGIN_S + MARGIN * (run.cpu_s if run else MARGIN_S))


def _rank(run: TestRun | None, line: int) -> tuple[bool, float]:
    return (True, 0) if run is None else (line not in run.lines, run.cpu_s)


class Runner:
    """The tests of a file, and what is known of them without a mutation."""

    def __init__(self, file: Path, tests: Sequence[str], folder: Path) -> None:
        self._file, self._tests, self._folder = file, tests, folder
        self._runs: dict[str, TestRun] = {}
        self._limit_s = 600.0
        record, began = folder / "runs.json", time.monotonic()
        failed = self._forked(lambda: self._trace(record))
        self.passes = not failed
        if self.passes:
            recorded = json.loads(record.read_text())
            self._runs = {
                name: TestRun(path, cpu, frozenset(lines)) for name, (path, cpu, lines) in recorded.items()
            }
            self._limit_s = 30 + MARGIN * (time.monotonic() - began)

    def is_killed(self, source: str | None, line: int) -> bool:
        """Return whether a test fails, or takes too long, on a source that differs at a line."""
        first = min(self._runs.values(), key=lambda run: _rank(run, line)).path
        several = any(run.path != first for run in self._runs.values())
        return self._forked(lambda: self._run(source, line, [first])) or (
            several and self._forked(lambda: self._run(source, line, self._tests, first))
        )

    def _trace(self, record: Path) -> int:
        _restore_packages()
        trace = _Trace(self._file)
        ended = pytest.main([*self._options(), *self._tests], plugins=[trace])
        record.write_text(
            json.dumps({name: (run.path, run.cpu_s, sorted(run.lines)) for name, run in trace.runs.items()})
        )
        return ended

    def _run(self, source: str | None, line: int, tests: Sequence[str], passed: str | None = None) -> int:
        if source is not None:
            sys.meta_path.insert(0, MutantFinder(self._file, source))
        signal.setitimer(signal.ITIMER_PROF, 2 * MARGIN_S)  # until the first test
        _restore_packages()
        return pytest.main([*self._options(), *tests], plugins=[_Order(self._runs, line, passed)])

    def _options(self) -> list[str]:
        return [*OPTIONS, f"--rootdir={ROOT}", f"--basetemp={self._folder / 'temporary'}"]

    def _forked(self, run: Callable[[], int]) -> bool:
        """Return whether a run fails in a fork, or does not end."""
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(nothing, stream)
                code = int(run())
            os._exit(code)
        ended = os.pidfd_open(child)
        try:
            if not select.select([ended], [], [], self._limit_s)[0]:
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
        finally:
            os.close(ended)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # processes that its tests started
        return status != 0


def _import_the_others(file: Path) -> None:
    """Import the modules of the package that do not depend on a file, and what they and the tests need."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    finder = MutantFinder(file, None)
    sys.meta_path.insert(0, finder)
    import capacity

    for module in pkgutil.walk_packages(capacity.__path__, "capacity.", onerror=lambda _: None):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
    sys.meta_path.remove(finder)
    gc.freeze()


def _restore_packages() -> None:
    """Import the packages that depend on the file, and give them the modules that are loaded."""
    for name in [name for name in sys.modules if name.startswith("capacity.")]:
        parent, _, module = name.rpartition(".")
        package = importlib.import_module(parent)
        if module not in vars(package):
            setattr(package, module, sys.modules[name])


def main() -> None:
    file, *tests = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        sys.pycache_prefix, sys.dont_write_bytecode = folder + "/code", False
        os.chdir(ROOT)
        _import_the_others(Path(file))
        runner = Runner(Path(file), tests, Path(folder))
        print(json.dumps(runner.passes), flush=True)
        for asked in sys.stdin:
            print(json.dumps(runner.is_killed(**json.loads(asked))), flush=True)


if __name__ == "__main__":
    main()
