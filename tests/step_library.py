"""The compiled step times, for tests: from the package, or made here of their one file."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from capacity.simulator.core.step_data import NUM_FIELDS, StepData, declare
from capacity.step import StepShape

SOURCE = Path(__file__).parent.parent / "capacity" / "simulator" / "core" / "step_times.c"
FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-fast-math", "-fPIC", "-shared")


@cache
def library() -> ctypes.CDLL:
    """The library with its functions declared; tests are skipped where there is none and no compiler."""
    found = _of_the_package() or _compiled()
    declare(found)
    return found


def _of_the_package() -> ctypes.CDLL | None:
    try:
        from capacity.simulator.core.library import load  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    loaded: ctypes.CDLL | None = load()
    return loaded if hasattr(loaded, "step_times_new") else None


def _compiled() -> ctypes.CDLL:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiled core and no compiler")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.so"
        subprocess.run([compiler, *FLAGS, "-o", str(path), str(SOURCE), "-lm"], check=True)
        return ctypes.CDLL(str(path))


def compiled(step_times: Any) -> StepData:
    """Step times as an engine reads them."""
    return StepData.of(step_times, library())


def packed(shapes: Sequence[StepShape]) -> Any:
    """Shapes one after the other, as C has them."""
    values = [value for shape in shapes for value in shape]
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def times(data: StepData, shapes: Sequence[StepShape], *, by_line: bool = False) -> list[int]:
    """The compiled time of each shape. Raises what Python raised on the way."""
    found = (ctypes.c_int64 * len(shapes))()
    library().step_times_many(data.pointer, packed(shapes), len(shapes), by_line, found)
    data.raise_error()
    return list(found)


def joint(data: StepData, shapes: Sequence[StepShape]) -> int:
    """The compiled time of a step of ranks together."""
    found = int(library().joint_ps(data.pointer, packed(shapes), len(shapes)))
    data.raise_error()
    return found


assert len(StepShape._fields) == NUM_FIELDS
