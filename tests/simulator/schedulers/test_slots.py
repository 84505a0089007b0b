"""Slots: an M/M/1/K queue."""

from __future__ import annotations

import numpy as np
import pytest
from step_models import FunctionStepTimes

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.workload import Workload

ONE_SERVER = SchedulerLimits(max_num_seqs=1)


def test_a_full_queue_turns_requests_away() -> None:
    """M/M/1/K loses (1-ρ) ρ^K / (1 - ρ^(K+1)) of its customers; here K = 3 and ρ = 0.8."""
    count, load, places = 30_000, 0.8, 3
    rng = np.random.default_rng(5)
    ones = np.ones(count, dtype=np.int64)
    arrivals = np.cumsum(rng.exponential(1 / load, count))
    result = simulate(
        Workload(arrival_s=arrivals, prompt_tokens=ones, output_tokens=ones),
        EngineSetup(
            step_times=FunctionStepTimes(lambda _: float(rng.exponential(1.0))),
            num_blocks=4,
            policy="slots",
            policy_options={"max_waiting": places - 1},
            limits=ONE_SERVER,
        ),
    )
    expected = (1 - load) * load**places / (1 - load ** (places + 1))
    assert result.rejected / count == pytest.approx(
        expected, abs=4 * (expected * (1 - expected) / count * 3) ** 0.5
    )
    assert result.summary.failed == result.rejected
