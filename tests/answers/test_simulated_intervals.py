"""Intervals of a simulated run: of unequal pools those of all, and of judged answers those of the steps behind them."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.deployment import DeploymentFile, Pool

LOAD: dict[str, Any] = {"input_len": 500, "output_len": 50, "request_rate": 2.0, "num_prompts": 60}


def cascade(rate: float, **pool: Any) -> capacity.Simulation:
    pools = (Pool(gpu="h100", model="llama-3.2-1b", route_escalation_rate=rate), Pool(gpu="h100", **pool))
    return capacity.simulate(
        DeploymentFile(model="llama-3.1-8b", pools=pools, traffic=LOAD, service={"router": "cascade"})
    )


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_a_judged_answer_is_as_sure_as_its_last_token(rate: float) -> None:
    found = cascade(rate)
    for name in ("mean_ttft_ms", "mean_e2el_ms", "p95_e2el_ms"):
        known = found.predicted_ms[name]
        assert known.low is not None
        assert known.high is not None
        assert known.low < known.value < known.high
    if rate == 0.0:
        first, last = (found.predicted_ms[name] for name in ("mean_ttft_ms", "mean_e2el_ms"))
        assert first == last


def test_unequal_pools_have_the_interval_of_the_least_sure() -> None:
    """In turn on a GPU that was measured and on one that was not, or on one of them alone."""
    both = DeploymentFile(
        model="llama-3.1-8b", pools=(Pool(gpu="h100"), Pool(gpu="rtx-4090", max_model_len=8192)), traffic=LOAD
    )
    found, alone = capacity.simulate(both), capacity.simulate("llama-3.1-8b", gpu="h100", **LOAD)

    def width(answer: capacity.Simulation) -> float:
        known = answer.predicted_ms["mean_tpot_ms"]
        assert known.low is not None
        assert known.high is not None
        return (known.high - known.low) / known.value

    assert width(found) > width(alone)
