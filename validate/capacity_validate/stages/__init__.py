"""The stages of a validation run: kernels and whole steps, techniques, memory, serving, and others.

A stage takes a `Session` and adds to `StageResults`. `STAGES` defines the order; a new stage is a function and an
entry.
"""

from collections.abc import Callable
from typing import NamedTuple

from capacity_validate.session import Session
from capacity_validate.stages.checks import collective_stage, memory_stage, technique_stage
from capacity_validate.stages.model_runs import serving_stage, speculation_stage
from capacity_validate.stages.stage_result import StageResults
from capacity_validate.stages.steps import step_stage, unseen_stage

__all__ = ["STAGES", "StageResults", "ValidationStage"]


class ValidationStage(NamedTuple):
    name: str
    run: Callable[[Session, StageResults], None]


STAGES = (
    ValidationStage("kernels and steps", step_stage),
    ValidationStage("techniques", technique_stage),
    ValidationStage("memory", memory_stage),
    ValidationStage("serving", serving_stage),
    ValidationStage("speculative decoding", speculation_stage),
    ValidationStage("a second model", unseen_stage),
    ValidationStage("collectives", collective_stage),
)
