"""Requests as sequences: those without room are turned away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_loops import LOOPS, on

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.metrics import MISSING
from capacity.simulator.requests import Requests
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.setup import make_pool
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


def test_what_a_request_asks_for_is_at_least_its_output_and_within_max_model_len() -> None:
    workload = Workload(
        arrival_s=np.zeros(3),
        prompt_tokens=np.full(3, 10),
        output_tokens=np.full(3, 5),
        max_tokens=np.array([1, 8, 1000]),
    )
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 0.001), num_blocks=50, limits=SchedulerLimits(max_model_len=32)
    )
    for role, asked in (("both", [15, 18, 32]), ("prefill", [11, 11, 11])):
        of_role = replace(setup, role=role)
        maker = Requests(workload).sequence_maker(of_role, make_pool(of_role))
        sequences = [maker(index, 0) for index in range(3)]
        assert [sequence.asked_known for sequence in sequences if sequence] == asked


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_a_prompt_that_fills_the_context_costs_no_step(engine_loop: str) -> None:
    """It leaves no room for one output token, and is turned away before the engine sees it.

    Source: vLLM 0.33, v1/engine/input_processor.py: a prompt of max_model_len tokens is refused as one above it is.
    """
    workload = Workload(arrival_s=[0.0, 0.0], prompt_tokens=[31, 32], output_tokens=[5, 5])
    result = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.001),
            num_blocks=50,
            policy="vllm-v1",
            limits=SchedulerLimits(max_model_len=32),
        ),
        **on(simulate, engine_loop),
    )
    assert result.records.first_scheduled_ps.tolist() == [0, MISSING]
    assert result.records.finish_ps.tolist() == [41 * 10**9, MISSING]
    assert result.rejected == 1
