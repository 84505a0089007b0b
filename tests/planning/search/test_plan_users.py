"""Users with think time: `plan` and `simulate` evaluate the same closed loop."""

from __future__ import annotations

from typing import Any

import pytest
from quick_plans import PLAIN

import capacity

LONG_ANSWERS: dict[str, Any] = {
    "users": 400, "think_time_s": 10.0, "input_len": 500, "output_len": 400, "num_prompts": 2_000,
}  # fmt: skip
SLO = "ttft:p95:500ms tpot:p95:12ms"
SEARCH: dict[str, Any] = {
    "gpus": "h100", "tensor_parallel_sizes": (1,), "quantizations": (None,), "max_num_batched_tokens": (None,),
    "kv_cache_dtypes": ("auto",), "objective": "gpus", "confidence": 0.5, "replications": 1, **PLAIN,
}  # fmt: skip


def test_the_answer_for_users_meets_the_slo_in_simulate_with_the_same_users() -> None:
    plan = capacity.plan("llama-3.1-8b", slo=SLO, user_loop="closed", **SEARCH, **LONG_ANSWERS)
    assert plan.best is not None
    pool = plan.best.pool

    def simulated(replicas: int) -> Any:
        return capacity.simulate(
            "llama-3.1-8b",
            gpu="h100",
            replicas=replicas,
            slo=SLO.split(),
            max_model_len=pool.max_model_len,
            user_loop="closed",
            **LONG_ANSWERS,
        )

    answer = simulated(plan.best.replicas)
    assert all(level.met for level in answer.slos)
    values = [level.value_s for level in plan.best.trial.levels]
    p95_ms = [answer.run.summary.latencies_ms[name].percentiles[95] for name in ("ttft", "tpot")]
    assert values == pytest.approx([value / 1e3 for value in p95_ms])
    assert not all(level.met for level in simulated(plan.best.replicas - 1).slos)
    records = answer.run.records
    response_s = float((records.finish_ps - records.arrival_ps).mean()) / 1e12
    assert response_s > 2
    assert plan.requests_per_s == pytest.approx(400 / (10 + response_s), rel=0.1)  # response time law


def test_users_who_wait_need_fewer_gpus_than_the_rate_without_response_time() -> None:
    waiting = capacity.plan("llama-3.1-8b", slo=SLO, user_loop="closed", **SEARCH, **LONG_ANSWERS)
    fixed = capacity.plan("llama-3.1-8b", slo=SLO, **SEARCH, **LONG_ANSWERS)
    assert waiting.best is not None
    assert fixed.best is not None
    assert waiting.best.num_gpus < fixed.best.num_gpus
    assert any("simulated as a closed loop" in note for note in waiting.warnings)


def test_users_are_planned_at_an_upper_bound_and_the_response_time_is_named() -> None:
    plan = capacity.plan("llama-3.1-8b", slo=SLO, **SEARCH, **{**LONG_ANSWERS, "num_prompts": None})
    assert plan.best is not None
    assert plan.best.predicted is not None
    (note,) = [note for note in plan.warnings if "that take no time, an upper bound" in note]
    assert (
        f"add --response-s {float(f'{plan.best.predicted.mean_e2e_s:.2g}'):g}, or --user-loop closed" in note
    )
    assert "sized for the highest request rate of these users" in str(plan)
