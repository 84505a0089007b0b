"""Workloads of a few requests, and what the tests measure of drawn ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.workload import Workload

MANY = 100_000


def cv(values: np.ndarray) -> float:
    return float(values.std() / values.mean())


def small(**changes: object) -> Workload:
    columns: dict[str, object] = {
        "arrival_s": [0.0, 1.0, 1.0],
        "prompt_tokens": [10, 20, 30],
        "output_tokens": [1, 2, 3],
    }
    return Workload(**{**columns, **changes})  # type: ignore[arg-type]


def tokens_of(segments: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(text, position) for text, length in segments for position in range(length)]


def check_refused(build: Callable[[], object], part: str) -> None:
    """What is built is refused in one line that has `part`."""
    with pytest.raises(InvalidInput) as caught:
        build()
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
