"""What pipeline stages take in all, and in which order requests that end together bring their successors."""

from __future__ import annotations

import pytest
from engine_loops import LOOPS, on

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload


@pytest.mark.parametrize("engine_loop", LOOPS)
@pytest.mark.parametrize("stages", [1, 2, 3, 7, 64])
def test_stages_take_a_step_s_time_to_the_picosecond(stages: int, engine_loop: str) -> None:
    """A request alone passes all stages before its next token: its latency is its steps' time, whatever the split."""
    step_ps = 10**10 + 1  # leaves a remainder in each of the splits
    run = simulate(
        Workload(arrival_s=[0.0], prompt_tokens=[9], output_tokens=[4]),
        EngineSetup(
            step_times=AffineStepTimes(step_ps / 10**12, 0.0),
            num_blocks=50,
            policy="vllm-v1",
            limits=SchedulerLimits(pipeline_stages=stages),
        ),
        **on(simulate, engine_loop),
    )
    assert run.records.first_token_ps.tolist() == [step_ps]
    assert run.records.finish_ps.tolist() == [4 * step_ps]
    assert run.busy_s == 4 * step_ps / 10**12


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_a_step_s_remainder_is_not_lost_while_stages_overlap(engine_loop: str) -> None:
    """Two requests alternate in two stages, the first a picosecond wider, and it sets the pace.

    Their prompts fill a step each, so they never share one. The first's three steps pass the first stage as its first,
    third and fifth, and the second stage once more.
    """
    wide, narrow = 5 * 10**9 + 1, 5 * 10**9
    run = simulate(
        Workload(arrival_s=[0.0, 0.0], prompt_tokens=[9, 9], output_tokens=[3, 3]),
        EngineSetup(
            step_times=AffineStepTimes((wide + narrow) / 10**12, 0.0),
            num_blocks=50,
            policy="vllm-v1",
            limits=SchedulerLimits(pipeline_stages=2, max_num_batched_tokens=9),
        ),
        **on(simulate, engine_loop),
    )
    first, second = run.records.finish_ps.tolist()
    assert first == 5 * wide + narrow
    assert second - first == wide


@pytest.mark.parametrize("engine_loop", LOOPS)
def test_requests_that_end_together_bring_their_successors_in_batch_order(engine_loop: str) -> None:
    """Of two that end in one step the first in the batch makes room for the client first: its successor goes first.

    Two may be in flight. The second shares step 2 with a decode, so both end in step 3; the fourth follows the first,
    the third the second, and a step has room for one prompt of 4 tokens.
    """
    run = simulate(
        Workload(
            arrival_s=[0.0, 0.0, 0.0, 0.0],
            prompt_tokens=[4, 3, 4, 4],
            output_tokens=[3, 2, 1, 1],
            concurrency=2,
            after_request=[-1, -1, 1, 0],
            think_s=[0.0, 0.0, 0.0, 0.0],
        ),
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.0),
            num_blocks=50,
            policy="vllm-v1",
            limits=SchedulerLimits(max_num_batched_tokens=4),
        ),
        **on(simulate, engine_loop),
    )
    assert run.records.finish_ps.tolist() == [step * 10**10 for step in (3, 3, 5, 4)]
