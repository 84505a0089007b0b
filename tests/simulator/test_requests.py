"""Requests as sequences: those without room are turned away."""

from __future__ import annotations

import numpy as np

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload


def test_output_of_one_token_ends_with_its_prompt() -> None:
    workload = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([9]), output_tokens=np.array([1]))
    result = simulate(workload, EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=5))
    record = result.records[0]
    assert record.first_token_s == record.finish_s == 0.019
    assert record.tpot_s is None
    assert result.summary.tpot_ms is None
    assert result.steps == 1


def test_prompts_without_room_are_turned_away() -> None:
    workload = Workload(
        arrival_s=np.zeros(3), prompt_tokens=np.array([31, 32, 33]), output_tokens=np.array([5, 5, 5])
    )
    result = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.001), num_blocks=50, limits=SchedulerLimits(max_model_len=32)
        ),
    )
    assert result.rejected == result.summary.failed == 2
    assert result.records[0].output_tokens == 1
