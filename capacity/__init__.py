"""Capacity planning for LLM inference: which GPUs, how many, configured how, at what cost, and how sure::

    import capacity
    capacity.estimate("llama-3.1-70b", gpu="h100", tensor_parallel_size=4, input_len=1024, output_len=256, batch_size=8)

The same verbs as on the command line, with flags as keywords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capacity.techniques import registry as _techniques

if TYPE_CHECKING:  # what type checkers and editors read; `X as X` is what they take for public
    from capacity_validate.calibrating import calibrate as calibrate
    from capacity_validate.comparing import compare as compare
    from capacity_validate.suggesting import suggest_runs as suggest_runs

    from capacity.answers.engine_comparison import compare_engines as compare_engines
    from capacity.answers.explain import explain as explain
    from capacity.answers.fit import fit as fit
    from capacity.answers.fit_comparison import compare_fits as compare_fits
    from capacity.answers.frontier import frontier as frontier
    from capacity.answers.listings import gpus as gpus
    from capacity.answers.listings import models as models
    from capacity.answers.listings import use_cases as use_cases
    from capacity.answers.load_sweep import load_sweep as load_sweep
    from capacity.answers.records import Attribution as Attribution
    from capacity.answers.records import Estimate as Estimate
    from capacity.answers.records import Fit as Fit
    from capacity.answers.records import Simulation as Simulation
    from capacity.answers.simulate import simulate as simulate
    from capacity.answers.support import gpu_support as gpu_support
    from capacity.base.errors import CapacityError as CapacityError
    from capacity.base.errors import DoesNotFit as DoesNotFit
    from capacity.base.errors import InvalidInput as InvalidInput
    from capacity.deployment.launch_command import from_launch as from_launch
    from capacity.deployment.launch_command import from_vllm as from_vllm
    from capacity.hardware.cost_estimate import CostEstimate as CostEstimate
    from capacity.model.presets import add_model as add_model
    from capacity.planning.advice import advise as advise
    from capacity.planning.billing import Bill as Bill
    from capacity.planning.cascade import cascade as cascade
    from capacity.planning.cost import cost as cost
    from capacity.planning.curve import Curve as Curve
    from capacity.planning.curve import curve as curve
    from capacity.planning.diff import Diff as Diff
    from capacity.planning.diff import diff as diff
    from capacity.planning.fleet import fleet as fleet
    from capacity.planning.fleet_records import FleetPlan as FleetPlan
    from capacity.planning.gpu_comparison import compare_gpus as compare_gpus
    from capacity.planning.plan import plan as plan
    from capacity.planning.records import Plan as Plan
    from capacity.planning.sized_estimate import estimate as estimate
    from capacity.planning.stack import stack as stack
    from capacity.planning.sweeping.results import sweep_results as sweep_results
    from capacity.planning.sweeping.run import sweep as sweep
    from capacity.planning.tornado import tornado as tornado
    from capacity.techniques.registry import *  # noqa: F403

_HOMES = {  # imported when they are first asked for, so that `import capacity` stays instant
    "capacity.answers.explain": ("explain",),
    "capacity.answers.fit": ("fit",),
    "capacity.answers.engine_comparison": ("compare_engines",),
    "capacity.answers.fit_comparison": ("compare_fits",),
    "capacity.answers.frontier": ("frontier",),
    "capacity.planning.gpu_comparison": ("compare_gpus",),
    "capacity.answers.listings": ("gpus", "models", "use_cases"),
    "capacity.answers.load_sweep": ("load_sweep",),
    "capacity.answers.records": ("Attribution", "Estimate", "Fit", "Simulation"),
    "capacity.answers.simulate": ("simulate",),
    "capacity.answers.support": ("gpu_support",),
    "capacity.base.errors": ("CapacityError", "DoesNotFit", "InvalidInput"),
    "capacity.deployment.launch_command": ("from_launch", "from_vllm"),
    "capacity.hardware.cost_estimate": ("CostEstimate",),
    "capacity.model.presets": ("add_model",),
    "capacity.planning.advice": ("advise",),
    "capacity.planning.billing": ("Bill",),
    "capacity.hardware.what_if": ("add_gpu",),
    "capacity.planning.cascade": ("cascade",),
    "capacity.planning.cost": ("cost",),
    "capacity.planning.curve": ("Curve", "curve"),
    "capacity.planning.diff": ("Diff", "diff"),
    "capacity.planning.fleet": ("fleet",),
    "capacity.planning.fleet_records": ("FleetPlan",),
    "capacity.planning.plan": ("plan",),
    "capacity.planning.records": ("Plan",),
    "capacity.planning.sized_estimate": ("estimate",),
    "capacity.planning.stack": ("stack",),
    "capacity.planning.sweeping.results": ("sweep_results",),
    "capacity.planning.sweeping.run": ("sweep",),
    "capacity.planning.tornado": ("tornado",),
    **_techniques.HOMES,
    "capacity_validate": ("calibrate", "compare", "suggest_runs"),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    """A public name from the module that holds it."""
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'capacity' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, which notebooks and editors complete."""
    return __all__
