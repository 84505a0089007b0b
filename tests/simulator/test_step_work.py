"""Kinds of steps: kept in bounded memory, with exact times."""

from __future__ import annotations

import pytest

from capacity.simulator.step_work import MAX_PREFILLS, StepWork
from capacity.step import AffineStepTimes, StepShape


def test_many_prefills_are_sampled_and_their_time_stays_whole() -> None:
    work = StepWork(AffineStepTimes(0.01, 1e-4))
    count = 10 * MAX_PREFILLS
    for index in range(count):
        work.step(StepShape(prefill_sequences=1, prefill_tokens=1 + index), 1000 + index)
    kinds = list(work.kinds())
    assert len(kinds) <= MAX_PREFILLS
    assert sum(kind.steps for kind in kinds) == pytest.approx(count)
    assert sum(kind.busy_ps for kind in kinds) == pytest.approx(sum(range(1000, 1000 + count)))
    mean = sum(kind.steps * kind.shape.prefill_tokens for kind in kinds) / count
    assert mean == pytest.approx(count / 2, rel=0.05), "from all over the run"
