"""Accepted drafts: how many tokens a step yields."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from engine_runs import run_engine

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import DrawnSpeculation, SchedulerLimits, Speculation
from capacity.step import AffineStepTimes
from capacity.workload import Workload


def test_speculation_emits_one_and_the_accepted() -> None:
    """k = 3, all accepted: every decode step brings four tokens; none accepted: one."""
    rng = random.Random(0)
    workload = Workload(
        arrival_s=np.zeros(1), prompt_tokens=np.array([rng.randint(5, 9)]), output_tokens=np.array([41])
    )
    for accepted, steps in ((3, 1 + 10), (0, 1 + 40)):
        speculation = Speculation(3, (accepted,), lookahead_slots=3)
        result = simulate(
            workload,
            EngineSetup(
                step_times=AffineStepTimes(0.01, 0.001),
                num_blocks=50,
                policy="vllm-v1",
                speculation=speculation,
            ),
        )
        assert result.steps == steps
        assert result.summary.total_output_tokens == 41


def test_drawn_acceptance_has_its_mean() -> None:
    """i.i.d. acceptance a, k drafts: (1 - a^(k+1)) / (1 - a) tokens a step; the draw ignores the rest of the batch."""
    rate, drafts = 0.7, 4
    speculation = DrawnSpeculation((rate,) * drafts, lookahead_slots=drafts, seed=3)
    workload = Workload(arrival_s=np.zeros(20), prompt_tokens=np.full(20, 5), output_tokens=np.full(20, 2000))
    options: dict[str, Any] = {
        "step_times": AffineStepTimes(0.01, 0.001),
        "num_blocks": 4000,
        "policy": "vllm-v1",
        "speculation": speculation,
    }
    together = run_engine(workload, **options)
    steps = round(together.mean_batch_size * together.steps)
    expected = (1 - rate ** (drafts + 1)) / (1 - rate)
    assert (20 * 2000) / steps == pytest.approx(expected, rel=0.02)
    alone = run_engine(workload, **options, limits=SchedulerLimits(max_num_seqs=1))
    assert round(alone.mean_batch_size * alone.steps) == pytest.approx(steps, abs=25)
    with pytest.raises(InvalidInput, match="0 to 1"):
        DrawnSpeculation((1.2,), lookahead_slots=1)
