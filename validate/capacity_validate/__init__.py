"""The harness: runs real kernels on the user's own device, says how wrong the step model was, and calibrates it.

`validate` measures, `calibrate` learns from measurements and from runs, `suggest_runs` says which runs to do,
`compare` reads a real server's benchmark.
Everything heavy is imported inside them; only `validate` needs torch.
"""

from importlib import import_module
from typing import Any

__all__ = ["calibrate", "compare", "suggest_runs", "validate"]


_HOMES = {
    "validate": "harness",
    "calibrate": "calibrating",
    "suggest_runs": "suggesting",
    "compare": "comparing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
