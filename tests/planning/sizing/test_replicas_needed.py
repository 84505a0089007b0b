"""How many replicas serve a load: the planner's number within service levels, a stable one without."""

from __future__ import annotations

import math
from typing import Any

import pytest

import capacity
from capacity.answers.records import ReplicasNeeded
from capacity.deployment import Cost, Pool, Traffic, build
from capacity.hardware.pricing import find_price_for_cost
from capacity.planning.sizing.replicas_needed import replicas_needed
from capacity.pool.resolve import resolve
from capacity.report.replicas import replicas_text
from capacity.simulator.verdict import STABLE_LOAD

LOAD: dict[str, Any] = {"input_len": 1024, "output_len": 256, "random_range_ratio": 0.0}
SLO = ("ttft:p95:500ms", "tpot:p95:50ms")


def ask(model: str, gpu: str, tp: int, *, slo: tuple[str, ...] = (), **traffic: Any) -> ReplicasNeeded:
    resolved = resolve(model, Pool(gpu=gpu, tensor_parallel_size=tp))
    price = find_price_for_cost(resolved.profile.name, build(Cost, {"price_tier": "on-demand"}))
    answer = replicas_needed(resolved, build(Traffic, traffic), slo=slo, price=price)
    assert answer is not None
    return answer


@pytest.mark.parametrize(("gpu", "rate"), [("h100", 70.0), ("l40s", 20.0)])
def test_replicas_needed_with_slo_equals_plan(gpu: str, rate: float) -> None:
    """`plan` of the same GPU, tensor-parallel size and formats rents as many replicas, at the same bill."""
    needed = ask("llama-3.1-8b", gpu, 1, slo=SLO, request_rate=rate, **LOAD).within_slo
    plan = capacity.plan(
        "llama-3.1-8b",
        slo=SLO,
        gpus=gpu,
        tensor_parallel_sizes=1,
        quantizations="default",
        kv_cache_dtypes="auto",
        speculators="none",
        serving="aggregated",
        max_num_batched_tokens="default",
        request_rate=rate,
        price_tier="on-demand",
        alternatives=False,
        **LOAD,
    )
    assert needed is not None
    best = plan.ranked[0].candidate
    assert (best.num_gpus, best.pool.tensor_parallel_size) == (needed.num_gpus, 1)
    assert plan.ranked[0].cost is not None
    assert plan.ranked[0].cost.usd_per_hour == pytest.approx(needed.usd_per_hour)


def test_replicas_needed_without_slo_are_stable_and_one_less_is_not() -> None:
    load = {**LOAD, "request_rate": 75.0}
    stable = ask("llama-3.1-8b", "h100", 1, **load).stable
    assert stable is not None
    assert stable.replicas > 1
    assert 75.0 / stable.replicas <= STABLE_LOAD * stable.requests_per_s_per_replica
    for replicas in (stable.replicas, stable.replicas - 1):
        run = capacity.simulate(
            "llama-3.1-8b", gpu="h100", replicas=replicas, num_prompts=4000, **load
        ).to_dict()
        assert (run["evidence"]["load_fraction"] <= STABLE_LOAD) == (replicas == stable.replicas)


def test_replicas_needed_where_no_engine_meets_slo_says_why_and_gives_stable_number() -> None:
    """The use case's p99 TTFT of 450 ms is less than an empty engine of 4 H100 needs."""
    answer = ask("llama-3.3-70b", "h100", 4, use_case="chat", users=2000)
    assert answer.within_slo is None
    assert answer.needed is None
    assert "an empty engine needs" in str(answer.reason)
    assert answer.stable is not None
    assert answer.stable.replicas == math.ceil(
        2000 / 30 / (STABLE_LOAD * answer.stable.requests_per_s_per_replica)
    )
    text = replicas_text(answer)
    assert "no number of replicas meets ttft:p99:450ms and tpot:p99:40ms" in text
    assert f"{answer.stable.replicas} replicas" in text


@pytest.mark.ci
def test_replicas_needed_at_high_rate_covers_more_than_the_start_of_the_load() -> None:
    """1,000 requests at 667/s end before one of them is answered: so few replicas would be overloaded at once."""
    lax = ("ttft:p99:2s", "tpot:p99:100ms")
    answer = ask("llama-3.1-8b", "l40s", 1, slo=lax, use_case="chat", users=20_000)
    assert answer.stable is not None
    assert answer.within_slo is not None
    assert answer.within_slo.replicas >= answer.stable.replicas


def test_replicas_needed_of_closed_loop_without_slo_is_none() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100"))
    assert replicas_needed(resolved, build(Traffic, {**LOAD, "concurrency": 64})) is None
