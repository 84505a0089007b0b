"""Every allocation of the core fails once: one MemoryError, nothing leaked, and the next run is as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from core_alone import CoreAlone

from capacity.simulator.core import build, library
from capacity.simulator.core.interface import enums

TESTS = Path(__file__).parents[2]
WRAPPED = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "free")]


@pytest.mark.parametrize("larger", [False, True])
def test_more_memory_than_there_is_is_an_error(core_alone: CoreAlone, larger: bool) -> None:
    assert core_alone.exhaust(larger=larger) == enums.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "every", [pytest.param(4, marks=pytest.mark.ci), pytest.param(1, marks=pytest.mark.slow)]
)
@pytest.mark.skipif(sys.platform != "linux", reason="needs the linker's --wrap")
def test_every_allocation_may_fail(tmp_path: Path, every: int) -> None:
    if build.working_compiler() is None:
        pytest.skip("no C compiler")
    own = [path for path in build.source_files(library.FOLDER) if path.suffix == ".c"]
    sources = [*own, Path(__file__).with_name("faulty_allocations.c")]
    version = f'-DCORE_VERSION="{build.source_version(library.FOLDER)}"'
    target = tmp_path / build.library_name()
    build.compile_library(sources, target, [*build.FLAGS, version, f"-I{library.FOLDER}", *WRAPPED])
    path = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, str(TESTS / "core_faults.py"), str(target), str(every)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = [int(line.split(": ")[1].split()[0]) for line in done.stdout.splitlines()]
    assert len(counts) == 3
    print(done.stdout)
    assert min(counts) > 20, done.stdout
