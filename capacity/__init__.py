"""Capacity planning for LLM inference: which GPUs, how many, configured how, at what cost, and how sure.

import capacity
capacity.estimate("llama-3.1-70b", gpu="h100", tensor_parallel_size=4, input_len=1024, output_len=256, concurrency=32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capacity.answers.questions import estimate, explain, fit, gpus, models, simulate
    from capacity.answers.records import Attribution, Estimate, Fit, Simulation
    from capacity.base.errors import CapacityError, DoesNotFit, InvalidInput
    from capacity.hardware.pricing import CostEstimate
    from capacity.planning.billing import Bill
    from capacity.planning.bills import cost
    from capacity.planning.compare import advise, diff, tornado
    from capacity.planning.curve import Curve, curve
    from capacity.planning.paired import Diff
    from capacity.planning.plan import plan
    from capacity.planning.records import Plan
    from capacity.planning.sweep import sweep
    from capacity.techniques.attention_io import attention_traffic
    from capacity.techniques.batching import compare_batching
    from capacity.techniques.cache_curve import cache_curve
    from capacity.techniques.engine_table import engine_table
    from capacity.techniques.kv import kv
    from capacity.techniques.quantize import quantize
    from capacity.techniques.scaling import scale
    from capacity.techniques.speculate import speculate

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
    "attention_traffic",
    "cache_curve",
    "compare_batching",
    "cost",
    "curve",
    "diff",
    "engine_table",
    "estimate",
    "explain",
    "fit",
    "gpus",
    "kv",
    "models",
    "plan",
    "quantize",
    "scale",
    "simulate",
    "speculate",
    "sweep",
    "tornado",
]

_HOMES = {
    "capacity.answers.questions": ("estimate", "explain", "fit", "gpus", "models", "simulate"),
    "capacity.planning.compare": ("advise", "diff", "tornado"),
    "capacity.planning.curve": ("Curve", "curve"),
    "capacity.planning.plan": ("plan",),
    "capacity.planning.sweep": ("sweep",),
    "capacity.techniques.attention_io": ("attention_traffic",),
    "capacity.techniques.batching": ("compare_batching",),
    "capacity.techniques.cache_curve": ("cache_curve",),
    "capacity.techniques.engine_table": ("engine_table",),
    "capacity.techniques.kv": ("kv",),
    "capacity.techniques.quantize": ("quantize",),
    "capacity.techniques.scaling": ("scale",),
    "capacity.techniques.speculate": ("speculate",),
    "capacity.planning.billing": ("Bill",),
    "capacity.base.errors": ("CapacityError", "DoesNotFit", "InvalidInput"),
    "capacity.planning.bills": ("cost",),
    "capacity.planning.paired": ("Diff",),
    "capacity.planning.records": ("Plan",),
    "capacity.hardware.pricing": ("CostEstimate",),
    "capacity.answers.records": ("Attribution", "Estimate", "Fit", "Simulation"),
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first asked for, so that `import capacity` stays instant."""
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'capacity' has no attribute {name!r}")
