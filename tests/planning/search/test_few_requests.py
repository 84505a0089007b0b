"""Where few requests decide: more replicas that do worse are found, fewer that do are taken, and it is said."""

from __future__ import annotations

from typing import Any

import pytest
from quick_fleets import MODEL, PRICES, SPACE, TRAFFIC

from capacity import plan
from capacity.deployment import Cost, Traffic
from capacity.planning.evaluation.evaluation_context import EvaluationRequest
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.records import Plan
from capacity.planning.search.few_requests import few_requests_level, is_uneven, uneven_note
from capacity.planning.search.plan_request import PlanRequest
from capacity.planning.space import Candidate, Search
from capacity.workload import parse_slos

LONG_TAILED = TRAFFIC | {"request_rate": 60.0, "input_len_cv": 2.0}


def goal(slo: str, **changes: Any) -> Goal:
    return Goal(slos=parse_slos(slo), **changes)


@pytest.mark.parametrize(
    ("slo", "requests", "beyond", "enough"),
    [
        ("ttft:p99:1s", 300, 3, 1000),
        ("ttft:p99:1s tpot:p90:1s", 1000, 10, 1000),
        ("ttft:p95:1s", 60, 3, 200),
        ("ttft:p99.9:1s", 500, 1, 10000),
        ("ttft:1s", 300, 3, 1000),
    ],
)
def test_a_level_hangs_on_those_that_may_be_beyond_it(
    slo: str, requests: int, beyond: int, enough: int
) -> None:
    what = few_requests_level(goal(slo), requests)
    assert what is not None
    assert (what.beyond, what.enough) == (beyond, enough)


def test_gaps_are_many() -> None:
    assert few_requests_level(goal("itl:p99:1s"), 10) is None


def test_uneven_is_what_more_replicas_miss() -> None:
    assert is_uneven({3: True, 4: False, 5: True})
    assert not is_uneven({3: False, 4: True, 5: True})
    assert not is_uneven({3: False, 4: False})
    assert not is_uneven({})


def test_the_note_says_which_do_and_what_is_safe() -> None:
    what = few_requests_level(goal("ttft:p99:1s"), 300)
    assert what is not None
    text = uneven_note(what, {8: False, 9: True, 10: False, 11: False, 12: True}, "h100 TP1")
    assert "the slowest 3 of 300 requests" in text
    assert "9 x h100 TP1 meet it, 10 and 11 do not" in text
    assert text.endswith("Use at least 1,000 requests, or choose 12 replicas.")
    assert uneven_note(what, {1: True, 2: False}, "h100").endswith(
        "1 x h100 meets it, 2 do not. Use at least 1,000 requests."
    )


def planned(requests: int, draws: int, router: str, *, slo: str = "ttft:p99:600ms", seed: int = 0) -> Plan:
    space = SPACE | {"gpus": "h100", "replications": draws, "alternatives": False, "max_gpus": 12}
    return plan(
        MODEL, **LONG_TAILED | space | {"num_prompts": requests, "seed": seed}, routers=router, slo=slo, price=PRICES
    )  # fmt: skip


def do(
    found: Plan, requests: int, draws: int, most: int, *, slo: str = "ttft:p99:600ms", seed: int = 0
) -> list[int]:
    """The numbers of replicas that meet it, each simulated."""
    assert found.best is not None
    asked = PlanRequest.build(
        MODEL, Search.model_validate(SPACE | {"replications": draws}),
        Traffic(**LONG_TAILED | {"num_prompts": requests, "seed": seed}), Cost(price=PRICES),
        slo=slo, workload=None, profiles=None, download=False,
    )  # fmt: skip
    context, best = asked.context(), found.best.candidate
    counts = range(1, most + 1)
    tried = [Candidate(pool=best.pool, replicas=count, router=best.router) for count in counts]
    trials = [context.run(EvaluationRequest(candidate=each, confidence=0.5)) for each in tried]
    return [count for count, trial in zip(counts, trials, strict=True) if trial.met]


def test_fewer_that_do_are_found_below_more_that_do_not() -> None:
    """A 99th percentile of 300 requests, met by 3 replicas and missed by 4: bisection alone ends at 5."""
    found = planned(300, 1, "least-outstanding", slo="ttft:p99:650ms", seed=1)
    assert found.best is not None
    assert do(found, 300, 1, 12, slo="ttft:p99:650ms", seed=1) == [3, *range(5, 13)]
    assert found.best.candidate.replicas == 3
    assert "3 x h100-sxm-80gb TP1 meet it, 4 do not" in found.warnings[0]
    assert "or choose 5 replicas" in found.warnings[0]


def test_what_one_more_breaks_is_said() -> None:
    found = planned(100, 1, "round-robin", slo="ttft:p99:620ms", seed=1)
    assert found.best is not None
    assert do(found, 100, 1, 6, slo="ttft:p99:620ms", seed=1) == [3, 5, 6]
    assert found.best.candidate.replicas == 3
    assert "3 x h100-sxm-80gb TP1 meet it, 4 do not" in found.warnings[0]


def test_many_requests_are_taken_at_their_word() -> None:
    assert not any("depends on only" in text for text in planned(1000, 1, "least-outstanding").warnings)
