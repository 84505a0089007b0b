"""The core's kinds of steps are Python's, number by number."""

from __future__ import annotations

import numpy as np
import pytest
from core_alone import CoreAlone
from hypothesis import given
from hypothesis import strategies as st

from capacity.simulator.step_work import MAX_PREFILLS, StepWork
from capacity.step import AffineStepTimes, StepShape

TIMES = AffineStepTimes(0.01, 1e-4)


def worked(steps: np.ndarray) -> StepWork:
    work = StepWork(TIMES)
    for *fields, duration_ps, held_ps in steps.tolist():
        work.step(StepShape(*fields), duration_ps)
        work.held_ps += held_ps
    return work


def assert_equal(core: StepWork, python: StepWork) -> None:
    assert list(core.kinds()) == list(python.kinds())
    assert core.held_ps == python.held_ps
    assert (core._stride, core._prefill_steps) == (python._stride, python._prefill_steps)


def random_steps(seed: int, count: int, prefills: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    steps = rng.integers(0, 2000, (count, len(StepShape._fields) + 2))
    steps[:, 1] *= rng.random(count) < prefills
    steps[:, 9] = 2.0 ** (rng.random(count) * 40)
    steps[:, -2] = rng.integers(1, 10**12, count)
    return steps


@given(st.integers(0, 2**32), st.integers(0, 400), st.sampled_from([0.0, 0.1, 1.0]))
def test_kinds_of_random_steps(core_alone: CoreAlone, seed: int, count: int, prefills: float) -> None:
    steps = random_steps(seed, count, prefills)
    assert_equal(core_alone.work(TIMES, steps), worked(steps))


@pytest.mark.parametrize("count", [MAX_PREFILLS, MAX_PREFILLS + 1, 2 * MAX_PREFILLS + 1, 20_000])
def test_sampled_prefills(core_alone: CoreAlone, count: int) -> None:
    steps = random_steps(count, count, 0.9)
    assert_equal(core_alone.work(TIMES, steps), worked(steps))


def test_counting_goes_on_in_python(core_alone: CoreAlone) -> None:
    steps = random_steps(3, 3000, 0.5)
    core, python = core_alone.work(TIMES, steps), worked(steps)
    for work in (core, python):
        for index in range(3000):
            work.step(StepShape(prefill_tokens=index % 2, decode_sequences=index), 1000 + index)
    assert_equal(core, python)
