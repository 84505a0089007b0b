"""The validation harness: run real kernels on the user's device, report the step model's error, and calibrate it.

`validate` measures, `calibrate` fits a profile to measurements and benchmark runs, `suggest_runs` proposes the most
informative runs, `compare` reads a real server's benchmark, and `watch` its metrics. The functions import heavy
packages when they are called; only `validate` needs torch.
"""

from importlib import import_module
from typing import Any

__all__ = ["calibrate", "compare", "suggest_runs", "validate", "watch"]


_HOMES = {
    "validate": "harness",
    "calibrate": "calibrating",
    "suggest_runs": "suggesting",
    "compare": "comparing",
    "watch": "watching",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
