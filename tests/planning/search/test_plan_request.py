"""What a search is asked: what would turn everything down is refused at once, with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Cost, Traffic
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.search.plan_request import PlanRequest
from capacity.planning.space import Search
from capacity.workload import parse_slos

PRICED = Cost(price="h100=4,l4=0.8")


def asked(
    *, slo: str = "ttft:p95:1s", cost: Cost = PRICED, traffic: Any = None, **search: Any
) -> PlanRequest:
    return PlanRequest.of(
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
    assert set(question.market(narrow).quotes) == {"l4-24gb"}


def test_an_arena_is_of_all_requests_unless_it_is_of_a_part() -> None:
    question, other = asked(), Goal(slos=parse_slos("ttft:p50:1s"))
    part = question.workloads[:1]
    assert (question.arena().workloads, question.arena().goal) == (question.workloads, question.goal)
    assert (question.arena(part, other).workloads, question.arena(part, other).goal) == (part, other)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"slo": ""}, "no service level: give --slo"),
        ({"slo": "tpot:p95:50ms"}, "no limit on ttft or e2el"),
        ({"cost": Cost()}, "the objective is cost and there is no price"),
        ({"cost": Cost(), "objective": "gpus", "budget": 9.0}, "--budget needs a price"),
        (
            {"draft": "llama-3.2-1b", "speculators": ("ngram",)},
            "--draft changes nothing without --speculators draft-model",
        ),
        ({"speculators": ("draft-model",)}, "needs a draft model: add --draft"),
    ],
)
def test_refusals_name_the_way_out(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        asked(**changes)


def test_a_closed_loop_limits_its_queue_by_itself() -> None:
    assert asked(slo="tpot:p95:50ms", traffic={"request_rate": None, "concurrency": 4}).goal.slos
