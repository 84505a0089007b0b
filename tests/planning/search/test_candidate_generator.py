"""The survey: limits on GPUs and money, and the routers that are tried."""

from __future__ import annotations

import pytest
from brute_force import look_at_everything
from quick_plans import PLAIN, quick

from capacity.base.errors import UnknownName
from capacity.deployment import Cost, Traffic
from capacity.model import load_model
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.evaluation_context import EvaluationContext
from capacity.planning.evaluation.resampling import resample_traffic
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.search.candidate_generator import CandidateGenerator
from capacity.planning.search.plan_request import Market, parsed_slos
from capacity.planning.space import Search


def test_a_limit_on_gpus_is_named_as_such() -> None:
    answer = quick(request_rate=3000.0, max_gpus=1, tensor_parallel_sizes=(1,), num_prompts=3000)
    assert not answer.ranked
    assert answer.misses[0].slo == "capacity" or answer.misses[0].slo.startswith("ttft")
    assert set(answer.reasons) <= {"limit", "slo"}


def test_a_budget_is_kept_or_named() -> None:
    rich = quick(objective="latency", latency_tolerance=0.02, price="2", budget=6.5, max_gpus=64)
    assert rich.best is not None
    assert rich.best.cost is not None
    assert rich.best.cost.usd_per_hour == 6.0  # three of the GPUs that the money would buy
    poor = quick(objective="cost", price="2", budget=1.0, request_rate=200.0)
    assert not poor.ranked
    assert set(poor.reasons) == {"limit"}
    (miss,) = poor.misses
    assert "--budget 1" in miss.best
    assert (miss.slo, miss.limit) == ("capacity", "--budget")
    assert "--max-gpus" not in miss.best
    assert all("--max-gpus" not in rejection.reason for rejection in poor.rejected)
    few = quick(objective="cost", price="2", budget=100.0, max_gpus=1, request_rate=3000.0, num_prompts=3000)
    reasons = [rejection.reason for rejection in few.rejected if rejection.kind == "limit"]
    assert reasons
    assert all("--max-gpus 1" in reason and "--budget" not in reason for reason in reasons)


def test_max_gpus_bounds_both_sides_of_a_disaggregated_deployment() -> None:
    answer = quick(serving="disaggregated", max_gpus=3)
    assert answer.best is not None
    assert answer.best.num_gpus <= 3
    refused = quick(serving="disaggregated", max_gpus=1)
    assert not refused.ranked
    assert refused.misses[0].slo == "capacity"
    assert "prefill and 1 decode replicas" in refused.misses[0].best


def test_routers_are_an_axis_and_prefix_aware_comes_with_shared_text() -> None:
    named = quick(routers="least-outstanding", request_rate=100.0, tensor_parallel_sizes=(1,))
    assert named.best is not None
    assert named.best.candidate.router == "least-outstanding"
    assert "least-outstanding" in named.best.candidate.label
    assert not any("routers" in text for text in named.not_searched)
    alone = quick(routers="least-outstanding", request_rate=5.0, tensor_parallel_sizes=(1,))
    assert alone.best is not None
    assert (alone.best.replicas, alone.best.router) == (1, "round-robin")
    search = Search(gpus="h100", tensor_parallel_sizes=(1,), max_gpus=4, **PLAIN)
    traffic = Traffic(request_rate=40.0, input_len=200, output_len=60, num_prompts=100)
    for changes, routers in (
        ({}, {"round-robin"}),
        ({"random_prefix_len": 2000}, {"round-robin", "prefix-aware"}),
    ):
        workloads = resample_traffic(traffic.model_copy(update=changes), None, 1)
        context = EvaluationContext(
            model=load_model("llama-3.1-8b"), workloads=workloads, goal=Goal(slos=parsed_slos("ttft:p95:9s"))
        )
        market = Market.look_up(search, Cost(price="2"), [])
        generator = CandidateGenerator(
            context=context, search=search, load=Load.average(workloads), market=market
        )
        found = look_at_everything(generator)
        assert {option.router for option in found.options} == routers
    with pytest.raises(UnknownName, match="router"):
        quick(routers="fastest", request_rate=100.0)
