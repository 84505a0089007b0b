"""The engine as it stands twice, to be read and to be run: for tests that hold both to the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from capacity.simulator.scenarios import schedule_scenario


def takes(function: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(function).parameters


HAS_CORE = takes(schedule_scenario, "engine_loop") and find_spec("capacity.simulator.core.fleet") is not None
LOOPS = (
    "events",
    pytest.param("core", marks=pytest.mark.skipif(not HAS_CORE, reason="the compiled core is not built in")),
)


def on(function: Callable[..., Any], engine_loop: str) -> dict[str, Any]:
    """Keywords with which a function runs on this engine; where there is one engine only, none or its steps alone."""
    if takes(function, "engine_loop"):
        return {"engine_loop": engine_loop}
    return {"mode": "step"} if takes(function, "mode") else {}
