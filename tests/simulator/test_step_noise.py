"""Noise of steps: its table is what it says, its draws depend on three numbers, and its quantiles are a log's."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.core import library
from capacity.simulator.members import EngineLoop
from capacity.simulator.step_noise import (
    FACTORS,
    MAX_CV,
    MEASURED_CV,
    StepNoise,
    make_step_noise,
    noise_factors,
)
from capacity.step import AffineStepTimes
from capacity.workload import Workload

LOOPS: tuple[EngineLoop, ...] = ("events", "core") if library.load() is not None else ("events",)
NOISE = StepNoise(noise_factors(MEASURED_CV), seed=3)


@given(cv=st.floats(1e-6, MAX_CV))
def test_mean_and_spread_are_exact_and_no_step_goes_back(cv: float) -> None:
    factors = np.array(noise_factors(cv))
    assert len(factors) == FACTORS
    assert factors.mean() == pytest.approx(1, abs=1e-12)
    assert factors.std() == pytest.approx(cv, rel=1e-9)
    assert factors.min() > 0


@pytest.mark.parametrize(
    ("quantile", "measured", "within"),
    [
        (0.75, 1.008, 0.005),
        (0.9, 1.018, 0.005),
        (0.95, 1.028, 0.005),
        (0.99, 1.066, 0.005),
        (0.995, 1.085, 0.006),
        (0.999, 1.169, 0.02),  # three steps of 3,197 are beyond
    ],
)
def test_its_upper_quantiles_are_those_of_the_log(quantile: float, measured: float, within: float) -> None:
    """Over the median, as the log is told."""
    factors = np.array(NOISE.factors)
    over = float(np.quantile(factors, quantile) / np.median(factors))
    assert over == pytest.approx(measured, abs=within)


def test_the_draws_use_all_factors_alike_and_depend_on_engine_and_step_alone() -> None:
    million = 10**6 * 10**6
    times = np.array(
        [[NOISE.apply_noise(million, engine, step) for step in range(5000)] for engine in range(4)]
    )
    assert times.mean() / million == pytest.approx(1, abs=5 * MEASURED_CV / math.sqrt(times.size))
    assert times.std() / million == pytest.approx(MEASURED_CV, rel=0.1)
    assert np.abs(np.corrcoef(times) - np.eye(4)).max() < 5 / math.sqrt(5000)  # engines do not go together
    assert abs(np.corrcoef(times[0][1:], times[0][:-1])[0, 1]) < 5 / math.sqrt(5000)  # nor do steps
    assert NOISE.apply_noise(million, 2, 77) == times[2, 77]
    assert StepNoise(NOISE.factors, seed=4).apply_noise(million, 2, 77) != times[2, 77]


def test_a_step_takes_at_least_a_picosecond() -> None:
    assert {NOISE.apply_noise(1, 0, step) for step in range(1000)} == {1}
    half = StepNoise((0.5,) * FACTORS)
    assert [half.apply_noise(duration_ps, 0, 0) for duration_ps in (0, 1, 2, 3, 5, 7)] == [
        1,
        1,
        1,
        2,
        2,
        4,
    ]  # half to even


def test_no_noise_is_none_and_what_is_no_table_is_refused() -> None:
    assert make_step_noise(0.0) is None
    noise = make_step_noise(0.1, 7)
    assert noise is not None
    assert noise.seed == 7
    for cv in (-0.1, 0.6, math.nan):
        with pytest.raises(InvalidInput, match=r"from 0 to 0\.5"):
            make_step_noise(cv)
    for factors in ((1.0,), (0.0,) * FACTORS, (math.inf,) * FACTORS):
        with pytest.raises(InvalidInput, match="needs 4096 finite factors"):
            StepNoise(factors)


def test_steps_of_an_engine_take_their_own_time() -> None:
    """One request alone, 10 ms a step: each token comes by the factor of its engine and step."""
    workload = Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([9]), output_tokens=np.array([40]))
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 0.0), num_blocks=50, policy="vllm-v1", noise=make_step_noise(0.1, 5)
    )
    noise = setup.noise
    assert noise is not None
    steps = [noise.apply_noise(10**10, 0, step) for step in range(40)]
    for loop in LOOPS:
        result = simulate(workload, setup, engine_loop=loop)
        assert result.records.finish_ps.tolist() == [sum(steps)]
        assert result.records.first_token_ps.tolist() == steps[:1]
    quiet = simulate(workload, replace(setup, noise=None))
    assert quiet.records.finish_ps.tolist() == [40 * 10**10]
