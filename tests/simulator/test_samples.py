"""Several samples of one prompt share its blocks."""

from __future__ import annotations

import numpy as np

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.samples import parallel_samples
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
