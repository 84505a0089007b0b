"""Parameters of a test of which a few are tried in every run, and all of them with `pytest --ci` or `--slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], short: Iterable[Any]) -> list[Any]:
    """Mark all values that are not in `short` as the long form, which `--slow` runs."""
    return _mark_others(values, short, pytest.mark.slow)


def mostly_ci(values: Iterable[Any], short: Iterable[Any], slow: Iterable[Any] = ()) -> list[Any]:
    """Mark all values that are not in `short` as checks that CI runs, with `--ci`; those in `slow` as the long form."""
    return _mark_others(values, short, pytest.mark.ci, slow)


def _mark_others(
    values: Iterable[Any], short: Iterable[Any], mark: Any, slow: Iterable[Any] = ()
) -> list[Any]:
    """Return all values, those not in `short` with a mark. A name in `short` or `slow` that is not a value fails."""
    every, kept, long = list(values), list(short), list(slow)
    assert all(value in every for value in kept + long), [each for each in kept + long if each not in every]
    return [
        value
        if value in kept
        else pytest.param(
            *(value if isinstance(value, tuple) else [value]),
            marks=pytest.mark.slow if value in long else mark,
        )
        for value in every
    ]
