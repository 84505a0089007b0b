"""The stages of a validation run, from collectives to speculative decoding.

A stage takes a `Session` and adds to `StageResults`. `STAGES` defines their order and shares of the time. To add a
stage, write its function and add it to `STAGES`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from capacity_validate.fresh_process import CASE_STAGE
from capacity_validate.session import Session, StageResults
from capacity_validate.stages.checks import collective_stage, memory_stage, technique_stage
from capacity_validate.stages.model_runs import serving_stage, speculation_stage
from capacity_validate.stages.steps import step_stage, unseen_stage

__all__ = ["STAGES", "StageResults", "ValidationStage"]


class ValidationStage(NamedTuple):
    """A stage, its share of the time, and the field of `DevicePlan` that enables it ("": always enabled).

    A stage may use the fraction share / (its own share + later shares) of the remaining time. Time that it does not use
    is left for later stages.
    """

    name: str
    run: Callable[[Session, StageResults], None]
    share: float = 1.0
    part: str = ""

    def time_fraction(self, session: Session, later: Sequence["ValidationStage"]) -> float:
        """Return the fraction of the remaining time that this stage may use if the stages `later` follow."""
        waiting = sum(s.share for s in later if not s.part or getattr(session.plan, s.part))
        return self.share / (self.share + waiting)


# collectives come first because they need the memory of every GPU; what the profile needs most comes early
STAGES = (
    ValidationStage("collectives", collective_stage, 0.12, "collectives"),
    ValidationStage(CASE_STAGE, step_stage, 0.50),
    ValidationStage("a second model", unseen_stage, 0.09, "unseen"),
    ValidationStage("techniques", technique_stage, 0.08, "techniques"),
    ValidationStage("memory", memory_stage, 0.01, "memory"),
    ValidationStage("serving", serving_stage, 0.20, "serving"),
    ValidationStage("speculative decoding", speculation_stage, 0.12, "speculation"),
)
