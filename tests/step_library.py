"""The compiled step times, for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from capacity.simulator.core.interface import declare
from capacity.simulator.core.library import load
from capacity.simulator.core.step_data import NUM_FIELDS, StepData
from capacity.step import StepShape


@cache
def library() -> ctypes.CDLL:
    """The library with its functions declared; tests are skipped where there is none."""
    found = load()
    if found is None:
        pytest.skip("no compiled core")
    return declare(found)


def compiled(step_times: Any) -> StepData:
    """Step times as an engine reads them."""
    return StepData(step_times, library())


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
