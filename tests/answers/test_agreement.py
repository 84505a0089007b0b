"""The closed forms and the simulator ask one step model: where both apply they must agree."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.step.closed_form import closed_loop_times

CASES = [
    ("llama-3.1-8b", "h100", 1, 1024, 128, 16),
    ("llama-3.1-8b", "h100", 1, 4096, 64, 32),
    ("llama-3.1-70b", "h100", 4, 1024, 256, 32),
    ("mixtral-8x7b", "h100", 2, 500, 500, 128),
    ("deepseek-v3", "h200", 8, 1000, 300, 64),
]


@pytest.mark.parametrize(("model", "gpu", "tp", "input_len", "output_len", "concurrency"), CASES)
def test_a_closed_loop_agrees_with_its_simulation(
    model: str, gpu: str, tp: int, input_len: int, output_len: int, concurrency: int
) -> None:
    """Throughput to 8 %: the simulated run also has a start and an end, 1/12 of it each at less than full load.

    TPOT to 20 %: of the time that requests wait for each other's prefills, the simulator counts to TTFT what falls
    before the first token, the formula all of it to TPOT.
    """
    pool: dict[str, Any] = {"gpu": gpu, "tensor_parallel_size": tp}
    load = {"input_len": input_len, "output_len": output_len, "concurrency": concurrency}
    resolved = resolve(model, Pool(**pool))
    formula = closed_loop_times(
        resolved.step_model,
        resolved.limits_from(),
        concurrency,
        input_len=input_len,
        output_len=output_len,
    )
    run = capacity.simulate(
        model, **pool, **load, random_range_ratio=0.1, num_prompts=12 * concurrency
    ).to_dict()
    assert formula.requests_per_s == pytest.approx(run["request_throughput"], rel=0.08)
    assert formula.tpot_s is not None
    assert formula.tpot_s * 1e3 == pytest.approx(run["mean_tpot_ms"], rel=0.2)


def test_one_request_takes_what_its_steps_take() -> None:
    """Alone, a request's simulated life is the formula's: one prefill, then decode steps at a growing context."""
    pool = {"gpu": "h200", "input_len": 3000, "output_len": 200}
    formula = capacity.estimate("qwen3-32b", **pool, batch_size=1)
    run = capacity.simulate("qwen3-32b", **pool, num_prompts=1).to_dict()
    assert formula.tpot_s is not None
    assert run["mean_tpot_ms"] == pytest.approx(formula.tpot_s.value * 1e3, rel=0.002)
