"""A continued file must be of the same card in the same state, run by the same harness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capacity.base.errors import InvalidInput


def require_same_conditions(path: object, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises InvalidInput naming all that differs between a file's beginning and this run."""
    differing = [
        f"{name} {_told(was.get(name))}, now {_told(now.get(name))}"
        for name in dict.fromkeys((*was, *now))
        if was.get(name) != now.get(name)
    ]
    if differing:
        raise InvalidInput(
            f"{path} was measured under other conditions: {'; '.join(differing)}. Choose another --out: evidence of "
            "two machines, or of two states of one, is not mixed in one file"
        )


def _told(value: Any) -> str:
    return "unknown" if value is None else repr(value)
