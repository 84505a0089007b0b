"""Clients: a closed loop keeps its concurrency; arrivals beyond the clock are refused."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.client import OpenLoopClient
from capacity.simulator.instants import NEVER
from capacity.step import AffineStepTimes
from capacity.workload import Workload


def test_closed_loop_keeps_its_concurrency() -> None:
    """C requests in flight at all times: with equal ones, N / C generations of the same length."""
    ones = np.full(40, 1)
    workload = Workload(
        arrival_s=0.0 * ones, prompt_tokens=100 * ones, output_tokens=20 * ones, concurrency=4
    )
    result = simulate(
        workload, EngineSetup(step_times=AffineStepTimes(0.006, 2e-5), num_blocks=2600, policy="vllm-v1")
    )
    generation = (0.006 + 400 * 2e-5) + 19 * (0.006 + 4 * 2e-5)
    assert result.summary.duration == pytest.approx(10 * generation, rel=1e-12)
    assert result.mean_batch_size == 4


def test_arrivals_beyond_the_clock_are_refused_in_one_line() -> None:
    late = Workload(arrival_s=[0.0, 1e7], prompt_tokens=[10, 10], output_tokens=[2, 2])
    with pytest.raises(InvalidInput, match="arrives after 1e"):
        simulate(late, EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=10))


def test_requests_that_are_taken_all_at_once_are_no_longer_due() -> None:
    client = OpenLoopClient(Workload(arrival_s=[0.5, 2.0], prompt_tokens=[10, 10], output_tokens=[2, 2]))
    assert client.due_ps == 5 * 10**11
    assert list(client.take_all()) == [5 * 10**11, 2 * 10**12]
    assert client.due_ps == NEVER
