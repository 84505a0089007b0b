"""The hunt within a family: the fewest replicas, and the least latency."""

from __future__ import annotations

import pytest
from brute_force import brute_force
from quick_plans import PLAIN, PRICES, SHORT, quick

from capacity.planning.plan import plan


@pytest.mark.parametrize("rate", [60.0, 160.0, 240.0, 320.0])
def test_the_fewest_replicas_of_a_single_engine(rate: float) -> None:
    space = {
        "gpus": "a100", "tensor_parallel_sizes": (1,), "quantizations": (None,), "kv_cache_dtypes": ("auto",),
        "max_num_batched_tokens": (None,), "max_gpus": 32, **PLAIN,
    }  # fmt: skip
    traffic = SHORT | {"request_rate": rate}
    slo = "ttft:p90:400ms tpot:p90:30ms"
    best, _, _ = brute_force("llama-3.1-8b", slo, space, traffic)
    answer = plan("llama-3.1-8b", slo=slo, price=PRICES, **space, **traffic)
    assert answer.best is not None
    assert answer.best.objective == pytest.approx(best)
    assert answer.counts.simulated <= 10


def test_latency_objective_spends_the_budget() -> None:
    answer = quick(objective="latency", max_gpus=4)
    assert answer.best is not None
    assert answer.best.num_gpus == 4
    assert answer.best.objective == pytest.approx(answer.best.trial.ratio)
