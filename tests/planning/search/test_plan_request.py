"""What a search is asked: what would turn everything down is refused at once, with the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Cost, Traffic
from capacity.hardware import profile_names
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.search.plan_request import Market, PlanRequest, gpu_names
from capacity.planning.space import Search
from capacity.workload import parse_slos

PRICED = Cost(price="h100=4,l4=0.8")


def asked(
    *, slo: str = "ttft:p95:1s", cost: Cost = PRICED, traffic: Any = None, **search: Any
) -> PlanRequest:
    return PlanRequest.build(
        "llama-3.2-1b",
        Search(**{"gpus": ("h100", "l4"), "replications": 2} | search),
        Traffic(
            **{"request_rate": 5.0, "num_prompts": 8, "input_len": 50, "output_len": 5} | (traffic or {})
        ),
        cost,
        slo=slo,
        workload=None,
        profiles=None,
        download=False,
    )


def test_every_draw_of_the_traffic_is_there_and_prices_are_those_of_the_space() -> None:
    question = asked()
    assert [len(workload) for workload in question.workloads] == [8, 8]
    assert question.workloads[0] != question.workloads[1]
    assert set(question.market().quotes) == {"h100-sxm-80gb", "l4-24gb"}
    narrow = question.search.model_copy(update={"gpus": ("l4",)})
    assert set(replace(question, search=narrow).market().quotes) == {"l4-24gb"}


def test_an_arena_is_of_all_requests_unless_it_is_of_a_part() -> None:
    question, other = asked(), Goal(slos=parse_slos("ttft:p50:1s"))
    context, part = question.context(), question.workloads[:1]
    assert (context.workloads, context.goal, context.model) == (
        question.workloads,
        question.goal,
        question.model,
    )
    context = replace(question, workloads=part, goal=other).context()
    assert (context.workloads, context.goal) == (part, other)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"slo": ""}, "no service level: give --use-case, or --slo"),
        ({"slo": "tpot:p95:50ms"}, "no limit on ttft or e2el"),
        ({"cost": Cost()}, "the objective is cost, but there is no price"),
        ({"cost": Cost(), "objective": "gpus", "budget": 9.0}, "--budget needs a price"),
        (
            {"draft": "llama-3.2-1b", "speculators": ("ngram",)},
            "--draft needs --speculators draft-model",
        ),
        ({"speculators": ("draft-model",)}, "needs a draft model: add --draft"),
    ],
)
def test_refusals_name_the_way_out(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        asked(**changes)


def test_a_closed_loop_limits_its_queue_by_itself() -> None:
    assert asked(slo="tpot:p95:50ms", traffic={"request_rate": None, "concurrency": 4}).goal.slos


def test_names_are_looked_up_and_each_gpu_stands_once() -> None:
    assert gpu_names(Search(gpus="h100,h100-sxm-80gb,a100"), []) == ("h100-sxm-80gb", "a100-sxm-80gb")
    every = gpu_names(Search(gpus="all"), [])
    assert every == tuple(name for name in profile_names() if "@" not in name)
    with pytest.raises(UnknownName):
        gpu_names(Search(gpus="h1000"), [])


@pytest.mark.parametrize(
    ("objective", "budget", "needed"), [("cost", None, True), ("gpus", 5.0, True), ("gpus", None, False)]
)
def test_a_price_is_missed_only_where_it_is_needed(
    objective: str, budget: float | None, needed: bool
) -> None:
    search = Search(gpus="h100,a100", objective=objective, budget=budget)
    market = Market.look_up(search, Cost(price="h100=2.5"), [])
    quote = market.quotes["h100-sxm-80gb"]
    assert quote is not None
    assert quote.usd_per_gpu_hour == 2.5
    assert market.quotes["a100-sxm-80gb"] is None
    assert set(market.unpriced) == ({"a100-sxm-80gb"} if needed else set())


def test_a_price_of_too_few_providers_does_not_stand_beside_a_market() -> None:
    """An A10G is sold by AWS alone: it is left out where others have a market price, and has its own where none has."""
    beside = Market.look_up(Search(gpus=("h100", "a10g")), Cost(price_tier="on-demand"), [])
    assert beside.quotes["a10g-24gb"] is None
    assert "known only from AWS" in beside.unpriced["a10g-24gb"]
    assert beside.quotes["h100-sxm-80gb"] is not None
    alone = Market.look_up(Search(gpus=("a10g",)), Cost(price_tier="on-demand"), [])
    assert alone.unpriced == {}
    quote = alone.quotes["a10g-24gb"]
    assert quote is not None
    assert quote.caution is not None
    assert quote.caution in quote.quote
    picked = Market.look_up(
        Search(gpus=("h100", "a10g")), Cost(price_tier="on-demand", price_provider="AWS"), []
    )
    assert picked.unpriced == {}  # whoever names a provider means its price


@pytest.mark.parametrize("verb", ["plan", "cost", "estimate", "simulate", "fleet"])
def test_an_invalid_slo_is_reported_before_a_missing_price(verb: str) -> None:
    gpu = {"gpus": ("gb10",)} if verb in ("plan", "fleet") else {"gpu": "gb10"}
    tier = {} if verb in ("plan", "fleet") else {"price_tier": "on-demand"}
    with pytest.raises(InvalidInput, match="'5parsecs' is not a time"):
        getattr(capacity, verb)(
            "llama-3.1-8b",
            slo=["ttft:p95:5parsecs"],
            request_rate=1.0,
            input_len=9,
            output_len=9,
            **gpu,
            **tier,
        )
