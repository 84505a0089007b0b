"""The core with random and hostile fleets: as it is built in, and under the address and undefined-behaviour sanitizers.

The sanitizers are skipped where the compiler has no sanitizers, but not where CAPACITY_SANITIZERS says that it must.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from core_runs import needs_core

from capacity.simulator.core import build, library

TESTS = Path(__file__).parents[2]
FLAGS = (
    *(flag for flag in build.FLAGS if flag != "-O2"),
    *("-O0", "-g1", "-fno-omit-frame-pointer"),  # as it is written, and compiled in half the time
    *("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
)
SANITIZERS = {  # `runtime` is loaded first
    # Python keeps what it holds at its end; no fleet of these tests needs a column of 256 MB
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=256",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
SHORT, LONG = 300, 20_000


def runtime() -> Path | None:
    """gcc's libasan, that must be there before Python is."""
    try:
        done = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    found = Path(done.stdout.strip())
    return found if found.is_absolute() and found.exists() else None


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if runtime() is None:
        if os.environ.get("CAPACITY_SANITIZERS") == "required":
            pytest.fail("CAPACITY_SANITIZERS=required, and gcc with its sanitizers is not here")
        pytest.skip("no gcc with sanitizers")
    return compile_sanitized(tmp_path_factory.mktemp("sanitized"))


def compile_sanitized(folder: Path) -> Path:
    target = folder / build.library_name()
    sources = [path for path in build.source_files(library.FOLDER) if path.suffix == ".c"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "gcc")
        build.compile_library(sources, target, FLAGS)
    return target


def run_python(*arguments: str, **variables: str) -> str:
    """Return what Python prints; it must exit with 0."""
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr.rsplit("\r", 1)[-1][:6000]
    return done.stdout


def fuzz(core: str, first: int, count: int, **sanitizers: str) -> None:
    found = run_python(str(TESTS / "core_fuzzer.py"), core, str(first), str(count), **sanitizers)
    assert "'taken'" in found


@needs_core
def test_hostile_fleets_are_refused_and_never_crash() -> None:
    core = library.load()
    assert core is not None
    fuzz(core._name, 0, SHORT)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, SHORT, id="few"),
        pytest.param(SHORT, LONG, id="many", marks=pytest.mark.slow),
    ],
)
def test_hostile_fleets_are_within_the_rules_of_c(sanitized: Path, first: int, count: int) -> None:
    fuzz(str(sanitized), first, count, **SANITIZERS, LD_PRELOAD=str(runtime()))


ALL_GAPS = """
import pathlib, sys
import numpy as np
from core_alone import CoreAlone
gaps = np.stack([np.arange(20_000), np.ones(20_000)], axis=1)  # fill every size of the array
assert CoreAlone(pathlib.Path(sys.argv[1]), sys.argv[2:]).gaps(gaps).count == 20_000
"""


@pytest.mark.ci
def test_counted_gaps_are_within_the_rules_of_c(sanitized: Path, tmp_path: Path) -> None:
    assert sanitized.exists()
    run_python("-c", ALL_GAPS, str(tmp_path), *FLAGS, CC="gcc", **SANITIZERS, LD_PRELOAD=str(runtime()))
