"""Capacity planning for LLM inference: which GPUs, how many, configured how, at what cost, and how sure.

import capacity
capacity.estimate("llama-3.1-70b", gpu="h100", tensor_parallel_size=4, input_len=1024, output_len=256, concurrency=32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capacity.api import compare_batching, estimate, explain, fit, gpus, models, simulate
    from capacity.api_planning import plan
    from capacity.errors import CapacityError, DoesNotFit, InvalidInput
    from capacity.planning.records import Plan
    from capacity.results import Attribution, Estimate, Fit, Simulation

__all__ = [
    "Attribution",
    "CapacityError",
    "DoesNotFit",
    "Estimate",
    "Fit",
    "InvalidInput",
    "Plan",
    "Simulation",
    "compare_batching",
    "estimate",
    "explain",
    "fit",
    "gpus",
    "models",
    "plan",
    "simulate",
]

_HOMES = {
    "capacity.api": ("compare_batching", "estimate", "explain", "fit", "gpus", "models", "simulate"),
    "capacity.api_planning": ("plan",),
    "capacity.errors": ("CapacityError", "DoesNotFit", "InvalidInput"),
    "capacity.planning.records": ("Plan",),
    "capacity.results": ("Attribution", "Estimate", "Fit", "Simulation"),
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first asked for, so that `import capacity` stays instant."""
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'capacity' has no attribute {name!r}")
