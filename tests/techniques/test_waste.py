"""What a simulated engine wastes: by hand, and as the closed form says."""

from __future__ import annotations

import numpy as np
import pytest

from capacity.simulator import EngineSetup, simulate
from capacity.simulator.schedulers import SchedulerLimits
from capacity.step import AffineStepTimes
from capacity.techniques.waste import Waste
from capacity.workload import Workload


def at_once(prompts: np.ndarray, outputs: np.ndarray) -> Workload:
    return Workload(arrival_s=np.zeros(len(prompts)), prompt_tokens=prompts, output_tokens=outputs)


def static_waste(prompts: list[int], outputs: list[int], *, batch: int, window_s: float = 0.0) -> Waste:
    waste = Waste()
    simulate(
        at_once(np.asarray(prompts), np.asarray(outputs)),
        EngineSetup(
            step_times=AffineStepTimes(1.0, 0.0),
            num_blocks=1000,
            block_size=1,
            policy="static",
            policy_options={"batching_window_s": window_s},
            limits=SchedulerLimits(max_num_seqs=batch, max_model_len=100),
            enable_prefix_caching=False,
        ),
        observer=waste,
    )
    return waste


def test_the_waste_of_a_static_batch_by_hand() -> None:
    """Prompts of 4 and 2, outputs of 4 and 2, steps of 1 s: 2 of 8 prompt tokens are padding. Decode takes 3 steps of
    2 rows, of which the second request needs one: 2 of 6 wasted. Each holds 4 + 4 - 1 = 7 slots from the first step's
    end to the last one's: 3 s x 14; stored are 4 and 2, then 5 (the other has ended), then 6."""
    waste = static_waste([4, 2], [4, 2], batch=2)
    assert waste.padding == pytest.approx(2 / 8)
    assert waste.slots == pytest.approx(2 / 6)
    assert waste.kv == pytest.approx(1 - (6 + 5 + 6) / (3 * 14))


def test_the_simulators_static_waste_is_the_closed_form() -> None:
    """One batch of everyone: slots by the outputs after the first (which prefill makes), padding by the prompts."""
    rng = np.random.default_rng(4)
    prompts, outputs = rng.integers(1, 9, 8), rng.integers(2, 9, 8)
    waste = static_waste(prompts.tolist(), outputs.tolist(), batch=8)
    assert waste.slots == pytest.approx(1 - (outputs - 1).mean() / (outputs.max() - 1))
    assert waste.padding == pytest.approx(1 - prompts.mean() / prompts.max())
