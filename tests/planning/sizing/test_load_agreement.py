"""Verbs that are asked about one load agree: N users, a day, overload, and two deployments, one of them too small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from long_forms import mostly_slow

import capacity
from capacity.answers.served import serve_load as served_load
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Traffic, build
from capacity.planning.sizing.replicas_needed import replicas_needed
from capacity.pool.resolve import resolve
from capacity.report.replicas import replicas_text
from capacity.simulator.verdict import STABLE_LOAD

pytestmark = pytest.mark.ci  # many seconds

MODEL = "llama-3.1-8b"
PRICED: dict[str, Any] = {"price_tier": "on-demand"}
CHAT: dict[str, Any] = {"use_case": "chat", "users": 2000}
RATE = 2000 / 30  # requests/s of these users, who think for 30 s
LENGTHS: dict[str, Any] = {"input_len": 1024, "output_len": 256, "random_range_ratio": 0.0}
VARIED: dict[str, Any] = LENGTHS | {"random_range_ratio": 0.5}
SLO = ("ttft:p95:500ms", "tpot:p95:80ms")
AS_IT_IS: dict[str, Any] = {  # the space of a plan that has one engine for each GPU
    "tensor_parallel_sizes": 1,
    "quantizations": "default",
    "kv_cache_dtypes": "auto",
    "speculators": "none",
    "serving": "aggregated",
    "max_num_batched_tokens": "default",
}


def needed_by_cost(gpu: str, **asked: Any) -> Any:
    bill = capacity.cost(MODEL, gpu=gpu, **PRICED, **asked)
    assert bill.needed is not None
    return bill.needed.needed


@pytest.mark.parametrize("concurrency", [50, 200, 600])
def test_a_closed_loop_has_the_same_requests_in_every_verb(concurrency: int) -> None:
    """Ten requests for each in flight, at least 1,000, so that throughput, TTFT, cost and replicas are equal."""
    loop: dict[str, Any] = {**VARIED, "output_len": 64, "concurrency": concurrency}
    asked: dict[str, Any] = {"gpu": "h100", **loop, "slo": ("ttft:p95:60s", "tpot:p95:1s"), **PRICED}
    run, bill = capacity.simulate(MODEL, **asked), capacity.cost(MODEL, **asked)
    estimate = capacity.estimate(MODEL, **{name: asked[name] for name in asked.keys() - {"slo"}})
    side = {"model": MODEL, "pools": [{"gpu": "h100"}], "traffic": loop, "cost": PRICED}
    diff = capacity.diff(side, {**side, "pools": [{"gpu": "h200"}]})
    sides = capacity.compare_deployments([side, side], slo=asked["slo"]).sides
    space = {name: asked[name] for name in asked.keys() - {"gpu"}}
    plan = capacity.plan(MODEL, gpus="h100", **AS_IT_IS, **space, alternatives=False, replications=3).best

    requests = max(1000, 10 * concurrency)
    assert run.verdict is not None
    steady, whole = run.verdict.steady, estimate.whole_run
    assert steady is not None
    assert whole is not None
    assert (len(run.run.records), whole.num_prompts, diff.requests) == (requests,) * 3
    for rate in (
        bill.served.requests_per_s,
        estimate.requests_per_s.value,
        diff.first_outcome.requests_per_s,
    ):
        assert rate == pytest.approx(steady.requests_per_s, rel=1e-9)
    assert bill.served.usd_per_million_output_tokens == estimate.cost.usd_per_million_output_tokens
    assert bill.levels == run.slos
    printed = run.to_dict()
    assert whole.ttft_s * 1e3 == pytest.approx(printed["mean_ttft_ms"], rel=1e-9)
    assert diff.first_outcome.ttft_p95_s * 1e3 == pytest.approx(printed["p95_ttft_ms"], rel=1e-9)
    assert sides[0].served_per_s == pytest.approx(
        printed["request_throughput"], rel=0.02
    )  # of several samples
    assert plan is not None
    assert plan.candidate.replicas == 1
    assert sides[0].needed == bill.needed.within_slo
    assert bill.needed.within_slo.requests_per_s_per_replica == pytest.approx(
        plan.trial.requests_per_s, rel=1e-9
    )


def carries(gpu: str, replicas: int, rate: float, **asked: Any) -> bool:
    """Whether so many replicas carry a rate within the service levels, by the curve."""
    asked = {"replications": 1, "rates": (rate,)} | asked
    highest = capacity.curve(MODEL, gpu=gpu, replicas=replicas, **asked).highest
    assert highest is not None
    return highest.at_confidence >= rate


@pytest.fixture(scope="module")
def users_of_chat() -> Any:
    return needed_by_cost("h100", **CHAT)


def test_users_need_the_same_replicas_and_bill_in_cost_plan_and_estimate(users_of_chat: Any) -> None:
    replicas, bill = users_of_chat.replicas, users_of_chat.usd_per_month
    assert replicas > 1
    plan = capacity.plan(MODEL, gpus="h100", **AS_IT_IS, **CHAT, **PRICED).ranked[0]
    assert plan.cost is not None
    assert (plan.candidate.replicas, plan.cost.usd_per_month) == (replicas, bill)
    row = capacity.compare_gpus(MODEL, gpus=("h100",), tensor_parallel_size=1, **CHAT, **PRICED).rows[0]
    assert (row.replicas, row.usd_per_month, row.verdict) == (replicas, bill, "stable")
    own = replicas_needed(resolve(MODEL, Pool(gpu="h100")), build(Traffic, CHAT))
    assert own is not None
    assert own.needed is not None
    assert own.needed.replicas == replicas
    estimated = capacity.estimate(MODEL, gpu="h100", **CHAT, **PRICED).replicas_needed
    assert estimated is not None
    assert estimated.needed is not None
    assert (estimated.needed.replicas, estimated.needed.usd_per_month) == (replicas, bill)


@pytest.mark.slow
def test_users_are_served_by_replicas_needed_in_simulate_cost_and_curve(users_of_chat: Any) -> None:
    """Within the service levels at the planner's confidence; one replica less is not."""
    replicas = users_of_chat.replicas
    run = capacity.simulate(MODEL, gpu="h100", replicas=replicas, num_prompts=5000, **CHAT)
    assert run.verdict is not None
    assert run.verdict.verdict == "stable"
    assert all(level.met for level in run.slos)
    assert capacity.cost(MODEL, gpu="h100", replicas=replicas, **CHAT, **PRICED).serves
    for count, enough in ((replicas, True), (replicas - 1, False)):
        assert carries("h100", count, RATE, use_case="chat", num_prompts=5000) == enough


def test_overload_is_one_verdict_in_estimate_simulate_cost_curve_and_plan() -> None:
    one: dict[str, Any] = {"gpu": "h100"}
    estimate = capacity.estimate(MODEL, **one, **CHAT, **PRICED)
    run = capacity.simulate(MODEL, **one, **CHAT, **PRICED)
    bill = capacity.cost(MODEL, **one, **CHAT, **PRICED)
    assert run.verdict is not None
    assert {estimate.verdict, run.verdict.verdict, bill.verdict} == {"overloaded"}
    for cost in (estimate.cost, run.cost):
        assert cost is not None
        assert cost.usd_per_request == bill.full.usd_per_request
    assert not bill.serves
    assert bill.served is not None
    point = capacity.curve(
        MODEL, **one, use_case="chat", rates=(RATE,), slo="ttft:p99:450ms", replications=1
    ).points[0]
    assert not point.met
    for served in (estimate.requests_per_s.value, bill.served.requests_per_s, point.requests_per_s):
        assert served < RATE / 2
    assert not capacity.plan(MODEL, gpus="h100", max_gpus=1, **AS_IT_IS, **CHAT, **PRICED).ranked


ONE_CAPACITY = [(model, rate) for rate in (4.0, 100.0) for model in ("llama-3.1-70b", "qwen3-30b-a3b")]


@pytest.mark.parametrize(("model", "rate"), mostly_slow(ONE_CAPACITY, ONE_CAPACITY[1:3]))
def test_a_load_has_one_capacity_and_one_full_load_price_on_every_surface(model: str, rate: float) -> None:
    """A feasible load and an overload; none is served at a price below that of full load."""
    pool: dict[str, Any] = {"gpu": "h100", "tensor_parallel_size": 4 if model == "llama-3.1-70b" else 1}
    traffic: dict[str, Any] = {**VARIED, "request_rate": rate}
    asked = {**pool, **traffic, **PRICED}
    deployment = {"model": model, "pools": [pool], "traffic": traffic, "cost": PRICED}
    bill = capacity.cost(model, **asked)
    estimate, run = capacity.estimate(model, **asked), capacity.simulate(model, **asked)
    point = capacity.curve(model, **pool, **VARIED, **PRICED, rates=(rate,)).points[0]
    diff = capacity.diff(deployment, deployment)
    outcomes = [
        capacity.advise(model, **asked).base,
        capacity.tornado(model, **asked).base,
        diff.first_outcome,
        diff.second_outcome,
    ]
    full = bill.full
    assert run.verdict is not None
    assert bill.needed is not None
    assert bill.needed.stable is not None
    assert run.verdict.capacity_requests_per_s == full.requests_per_s
    assert bill.needed.stable.requests_per_s_per_replica == full.requests_per_s
    assert f"of the capacity of {full.requests_per_s:.3g} requests/s" in str(estimate.verdict_reason)
    assert bill.verdict_reason == estimate.verdict_reason == run.verdict.reason
    assert capacity.cost(model, **pool, **VARIED, **PRICED).full == full  # without a load

    overloaded = rate > full.requests_per_s
    assert (bill.verdict == "overloaded") == overloaded
    assert (bill.served == full) == overloaded
    assert bill.served is not None
    for cost in (estimate.cost, run.cost, point.cost):
        assert cost is not None
        assert cost.requests_per_s == min(rate, full.requests_per_s)
        assert cost.usd_per_million_output_tokens == pytest.approx(
            bill.served.usd_per_million_output_tokens, rel=1e-12
        )
    assert point.requests_per_s == bill.served.requests_per_s
    for each in outcomes:
        assert each.requests_per_s == bill.served.requests_per_s
        assert each.usd_per_request_full == pytest.approx(full.usd_per_request, rel=1e-12)
        assert each.usd_per_request_served == pytest.approx(bill.served.usd_per_request, rel=1e-12)


def test_the_replicas_needed_follow_from_the_capacity_of_the_verdict() -> None:
    """They are offered at most the stable part of it, and so many times one replica's is theirs."""
    asked: dict[str, Any] = {"gpu": "h100", **VARIED, **PRICED, "request_rate": 60.0}
    one = capacity.cost(MODEL, **asked)
    assert one.needed is not None
    assert one.needed.stable is not None
    count = one.needed.stable.replicas
    for replicas in (count - 1, count):
        bill = capacity.cost(MODEL, **asked, replicas=replicas)
        assert bill.full.requests_per_s == pytest.approx(replicas * one.full.requests_per_s)
        assert bill.utilization is not None
        assert (bill.utilization <= STABLE_LOAD) == (replicas == count) == (bill.verdict == "stable")


def test_a_run_that_is_lengthened_states_the_capacity_of_the_first() -> None:
    """Requests stay 8 s: 1,000 of them are too few to tell, and more have other lengths."""
    load: dict[str, Any] = {"input_len": 200, "output_len": 1000, "request_rate": 14.0}
    run = capacity.simulate(MODEL, gpu="h200", **load).verdict
    assert run is not None
    assert run.verdict == "too short to tell"
    longer = served_load(resolve(MODEL, Pool(gpu="h200")), build(Traffic, load), slots=64)
    bill = capacity.cost(MODEL, gpu="h200", **load, **PRICED)
    assert longer.num_prompts > 1000
    assert longer.verdict.verdict == bill.verdict == "stable"
    assert longer.verdict.capacity_requests_per_s == bill.full.requests_per_s == run.capacity_requests_per_s
    assert f"of the capacity of {bill.full.requests_per_s:.3g} requests/s" in str(bill.verdict_reason)


def test_a_backlog_of_repeated_prefixes_is_not_dealt_alike_to_four_replicas() -> None:
    """Few requests are sent many times: a router in turn gave each replica the same ones each time."""
    asked: dict[str, Any] = {"gpu": "h100", "input_len": 500, "output_len": 100, "num_prompts": 200, **PRICED}
    one, four = (capacity.cost(MODEL, **asked, random_prefix_len=32, replicas=count) for count in (1, 4))
    assert four.full.requests_per_s == pytest.approx(4 * one.full.requests_per_s, rel=0.06)


def test_a_bill_of_a_fast_day_is_of_a_run_that_is_long_enough() -> None:
    """5,000 requests at the peak of 80/s are 62 s, too few for requests that stay 8 s."""
    bill = capacity.cost(
        "llama-3.1-70b",
        gpu="h100",
        tensor_parallel_size=4,
        replicas=11,
        **DAY,
        **PRICED,
    )
    assert bill.verdict == "stable"


@pytest.mark.slow
def test_two_deployments_of_which_one_cannot_carry_the_load_are_compared_at_the_load() -> None:
    """One L40S carries less than 15 requests/s: it is compared with as many as carry them."""
    load: dict[str, Any] = {**LENGTHS, "request_rate": 15.0}
    a, b = (capacity.cost(MODEL, gpu=gpu, slo=SLO, **load, **PRICED) for gpu in ("h100", "l40s"))
    assert (a.verdict, b.verdict) == ("stable", "overloaded")
    for gpu, bill in (("h100", a), ("l40s", b)):
        assert capacity.estimate(MODEL, gpu=gpu, **load).verdict == bill.verdict
        run = capacity.simulate(MODEL, gpu=gpu, **load).verdict
        assert run is not None
        assert run.verdict == bill.verdict
    assert a.needed is not None
    assert b.needed is not None
    assert a.needed.needed is not None
    assert b.needed.needed is not None
    bills = {"h100-sxm-80gb": a.needed.needed, "l40s-48gb": b.needed.needed}
    compared = capacity.compare_gpus(
        MODEL, gpus=("h100", "l40s"), tensor_parallel_size=1, slo=SLO, order="price", **load, **PRICED
    )
    plan = capacity.plan(MODEL, gpus="h100,l40s", slo=SLO, **AS_IT_IS, **load, **PRICED)
    ranked = {each.candidate.pool.gpu: each for each in plan.ranked if each.best_of_its_kind}
    for row in compared.rows:
        needed = bills[row.gpu]
        assert (row.replicas, row.usd_per_month) == (needed.replicas, needed.usd_per_month)
        assert ranked[row.gpu].candidate.replicas == needed.replicas
        assert carries(row.gpu, needed.replicas, 15.0, slo=SLO, **LENGTHS)
    cheapest = min(bills, key=lambda gpu: bills[gpu].usd_per_month)
    assert compared.rows[0].gpu == plan.ranked[0].candidate.pool.gpu == cheapest


POOLS: dict[
    str, tuple[dict[str, Any], float]
] = {  # deployments whose replicas share a load far better than one
    "llama-3.1-8b": ({"gpu": "l40s"}, 15.0),
    "llama-3.1-70b": ({"gpu": "h100", "tensor_parallel_size": 4}, 20.0),
}


def test_compared_deployments_need_the_replicas_and_bill_of_plan_and_cost() -> None:
    for (model, (pool, rate)), users in zip(POOLS.items(), (None, 400), strict=True):
        load = {"use_case": "chat", "users": users} if users else {**LENGTHS, "request_rate": rate}
        sides = [
            {"model": model, "pools": [each], "traffic": load, "cost": PRICED}
            for each in (pool, {**pool, "gpu": "h200"})
        ]
        found = capacity.compare_deployments(sides, slo=SLO)
        sizes = {"tensor_parallel_sizes": pool.get("tensor_parallel_size", 1)}
        for side, each in zip(found.sides, sides, strict=True):
            gpu = each["pools"][0]["gpu"]
            bill = capacity.cost(model, **each["pools"][0], **load, **PRICED, slo=SLO)
            assert side.needed is not None
            assert bill.needed is not None
            assert side.needed == bill.needed.within_slo
            plan = capacity.plan(model, gpus=gpu, slo=SLO, **(AS_IT_IS | sizes), **load, **PRICED).ranked[0]
            assert plan.cost is not None
            assert plan.candidate.replicas == side.needed.replicas
            assert plan.cost.usd_per_month == side.needed.usd_per_month
            full = {**each["pools"][0], "replicas": side.needed.replicas}
            whole = capacity.cost(model, **full, **load, **PRICED, slo=SLO)
            assert side.utilization == pytest.approx(whole.utilization)


@pytest.fixture(scope="module")
def half_busy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a trace: half an hour at 1 request/s, then half an hour at 5/s."""
    rng = np.random.default_rng(3)
    arrival_s = np.concatenate((np.arange(0, 1800, 1.0), np.arange(1800, 3600, 0.2)))
    lines = [
        f"{second:.3f},{prompt},{output}"
        for second, prompt, output in zip(
            arrival_s,
            rng.integers(400, 1600, len(arrival_s)),
            rng.integers(60, 200, len(arrival_s)),
            strict=True,
        )
    ]
    path = tmp_path_factory.mktemp("traces") / "half-busy.csv"
    path.write_text("\n".join(("arrival_s,prompt_tokens,output_tokens", *lines, "")))
    return str(path)


DIURNAL: dict[str, Any] = {
    "input_len": 500, "output_len": 60, "arrivals": "diurnal", "request_rate": 0.5, "day_length_s": 7200.0,
    "day_peak_to_mean": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("kind", mostly_slow(["trace", "diurnal"], ["diurnal"]))
def test_every_verb_answers_for_the_same_window_of_a_long_traffic(half_busy: str, kind: str) -> None:
    """Service levels are judged, and deployments compared, in the busy part of it."""
    traffic = {"trace": half_busy} if kind == "trace" else DIURNAL
    space: dict[str, Any] = {
        "gpus": "h100",
        "slo": SLO,
        "replications": 1,
        **{name: value for name, value in AS_IT_IS.items() if name != "serving"},
    }
    plan = capacity.plan(MODEL, **space, **traffic, **PRICED, serving="aggregated", alternatives=False)
    window = plan.busiest_window
    assert window is not None
    middle_s = {"trace": (1800, 3600), "diurnal": (1800, 5400)}[kind]
    assert middle_s[0] <= window.start_s < window.end_s <= middle_s[1] + 1

    fleet = capacity.fleet(MODEL, **space, **traffic, **PRICED, max_pools=1)
    assert (fleet.slo_window, fleet.busiest_window) == (plan.slo_window, window)
    assert plan.best is not None
    assert fleet.best is not None
    assert fleet.best.num_gpus == plan.best.num_gpus
    needed = replicas_needed(
        resolve(MODEL, Pool(gpu="h100")), build(Traffic, traffic), slo=SLO, replications=1
    )
    assert needed is not None
    assert needed.needed is not None
    assert needed.needed.replicas == plan.best.candidate.replicas
    assert needed.judged_in == f"the busiest 15 min ({window.text})"

    one: dict[str, Any] = {"gpu": "h100", "replicas": plan.best.candidate.replicas, **traffic}
    tornado = capacity.tornado(MODEL, **one)
    pool = {"gpu": "h100", "replicas": one["replicas"]}
    deployed = [
        {"model": MODEL, "pools": [each], "traffic": traffic} for each in (pool, pool | {"gpu": "h200"})
    ]
    diff = capacity.diff(*deployed)
    run = capacity.simulate(MODEL, **one, slo=SLO)
    advice = capacity.advise(MODEL, **one)
    assert {each.busiest_window for each in (tornado, diff, advice)} == {window}
    assert advice.base == tornado.base == diff.first_outcome
    assert diff.requests == window.requests
    assert run.verdict is not None
    assert window.label in run.verdict.reason
    bill = capacity.cost(MODEL, **one, slo=SLO, **PRICED)
    assert (bill.levels, bill.slo_window) == (run.slos, run.slo_window)
    assert bill.needed is not None
    assert bill.needed.judged_in is not None


DAY: dict[str, Any] = {"arrivals": "diurnal", "day_peak_to_mean": 2.0, "request_rate": 40.0, **LENGTHS}
PEAK = 80.0  # requests/s of this day's busiest minutes


@pytest.fixture(scope="module")
def bill_of_a_day() -> Any:
    return capacity.cost(MODEL, gpu="h100", slo=SLO, **DAY, **PRICED)


def test_a_day_is_its_busiest_part_in_simulate_cost_plan_and_curve(bill_of_a_day: Any) -> None:
    """None of them takes the night, or the mean, for the day."""
    run = capacity.simulate(MODEL, gpu="h100", **DAY)
    assert run.verdict is not None
    assert run.verdict.offered_requests_per_s == pytest.approx(PEAK, rel=0.03)
    assert (bill_of_a_day.verdict, bill_of_a_day.verdict_reason) == (run.verdict.verdict, run.verdict.reason)
    assert bill_of_a_day.verdict == "overloaded"
    plan = capacity.plan(MODEL, gpus="h100", slo=SLO, **AS_IT_IS, **DAY, **PRICED)
    assert plan.requests_per_s == pytest.approx(PEAK, rel=0.03)
    curve = capacity.curve(MODEL, gpu="h100", rates=(PEAK,), **DAY)
    for name in (run.workload, plan.workload, curve.workload):
        assert "(80 requests/s; mean 40/s)" in name
    assert any(
        "mean rate of the whole traffic is 0.50 times the rate of this part" in note
        for note in curve.warnings
    )


def test_a_day_needs_the_same_replicas_in_cost_and_plan_and_the_curve_carries_its_peak(
    bill_of_a_day: Any,
) -> None:
    needed = bill_of_a_day.needed
    assert needed.requests_per_s == 40.0
    assert needed.busiest_requests_per_s == pytest.approx(PEAK, rel=0.03)
    assert "for 40 requests/s (80" in replicas_text(needed)
    plan = capacity.plan(MODEL, gpus="h100", slo=SLO, **AS_IT_IS, **DAY, **PRICED).ranked[0]
    assert plan.candidate.replicas == needed.within_slo.replicas
    assert plan.cost is not None
    assert plan.cost.usd_per_month == needed.within_slo.usd_per_month
    assert carries("h100", needed.within_slo.replicas, PEAK, slo=SLO, **DAY)
    for replicas, overloaded in ((needed.stable.replicas, False), (needed.stable.replicas - 1, True)):
        verdict = capacity.simulate(MODEL, gpu="h100", replicas=replicas, **DAY).verdict
        assert verdict is not None
        assert (verdict.load_fraction > STABLE_LOAD) == overloaded


def test_estimate_refuses_arrivals_that_vary_and_curve_refuses_users() -> None:
    """Closed forms know no day, and a curve has rates of its own: neither answers as if it had read them."""
    with pytest.raises(InvalidInput, match="arrivals"):
        capacity.estimate(MODEL, gpu="h100", **DAY)
    with pytest.raises(InvalidInput, match=r"users has no effect .* `curve` uses --rates"):
        capacity.curve(MODEL, gpu="h100", use_case="chat", users=2000)
