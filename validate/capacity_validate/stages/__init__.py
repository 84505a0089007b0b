"""What a validation run does, stage after stage: kernels and whole steps, techniques, memory, serving, and so on.

A stage is a generator: it takes a `Session` and yields a `StageResult` for each thing done, so that a stage that is
interrupted or fails keeps what it had. The order is that of `STAGES`; a new stage is a module and an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from capacity_validate.session import Session
from capacity_validate.stages.collectives import collective_stage
from capacity_validate.stages.memory import memory_stage
from capacity_validate.stages.result import StageResult, joined
from capacity_validate.stages.serving import serving_stage
from capacity_validate.stages.speculation import speculation_stage
from capacity_validate.stages.steps import step_stage
from capacity_validate.stages.techniques import technique_stage
from capacity_validate.stages.unseen import unseen_stage

__all__ = ["STAGES", "Stage", "StageResult", "joined"]


class Stage(NamedTuple):
    name: str
    run: Callable[[Session], Iterator[StageResult]]


STAGES = (
    Stage("kernels and steps", step_stage),
    Stage("techniques", technique_stage),
    Stage("memory", memory_stage),
    Stage("serving", serving_stage),
    Stage("speculative decoding", speculation_stage),
    Stage("a second model", unseen_stage),
    Stage("collectives", collective_stage),
)
