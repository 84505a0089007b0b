"""Capacity planning for LLM inference: which GPUs, how many, configured how, at what cost, and how sure.

import capacity
capacity.estimate("llama-3.1-70b", gpu="h100", tensor_parallel_size=4, input_len=1024, output_len=256, concurrency=32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capacity.techniques import registry as _techniques

if TYPE_CHECKING:
    from capacity.answers.questions import estimate, explain, fit, gpus, models, simulate
    from capacity.answers.records import Attribution, Estimate, Fit, Simulation
    from capacity.base.errors import CapacityError, DoesNotFit, InvalidInput
    from capacity.hardware.pricing import CostEstimate
    from capacity.planning.advice import advise
    from capacity.planning.billing import Bill
    from capacity.planning.cost import cost
    from capacity.planning.curve import Curve, curve
    from capacity.planning.diff import Diff, diff
    from capacity.planning.plan import plan
    from capacity.planning.records import Plan
    from capacity.planning.sweeping.run import sweep
    from capacity.planning.tornado import tornado
    from capacity.techniques.registry import *  # noqa: F403

__all__ = [
    "Attribution",
    "Bill",
    "CapacityError",
    "CostEstimate",
    "Curve",
    "Diff",
    "DoesNotFit",
    "Estimate",
    "Fit",
    "InvalidInput",
    "Plan",
    "Simulation",
    "advise",
    "cost",
    "curve",
    "diff",
    "estimate",
    "explain",
    "fit",
    "gpus",
    "models",
    "plan",
    "simulate",
    "sweep",
    "tornado",
]
__all__ += _techniques.__all__
__all__.sort()

_HOMES = {
    "capacity.answers.questions": ("estimate", "explain", "fit", "gpus", "models", "simulate"),
    "capacity.planning.advice": ("advise",),
    "capacity.planning.curve": ("Curve", "curve"),
    "capacity.planning.plan": ("plan",),
    "capacity.planning.sweeping.run": ("sweep",),
    "capacity.planning.tornado": ("tornado",),
    "capacity.planning.billing": ("Bill",),
    "capacity.base.errors": ("CapacityError", "DoesNotFit", "InvalidInput"),
    "capacity.planning.cost": ("cost",),
    "capacity.planning.diff": ("Diff", "diff"),
    "capacity.planning.records": ("Plan",),
    "capacity.hardware.pricing": ("CostEstimate",),
    "capacity.answers.records": ("Attribution", "Estimate", "Fit", "Simulation"),
    **_techniques.HOMES,
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first asked for, so that `import capacity` stays instant."""
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'capacity' has no attribute {name!r}")
