"""The harness: runs real kernels on the user's own device, says how wrong the step model was, and calibrates it.

`validate` measures, `calibrate` learns from measurements and from runs, `suggest_runs` says which runs to do,
`compare` reads a real server's benchmark.
Everything heavy is imported inside them; only `validate` needs torch.
"""

from __future__ import annotations

from typing import Any

__all__ = ["calibrate", "compare", "suggest_runs", "validate"]


def __getattr__(name: str) -> Any:
    if name == "validate":
        from capacity_validate.harness import validate

        return validate
    if name == "calibrate":
        from capacity_validate.calibrating import calibrate

        return calibrate
    if name == "suggest_runs":
        from capacity_validate.suggesting import suggest_runs

        return suggest_runs
    if name == "compare":
        from capacity_validate.comparing import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
