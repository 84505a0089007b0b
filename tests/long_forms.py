"""Parameters of a test of which a few are tried in every run, and all of them with `pytest --slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], short: Iterable[Any]) -> list[Any]:
    """All values, those that are not in `short` marked as the long form; a name in `short` that is no value fails."""
    every, kept = list(values), list(short)
    assert all(value in every for value in kept), [value for value in kept if value not in every]
    return [
        value
        if value in kept
        else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.slow)
        for value in every
    ]
