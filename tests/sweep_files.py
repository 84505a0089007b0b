"""Small sweeps: a file of estimates, and specifications that differ in a field or two."""

from __future__ import annotations

from typing import Any

from capacity.planning.sweeps.sweep_spec import SweepSpec

HEAD = 'schema = "capacity/sweep/v1"\n'

SPEC = (
    HEAD
    + """question = "estimate"
[fixed]
model = "llama-3.1-8b"
input_len = 256
price = "2.5"
[vary]
gpu = ["h100", "l4"]
output_len = [16, 64, 200000]
batch_size = [1, 8, 64]
"""
)


def make(**changes: Any) -> SweepSpec:
    fields: dict[str, Any] = {
        "schema": "capacity/sweep/v1",
        "question": "estimate",
        "fixed": {"model": "llama-3.1-8b", "gpu": "h100", "input_len": 100, "output_len": 10},
        "vary": {"batch_size": (1, 2, 3)},
    }
    return SweepSpec(**(fields | changes))
