"""Static batching: a schedule by hand."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload


def test_static_batch_by_hand() -> None:
    """Window 1 s, two members: padded prompts of 8 in one step, then decodes of both until the longer one ends."""
    workload = Workload(
        arrival_s=np.array([0.0, 0.2, 0.3]),
        prompt_tokens=np.array([8, 3, 4]),
        output_tokens=np.array([2, 5, 1]),
    )
    result = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.001),
            num_blocks=100,
            policy="static",
            policy_options={"batching_window_s": 1.0},
            limits=SchedulerLimits(max_num_seqs=2),
        ),
    )
    prefill, decode = 0.01 + 16 * 0.001, 0.01 + 2 * 0.001
    start = 0.2  # the batch is full
    first = [r.first_token_s for r in result.records]
    finish = [r.finish_s for r in result.records]
    assert first[0] == first[1] == pytest.approx(start + prefill)
    assert finish[0] == pytest.approx(start + prefill + decode)
    assert finish[1] == pytest.approx(start + prefill + 4 * decode)
    assert finish[2] == pytest.approx(0.3 + 1.0 + 0.014)  # the window of the lone third
