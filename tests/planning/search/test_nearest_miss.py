"""The nearest miss of a search without an answer, and the changes with which the SLO is met."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from quick_plans import quick

from capacity.base.errors import DoesNotFit
from capacity.planning.records import Plan
from capacity.report.tables import render

ONE_ENGINE: dict[str, Any] = {"tensor_parallel_sizes": (1,), "num_prompts": 300}


def remedy_for(plan: Plan, name: str) -> Any:
    """Return the new value of a keyword among the remedies of a plan."""
    (value,) = [remedy.change[name] for remedy in plan.remedies if name in remedy.change]
    return value


def test_too_few_gpus_name_the_gpus_with_which_the_slo_is_met() -> None:
    asked = {**ONE_ENGINE, "request_rate": 300.0}
    plan = quick(**asked, max_gpus=1)
    assert plan.nearest is not None
    assert (plan.nearest.num_gpus, plan.nearest.trial.met) == (1, False)
    assert plan.nearest.predicted is not None
    assert plan.nearest.predicted.ratio < plan.nearest.trial.ratio
    most = remedy_for(plan, "max_gpus")
    wider = quick(**asked, max_gpus=most)
    assert wider.best is not None
    assert wider.best.num_gpus == most
    assert not quick(**asked, max_gpus=most - 1).ranked


def test_a_budget_that_is_too_small_names_the_budget_that_suffices() -> None:
    asked = {**ONE_ENGINE, "request_rate": 300.0, "objective": "cost", "price": "2.345"}
    plan = quick(**asked, budget=2.5)
    budget = remedy_for(plan, "budget")
    wider = quick(**asked, budget=budget)
    assert wider.best is not None
    assert wider.best.cost is not None
    assert wider.best.cost.usd_per_hour == pytest.approx(budget, abs=0.01)


def test_the_request_rate_of_the_nearest_deployment_meets_the_slo() -> None:
    asked = {**ONE_ENGINE, "max_gpus": 1}
    rate = remedy_for(quick(**asked, request_rate=300.0), "request_rate")
    assert 1 < rate < 300
    assert quick(**asked, request_rate=rate).ranked
    assert not quick(**asked, request_rate=1.1 * rate).ranked


def test_a_miss_due_to_confidence_alone_names_the_confidence_that_is_met() -> None:
    asked = {"tensor_parallel_sizes": (1,), "max_gpus": 1, "request_rate": 5.0}
    limit_ms = 1e3 * _ttft_s(quick(**asked, slo="ttft:p95:10s", confidence=0.7))
    plan = quick(**asked, slo=f"ttft:p95:{limit_ms:.1f}ms", confidence=0.95)
    confidence = remedy_for(plan, "confidence")
    assert 0.5 <= confidence < 0.95
    assert quick(**asked, slo=f"ttft:p95:{limit_ms:.1f}ms", confidence=confidence).ranked


def _ttft_s(plan: Plan) -> float:
    assert plan.best is not None
    (level,) = plan.best.trial.levels
    assert level.value_s is not None
    return level.value_s


def test_an_slo_below_the_empty_engine_names_the_limit_that_is_met() -> None:
    asked = {"tensor_parallel_sizes": (1,), "max_gpus": 2, "request_rate": 5.0}
    plan = quick(**asked, slo="ttft:p95:1ms tpot:p95:30ms")
    slo = remedy_for(plan, "slo")
    assert slo.split()[1] == "tpot:p95:30ms"
    assert len(plan.remedies) == 1
    assert quick(**asked, slo=slo).ranked
    assert plan.nearest is not None
    assert plan.nearest.reason is not None
    assert "an empty engine needs" in plan.nearest.reason


def test_one_replica_above_max_gpus_names_the_gpus_that_suffice() -> None:
    asked = {"model": "llama-3.1-70b", "tensor_parallel_sizes": (4,), "request_rate": 1.0}
    plan = quick(**asked, max_gpus=2, slo="ttft:p95:5s")
    assert plan.nearest is None
    assert remedy_for(plan, "max_gpus") == 4


def test_a_model_that_does_not_fit_names_gpus_on_which_it_fits() -> None:
    asked: dict[str, Any] = {"model": "llama-3.1-70b", "tensor_parallel_sizes": (1,), "max_gpus": 4}
    with pytest.raises(DoesNotFit, match=r"too little\. The same engine fits on mi325x-256gb") as raised:
        quick(**asked)
    assert raised.value.needed_bytes > raised.value.usable_bytes > 0
    assert quick(**asked, gpus="mi325x", request_rate=0.5, slo="ttft:p95:5s").ranked


def test_text_html_and_json_show_the_same_nearest_miss() -> None:
    plan = quick(**ONE_ENGINE, request_rate=300.0, max_gpus=1)
    assert plan.nearest is not None
    record = plan.to_dict()
    assert record["nearest"]["label"] == plan.nearest.label
    assert record["remedies"][0]["change"] == plan.remedies[0].change
    for form in ("table", "html"):
        shown = unescape(" ".join(render(plan, form).split()))
        assert f"Nearest: {plan.nearest.label}" in shown
        assert f"with --max-gpus {remedy_for(plan, 'max_gpus')}: " in shown
        assert "ms as predicted, " in shown


def test_a_plan_with_an_answer_has_no_nearest_miss() -> None:
    plan = quick()
    assert plan.ranked
    assert (plan.nearest, plan.remedies) == (None, ())
