"""Fleets: one pool and a threshold without end are a plan, brute force finds none that is cheaper, bills add up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from quick_fleets import MODEL, PRICES, SLO, SPACE, TRAFFIC, quick_fleet

from capacity import plan, simulate
from capacity.answers.engine_setup import make_workload
from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import Pool, Traffic
from capacity.model import load_model
from capacity.planning.evaluation.evaluation_context import EvaluationContext, EvaluationRequest
from capacity.planning.evaluation.slo_evaluation import Goal
from capacity.planning.fleets.fleet import fleet
from capacity.planning.fleets.fleet_pools import Span, part_of
from capacity.planning.fleets.fleet_records import FleetPlan, deployment_of_fleet
from capacity.planning.space import Candidate
from capacity.report.tables import render
from capacity.workload import Workload, parse_slos

USD = {"l4": 0.8, "h100": 4.0}
MOST = 12  # replicas that brute force tries


@pytest.fixture(scope="module")
def found() -> FleetPlan:
    return quick_fleet(split_at=(500, 1500, 10**9))


def test_one_pool_is_the_plan(found: FleetPlan) -> None:
    plans = [
        plan(
            MODEL, **TRAFFIC | SPACE, slo=SLO, price=PRICES, routers=router, serving="aggregated", alternatives=False
        ).best
        for router in ("least-outstanding", "round-robin")
    ]  # fmt: skip
    uniform = min((each for each in plans if each is not None), key=lambda each: each.objective)
    one = found.one_pool
    assert one is not None
    (pool,) = one.pools
    assert (pool.pool, pool.replicas, one.objective) == (uniform.pool, uniform.replicas, uniform.objective)
    assert pool.levels == uniform.trial.levels


def test_a_threshold_beyond_all_requests_is_one_pool(found: FleetPlan) -> None:
    endless = next(layout for layout in found.layouts if layout.threshold_tokens == 10**9)
    one = found.one_pool
    assert one is not None
    assert (endless.pools, endless.objective) == (one.pools, one.objective)


def fleet_of_any_format(**changes: Any) -> FleetPlan:
    """Formats and drafts are not asked for by name."""
    space = {name: value for name, value in SPACE.items() if name not in ("quantizations", "speculators")}
    asked = TRAFFIC | space | {"price": PRICES, "max_pools": 1, "spare_replicas": 1} | changes
    return fleet(MODEL, **asked)


def test_fleet_lists_what_its_pools_would_save_under_conditions() -> None:
    """Drafts that are not measured for this model: never rented, listed with their bill, reserve included."""
    found = fleet_of_any_format(gpus="h100", request_rate=30.0, slo="ttft:p95:600ms tpot:p95:8ms")
    assert found.best is not None
    (pool,) = found.best.pools
    assert pool.pool.speculator is None
    ((label, several),) = found.conditional.items()
    assert label == pool.label
    for each in several:
        assert each.answer.trial.met
        assert each.answer.objective == USD["h100"] * (each.answer.replicas + 1) < (pool.usd_per_hour or 0)
    text = " ".join(render(found, "table").split())
    saved = (pool.usd_per_hour or 0) - several[0].answer.objective
    listed = text[text.index("Cheaper, but only under the conditions") :]
    source = several[0].conditions[0].split()[-1]
    assert f"all requests, with eagle3 drafts with the acceptance rate measured on {source}" in listed
    assert f"saves ${saved:,.2f}/h" in listed


def test_fleet_without_an_answer_lists_what_one_pool_could_be() -> None:
    found = fleet_of_any_format(
        gpus="l4", request_rate=10.0, slo="ttft:p95:2s tpot:p95:32ms", speculators="none"
    )
    assert found.best is None
    assert [each.conditions for each in found.conditional["all"]] == [("int4 weights",)]
    document = found.to_dict()
    assert document["conditional"]["all"][0]["answer"]["objective"] > 0
    assert "all requests, with int4 weights: $" in render(found, "html")


def cheapest(workloads: Any, routers: tuple[str, ...]) -> float:
    """By trying each GPU with 1, 2, ... replicas behind each router."""
    context = EvaluationContext(model=load_model(MODEL), workloads=workloads, goal=Goal(slos=parse_slos(SLO)))
    bills = []
    for gpu, usd in USD.items():
        for replicas in range(1, MOST + 1):
            pool = Pool(
                gpu=context.resolve_pool(Pool(gpu=gpu, max_model_len=16384)).profile.name, max_model_len=16384
            )
            tried = [Candidate(pool=pool, replicas=replicas, router=router) for router in routers]
            if any(
                context.run(EvaluationRequest(candidate=each, confidence=0.5, give_up=False)).met
                for each in tried
            ):
                bills.append(usd * replicas)
                break
    return min(bills, default=float("inf"))


def parts(workloads: Any, *thresholds: int) -> list[list[Workload]]:
    return [part_of(workloads, Span(*each), "prompt") for each in pairwise((None, *thresholds, None))]


def test_brute_force_over_thresholds_engines_and_replicas_agrees() -> None:
    found = quick_fleet(split_at=(500, 1500), max_pools=3, max_model_len=16384, max_gpus=MOST, slo_of="pool")
    workloads = [make_workload(Traffic(**TRAFFIC))]
    apart, both = ("least-outstanding",), ("round-robin", "least-outstanding")
    bills = [
        sum(cheapest(part, apart if thresholds else both) for part in parts(workloads, *thresholds))
        for thresholds in ((), (500,), (1500,), (500, 1500))
    ]
    assert found.best is not None
    assert found.best.objective == pytest.approx(min(bills))
    for layout, bill in zip(found.layouts, bills, strict=True):
        assert layout.objective is None or layout.objective == pytest.approx(bill)
        assert layout.outcome == "planned" or bill >= found.best.objective - 1e-9


def test_three_pools_are_found_where_they_are_the_cheapest() -> None:
    asked: dict[str, Any] = {
        "request_rate": 80.0, "num_prompts": 300, "input_len_cv": 2.0, "slo": "ttft:p95:600ms", "time_limit_s": 0,
        "max_model_len": 30000, "price": "l4=0.4,l40s=1,h100=4", "short_gpus": "l4", "gpus": "l40s",
        "long_gpus": "h100",
    }  # fmt: skip
    thresholds = (300, 2500)
    two, three = (quick_fleet(split_at=thresholds, max_pools=most, **asked) for most in (2, 3))
    assert two.best is not None
    assert three.best is not None
    assert three.layouts[:-1] == two.layouts, "those of one and of two pools are the same"
    assert [pool.pool.gpu.partition("-")[0] for pool in three.best.pools] == ["l4", "l40s", "h100"]
    assert three.best.objective < two.best.objective
    assert three.proof is not None
    assert three.proof.met
    assert [pool.up_to_tokens for pool in three.best.pools] == [*three.best.thresholds_tokens, None]


def test_bills_and_shares_add_up(found: FleetPlan) -> None:
    for layout in found.layouts:
        if not layout.pools:
            continue
        assert sum(pool.request_share for pool in layout.pools) == pytest.approx(1)
        assert sum(pool.requests_per_s for pool in layout.pools) == pytest.approx(12.0)
        of_pools = [USD[pool.pool.gpu.partition("-")[0]] * pool.num_gpus for pool in layout.pools]
        assert layout.usd_per_hour == pytest.approx(sum(of_pools))
        assert layout.usd_per_request == pytest.approx(sum(of_pools) / 12 / 3600)


def test_the_proof_is_the_pools_together(found: FleetPlan) -> None:
    """Within a percentile, the fleet is between its pools; whatever each keeps, it keeps."""
    assert found.proof is not None
    assert found.best is not None
    assert found.proof.met
    assert found.proof.requests == 150
    for place, level in enumerate(found.proof.levels):
        of_pools = [pool.levels[place].good_fraction for pool in found.best.pools]
        shares = [pool.request_share for pool in found.best.pools]
        assert level.good_fraction == pytest.approx(float(np.dot(of_pools, shares)))


def test_the_file_of_the_best_simulates_as_it_was_planned() -> None:
    asked = TRAFFIC | {"price": PRICES}
    found = quick_fleet(split_at=(500,), short_gpus="l4", long_gpus="h100", gpus="l4", slo="ttft:p95:9s")
    two = next(layout for layout in found.layouts if layout.threshold_tokens == 500)
    kept = replace(found, layouts=(two,), router="by-prompt-length")
    file = deployment_of_fleet(kept, MODEL, asked | {"slo": "x"})
    assert [pool.route_up_to_tokens for pool in file.pools] == [500, None]
    run = simulate(file)
    assert run.cost is not None
    assert run.cost.usd_per_hour == pytest.approx(two.usd_per_hour)
    served = [replica["requests"] for replica in run.to_dict()["replicas"]]
    assert sum(served) == 150
    assert sum(served[: two.pools[0].replicas]) == round(two.pools[0].request_share * 150)


def test_a_reserve_counts_for_every_pool(found: FleetPlan) -> None:
    spared = quick_fleet(split_at=(500, 1500, 10**9), spare_replicas=1)
    for before, after in zip(found.layouts, spared.layouts, strict=True):
        if before.pools and after.pools:
            more = sum(USD[pool.pool.gpu.partition("-")[0]] for pool in before.pools)
            assert after.objective == pytest.approx(before.objective + more)
            assert [pool.spare_replicas for pool in after.pools] == [1] * len(after.pools)


def test_a_day_never_has_more_than_its_peak_and_follows_its_load() -> None:
    day = quick_fleet(split_at=(500,), peak_to_mean=2.0, request_rate=40.0).day
    assert day is not None
    rates = [hour.request_rate_per_s for hour in day.hours]
    assert (max(rates), rates[0]) == (pytest.approx(40.0), pytest.approx(0.0))
    totals = [sum(hour.replicas) for hour in day.hours]
    assert totals[12] == max(totals) > min(totals) >= 1
    assert totals[1:12] == sorted(totals[1:12])
    assert day.scaled_usd_per_day == pytest.approx(sum(hour.usd_per_hour or 0 for hour in day.hours))
    assert day.scaled_usd_per_day < (day.fixed_usd_per_day or 0)


def test_each_hour_has_the_fewest_replicas_that_do() -> None:
    """Of one pool: they meet the levels at every hour, and at the first with so many one less does not."""
    asked = {"request_rate": 60.0, "num_prompts": 300}
    found = quick_fleet(split_at=(10**9,), gpus="h100", peak_to_mean=1.6, **asked)
    assert found.day is not None
    assert found.best is not None
    (pool,) = found.best.pools
    workload = make_workload(Traffic(**TRAFFIC | asked))

    def met(replicas: int, share: float) -> bool:
        slower = [workload.set_rate(workload.request_rate_per_s * share)]
        context = EvaluationContext(
            model=load_model(MODEL), workloads=slower, goal=Goal(slos=parse_slos(SLO))
        )
        candidate = Candidate(pool=pool.pool, replicas=replicas, router=pool.router)
        return context.run(EvaluationRequest(candidate=candidate, confidence=0.5)).met

    first = {}
    for hour in found.day.hours[:12]:
        first.setdefault(hour.replicas[0], hour.request_rate_per_s / 60.0)
    assert len(first) > 1, "the day moves them"
    for hour in found.day.hours[:12]:
        assert hour.replicas[0] == pool.replicas or met(hour.replicas[0], hour.request_rate_per_s / 60.0)
    for replicas, share in first.items():
        assert replicas == 1 or not met(replicas - 1, share)


def test_a_fleet_may_be_cheaper_than_pools_that_each_keep_the_level() -> None:
    """Each pool by itself is one of the ways, so that what all keep together never costs more."""
    each, all_told = (quick_fleet(split_at=(500, 1500), slo_of=who) for who in ("pool", "fleet"))
    assert each.best is not None
    assert all_told.best is not None
    assert (all_told.best.objective or 0) <= (each.best.objective or 0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"objective": "latency"}, "not supported by fleet"),
        ({"routers": "least-kv"}, "fixed in a fleet"),
        ({"request_rate": None, "concurrency": 4}, "needs open-loop arrivals"),
        ({"split_at": (0,)}, "split_at"),
        ({"max_pools": 1, "split_at": (500,)}, "--split-at needs several pools, .*: leave it out, or"),
        ({"max_pools": 1, "long_gpus": ("h100",)}, "--long-gpus needs several pools, .*: give --gpus, or"),
        ({"slo": ()}, "no service level"),
    ],
)
def test_refusals_name_the_way_out(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        quick_fleet(**changes)


def test_a_pool_that_cannot_hold_the_model_is_no_answer_and_a_fleet_that_cannot_raises() -> None:
    with pytest.raises(DoesNotFit):
        quick_fleet(gpus="t4", price="t4=1")
    found = quick_fleet(gpus="h100", short_gpus="t4", split_at=(1000,), price="h100=4,t4=0.5")
    assert found.layouts[1].outcome == "no answer"
    assert "short requests: no engine in the search space can run this model" in (
        found.layouts[1].reason or ""
    )
