"""Several samples of one prompt share its blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capacity.simulator import EngineSetup, SimulationResult, simulate
from capacity.simulator.samples import parallel_samples
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.workload import Workload


def test_samples_share_their_prompt() -> None:
    """Four samples of 65 prompt tokens: four full blocks of 16 are computed once, one token by each of the others."""
    workload = Workload(
        arrival_s=np.zeros(1),
        prompt_tokens=np.array([65]),
        output_tokens=np.array([4]),
        max_tokens=np.array([9]),
    )
    samples = parallel_samples(workload, 4)
    assert samples.max_tokens is not None
    assert samples.max_tokens.tolist() == [9] * 4
    result = simulate(
        samples,
        EngineSetup(step_times=AffineStepTimes(0.01, 0.001), num_blocks=50, block_size=16),
    )
    assert result.records.cached_tokens.tolist() == [0, 64, 64, 64]
    assert result.kv_utilization_peak == (4 + 4) / 50


def test_samples_that_fork_compute_their_prompt_once() -> None:
    """Four samples of 66 tokens: one prefill, five blocks; each writes to the last one, which three of them copy first.

    A step is 10 ms and 1 ms a row: the prompt 76 ms for all four, then steps of 14 ms.
    """
    workload = parallel_samples(
        Workload(
            arrival_s=np.zeros(1), prompt_tokens=np.array([66]), output_tokens=np.array([4]), concurrency=None
        ),
        4,
    )

    def run(samples: Workload, **options: object) -> SimulationResult:
        setup = EngineSetup(
            step_times=AffineStepTimes(0.01, 0.001),
            num_blocks=600,
            block_size=16,
            policy="vllm-v0",
            enable_prefix_caching=False,
            policy_options=options,
        )
        return simulate(samples, setup)

    forked, split = run(workload, forks_samples=True), run(workload)
    assert forked.records.first_token_ps * 1e-12 == pytest.approx(np.full(4, 0.076))
    assert forked.records.finish_ps * 1e-12 == pytest.approx(np.full(4, 0.076 + 3 * 0.014))
    assert forked.kv_utilization_peak * 600 == pytest.approx(4 + 4)
    assert split.records.first_token_ps * 1e-12 == pytest.approx(np.full(4, 0.01 + 4 * 0.066))
    assert split.kv_utilization_peak * 600 == pytest.approx(4 * 5)
    assert forked.readable_because is not None
    assert run(workload.select(np.array([0])), forks_samples=True).records.finish_ps[
        0
    ] * 1e-12 == pytest.approx(0.076 + 3 * 0.011)
    alone = replace(workload, sample_of=None)
    assert run(alone, forks_samples=True).readable_because is None, "nothing forks: compiled"


def test_samples_under_pressure_end_and_give_everything_back() -> None:
    """Groups that do not fit wait whole; preempted samples come back alone; more samples than sequences are split."""
    rng = np.random.default_rng(3)
    prompts = rng.integers(1, 90, 30)
    workload = Workload(
        arrival_s=np.sort(rng.random(30)), prompt_tokens=prompts, output_tokens=rng.integers(1, 60, 30)
    )
    for samples, most in ((4, 256), (4, 3), (7, 5)):
        setup = EngineSetup(
            step_times=AffineStepTimes(0.01, 0.0001),
            num_blocks=40,
            block_size=16,
            policy="vllm-v0",
            limits=SchedulerLimits(max_num_seqs=most, max_model_len=200, enable_chunked_prefill=False),
            policy_options={"forks_samples": True},
        )
        run = simulate(parallel_samples(workload, samples), setup, sample_interval_s=0.01)
        assert run.status == "complete"
        assert run.summary.completed == 30 * samples
        if most == 256:
            assert run.preemptions > 0
        assert all(sample.running or not sample.kv_used_blocks for sample in run.series)
