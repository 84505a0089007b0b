"""Who gives up its KV where running requests outgrow it: worked by hand, on blocks of one token."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from engine_loops import LOOPS, on

from capacity.simulator import Engine, EngineSetup, simulate
from capacity.simulator.schedulers import Policy, SchedulerLimits, Step
from capacity.simulator.schedulers.sglang import Sglang
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


def two_that_outgrow(
    policy: str, outputs: int, blocks: int, options: dict[str, Any], **limits: Any
) -> tuple[Step, Policy]:
    """Two like these, on the Python engine: the step that sends the second back, and the policy at its end."""
    seen: list[tuple[Step, Policy]] = []

    def watch(step: Step, engine: Engine) -> None:
        if step.preempted and not seen:
            seen.append((step, copy.copy(engine.policy)))

    simulate(
        Workload(arrival_s=[0.0, 0.025], prompt_tokens=[4, 4], output_tokens=[outputs, outputs]),
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.0),
            num_blocks=blocks,
            block_size=1,
            policy=policy,
            policy_options=options | {"asynchronous": False},
            limits=SchedulerLimits(**limits),
            enable_prefix_caching=False,
        ),
        engine_loop="events",
        observer=watch,
    )
    return seen[0]


def test_sglang_expects_twenty_tokens_more_of_everyone_after_a_retraction() -> None:
    """38 of its 61 outputs are there, and 20 more are looked ahead: (38 + 20) / (61 + 1).

    80 places hold 4 + 38 - 1 of the first and 4 + 35 of the second, and no third token.
    Source: SGLang, schedule_batch.py, retract_decode: SGLANG_RETRACT_DECODE_STEPS of 20.
    """
    step, policy = two_that_outgrow("sglang", 61, 80, {"conservativeness": 0.1})
    assert [r.index for r in step.preempted] == [1]
    assert isinstance(policy, Sglang)
    assert policy.new_token_ratio == pytest.approx(58 / 62)


def test_tensorrt_llm_starts_nobody_in_a_step_that_paused_someone() -> None:
    """Seven more tokens fit into the step and into what the second gave back: it starts again in the next."""
    options = {"capacity": "max_utilization"}
    step, _ = two_that_outgrow("tensorrt-llm", 20, 35, options, max_num_batched_tokens=8)
    assert [r.index for r in step.preempted] == [1]
    assert [r.sequence.index for r in step.rows] == [0]
