"""Parts of the compiled core without a fleet around them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from capacity.simulator.core import build
from capacity.simulator.core.fleet import gap_counter, step_work
from capacity.simulator.core.interface import structs
from capacity.simulator.gap_counter import GapCounter
from capacity.simulator.step_work import StepWork
from capacity.step import StepTimes

ROOT = Path(__file__).parent.parent
CORE = ROOT / "capacity" / "simulator" / "core"
SOURCES = [*(CORE / name for name in ("memory.c", "gaps.c", "work.c")), ROOT / "tests/simulator/core/alone.c"]
POINTERS = ("alone_new", "alone_gaps", "alone_work")


class CoreAlone:
    """Gaps and work of the core, each filled from one array and taken out as Python's records."""

    def __init__(self, folder: Path, flags: Iterable[str] = build.FLAGS) -> None:
        target = folder / build.library_name()
        build.compile_library(SOURCES, target, [*flags, f"-I{CORE}"])
        self._library = ctypes.CDLL(str(target))
        for name in POINTERS:
            getattr(self._library, name).restype = ctypes.c_void_p

    def gaps(self, *parts: np.ndarray) -> GapCounter:
        """Of entries (gap, count), added part by part."""
        memory, arrays = ctypes.c_void_p(self._library.alone_new()), structs.gaps_arrays()
        gaps = ctypes.c_void_p(self._library.alone_gaps(memory))
        for entries in parts:
            self._fill(self._library.alone_gaps_add, memory, gaps, entries)
        self._library.gaps_export(gaps, ctypes.byref(arrays))
        counter = gap_counter(arrays)
        self._library.alone_free(memory)
        return counter

    def work(self, step_times: StepTimes, steps: np.ndarray) -> StepWork:
        """Of steps (the shape's fields, duration, held)."""
        memory, arrays = ctypes.c_void_p(self._library.alone_new()), structs.work_arrays()
        work = ctypes.c_void_p(self._library.alone_work(memory))
        self._fill(self._library.alone_work_steps, memory, work, steps)
        self._library.work_export(work, ctypes.byref(arrays))
        found = step_work(arrays, step_times)
        self._library.alone_free(memory)
        return found

    def exhaust(self, *, larger: bool) -> int:
        """Take more memory than there is, or enlarge some to that; return the error."""
        memory = ctypes.c_void_p(self._library.alone_new())
        error = int(self._library.alone_exhaust(memory, ctypes.c_int(larger)))
        self._library.alone_free(memory)
        return error

    def _fill(self, add: object, memory: ctypes.c_void_p, part: ctypes.c_void_p, entries: np.ndarray) -> None:
        entries = np.ascontiguousarray(entries, dtype=np.int64)
        assert not add(memory, part, ctypes.c_void_p(entries.ctypes.data), ctypes.c_int64(len(entries)))
