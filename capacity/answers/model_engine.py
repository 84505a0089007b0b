"""`engine_setup`: the inputs to simulate a real model with `simulator.simulate` of the Python API."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capacity.answers.engine_setup import engine_frontend, setup_of
from capacity.base.checked import validate_arguments
from capacity.base.keywords import document_options
from capacity.deployment import Pool, build
from capacity.model import ModelSpec
from capacity.pool.memory import MemoryPlan
from capacity.pool.resolve import resolve
from capacity.simulator import EngineSetup, FrontendTimes
from capacity.step.model import StepModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEngine:
    """Inputs to simulate one model: `simulator.simulate(workload, [e.setup] * e.engines, frontend=e.frontend)`.

    `setup`: settings of one engine, with its step times, KV blocks, scheduler and limits. `engines`: number of engines,
    which is replicas x data-parallel ranks that step independently. `frontend`: times between client and engine.
    `costs`: function from the shape of a step to its seconds and operators. `memory`: memory of each GPU in bytes.
    `notes`: assumptions and missing data.
    """

    setup: EngineSetup
    engines: int
    frontend: FrontendTimes
    costs: StepModel
    memory: MemoryPlan
    notes: tuple[str, ...]


@document_options(Pool)
@validate_arguments
def engine_setup(
    model: str | Path | ModelSpec,
    *,
    profiles: str | Path | None = None,
    download: bool = False,
    **options: Any,
) -> ModelEngine:
    """Return the inputs of `simulator.simulate` for a model and the settings of `Pool`, as `simulate` builds them.

    Change a part with `dataclasses.replace(engine.setup, policy=MyPolicy)`. Raises DoesNotFit or InvalidInput.
    """
    pool = resolve(model, build(Pool, options), profiles=profiles, download=download)
    return ModelEngine(
        setup=setup_of(pool),
        engines=pool.pool.replicas * pool.independent_ranks,
        frontend=engine_frontend(pool),
        costs=pool.step_model,
        memory=pool.memory,
        notes=(*pool.notes, *pool.memory.warnings, *pool.step_model.notes),
    )
