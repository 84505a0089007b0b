"""What parallelism costs: bubbles and traffic by hand, and as simulated pipelines have them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.step.expert_load import distinct_experts
from capacity.techniques.scaling import (
    all_reduce_bytes_per_token,
    expert_imbalance,
    pipeline_bubble_fraction,
    pipeline_idle_fraction,
)
from capacity.workload import Workload


def test_bubbles_by_hand() -> None:
    """GPipe: 4 stages and 12 micro-batches idle 3/15; one micro-batch leaves 3 of 4 stages idle at a time."""
    assert pipeline_bubble_fraction(4, 12) == pytest.approx(0.2)
    assert pipeline_bubble_fraction(4, 1) == 0.75
    assert pipeline_bubble_fraction(1, 5) == 0


def test_idle_stages_by_hand() -> None:
    """Two micro-batches going round four stages leave two of them empty; four or more leave none."""
    assert pipeline_idle_fraction(4, 2) == 0.5
    assert pipeline_idle_fraction(4, 4) == pipeline_idle_fraction(4, 9) == pipeline_idle_fraction(1, 1) == 0


@pytest.mark.parametrize(("stages", "chunks"), [(1, 3), (2, 1), (4, 1), (4, 12), (8, 5)])
def test_the_simulators_pipeline_has_the_bubbles_of_the_formula(stages: int, chunks: int) -> None:
    """One prompt in m equal chunks through p stages ends after (m + p - 1)/p steps: work over that is 1 - bubble."""
    result = simulate(
        Workload(arrival_s=np.zeros(1), prompt_tokens=np.array([64 * chunks]), output_tokens=np.array([1])),
        EngineSetup(
            step_times=AffineStepTimes(1.0, 0.0),
            num_blocks=10_000,
            policy="vllm-v1",
            limits=SchedulerLimits(max_num_batched_tokens=64, max_num_seqs=4, pipeline_stages=stages),
        ),
    )
    assert result.steps == chunks
    worked = chunks / stages
    assert result.summary.duration == pytest.approx((chunks + stages - 1) / stages)
    assert worked / result.summary.duration == pytest.approx(1 - pipeline_bubble_fraction(stages, chunks))


@pytest.mark.parametrize(("stages", "requests"), [(4, 1), (4, 2), (4, 4), (2, 6)])
def test_the_simulators_decode_idles_as_the_formula_says(stages: int, requests: int) -> None:
    """Requests that decode alone in their micro-batch: each stage works requests/p of the time, at most all of it."""
    outputs = 400
    result = simulate(
        Workload(
            arrival_s=np.zeros(requests),
            prompt_tokens=np.full(requests, 8),
            output_tokens=np.full(requests, outputs),
        ),
        EngineSetup(
            step_times=AffineStepTimes(1.0, 0.0),
            num_blocks=10_000,
            policy="vllm-v1",
            limits=SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=8, pipeline_stages=stages),
        ),
    )
    idle = pipeline_idle_fraction(stages, requests)
    busy = result.steps / stages / result.summary.duration
    assert busy == pytest.approx(1 - idle, rel=0.02)


def test_all_reduce_traffic_by_hand() -> None:
    """Llama-70B, 8 ranks: 80 layers x 2 x 2 x 7/8 x 8192 values x 2 B = 4.6 MB a token and rank."""
    assert all_reduce_bytes_per_token(8192, 80, 8) == 80 * 2 * 2 * 7 / 8 * 8192 * 2
    assert all_reduce_bytes_per_token(8192, 80, 1) == 0


@given(st.integers(1, 10_000), st.sampled_from([1, 2, 8, 64]))
def test_experts_even_out_with_the_batch(tokens: int, ranks: int) -> None:
    imbalance = expert_imbalance(256, 8, tokens, ranks)
    assert 1 <= imbalance <= ranks
    assert expert_imbalance(256, 8, 64 * tokens, ranks) <= imbalance
    assert 8 - 1e-9 <= distinct_experts(256, 8, tokens) <= 256


def test_bad_parallelism_is_refused_in_one_line() -> None:
    for stages, batches in ((0, 1), (1, 0)):
        with pytest.raises(InvalidInput):
            pipeline_bubble_fraction(stages, batches)
        with pytest.raises(InvalidInput):
            pipeline_idle_fraction(stages, batches)
    with pytest.raises(InvalidInput):
        all_reduce_bytes_per_token(8192, 80, 0)
    with pytest.raises(InvalidInput):
        expert_imbalance(8, 9, 10, 2)
