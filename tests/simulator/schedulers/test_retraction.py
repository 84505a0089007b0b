"""Who gives up its KV where running requests outgrow it: worked by hand, on blocks of one token."""

from __future__ import annotations

from typing import Any

import pytest
from engine_loops import LOOPS, on

from capacity.simulator import EngineSetup, simulate
from capacity.step import AffineStepTimes
from capacity.workload import Workload


@pytest.mark.parametrize("engine_loop", LOOPS)
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("sglang", {"conservativeness": 0.1, "asynchronous": False}),
        ("tensorrt-llm", {"capacity": "max_utilization", "asynchronous": False}),
    ],
)
def test_the_one_that_came_later_and_has_fewer_outputs_goes_back(
    policy: str, options: dict[str, Any], engine_loop: str
) -> None:
    """Two of 4 prompt and 20 output tokens need 23 places each, and there are 35: in the end there are too few.

    By then the first is nearly done. SGLang retracts who has the fewest outputs (schedule_batch.py, retract_decode),
    TensorRT-LLM pauses who started last (capacityScheduler.cpp, MaxUtilizationScheduler): the second, both times.
    """
    run = simulate(
        Workload(arrival_s=[0.0, 0.025], prompt_tokens=[4, 4], output_tokens=[20, 20]),
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.0),
            num_blocks=35,
            block_size=1,
            policy=policy,
            policy_options=options,
            enable_prefix_caching=False,
        ),
        **on(simulate, engine_loop),
    )
    assert run.records.preemptions.tolist()[0] == 0
    assert run.records.preemptions.tolist()[1] >= 1
    assert run.records.output_tokens.tolist() == [20, 20]
    assert run.records.finish_ps[0] < run.records.finish_ps[1]
