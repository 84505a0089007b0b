"""The closed forms and the simulator ask one step model: where both apply they must agree."""

from __future__ import annotations

from typing import Any

import pytest
from long_forms import mostly_ci

import capacity
from capacity.deployment import DeploymentFile, Pool, Traffic
from capacity.pool.resolve import resolve
from capacity.step.closed_form import closed_loop_times

CASES = [
    ("llama-3.1-8b", "h100", 1, 1024, 128, 16),
    ("llama-3.1-8b", "h100", 1, 4096, 64, 32),
    ("llama-3.1-70b", "h100", 4, 1024, 256, 32),
    ("mixtral-8x7b", "h100", 2, 500, 500, 128),
    ("deepseek-v3", "h200", 8, 1000, 300, 64),
]


@pytest.mark.parametrize(("model", "gpu", "tp", "input_len", "output_len", "concurrency"), CASES)
def test_a_closed_loop_agrees_with_its_simulation(
    model: str, gpu: str, tp: int, input_len: int, output_len: int, concurrency: int
) -> None:
    """Throughput to 8 %: the simulated run also has a start and an end, 1/12 of it each at less than full load.

    TPOT to 20 %: of the time that requests wait for each other's prefills, the simulator counts to TTFT what falls
    before the first token, the formula all of it to TPOT.
    """
    pool: dict[str, Any] = {"gpu": gpu, "tensor_parallel_size": tp}
    load = {"input_len": input_len, "output_len": output_len, "concurrency": concurrency}
    resolved = resolve(model, Pool(**pool))
    formula = closed_loop_times(
        resolved.step_model,
        resolved.limits_from(),
        concurrency,
        input_len=input_len,
        output_len=output_len,
    )
    run = capacity.simulate(
        model, **pool, **load, random_range_ratio=0.1, num_prompts=12 * concurrency
    ).to_dict()
    assert formula.requests_per_s == pytest.approx(run["request_throughput"], rel=0.08)
    assert formula.tpot_s is not None
    assert formula.tpot_s * 1e3 == pytest.approx(run["mean_tpot_ms"], rel=0.2)


def test_one_request_takes_what_its_steps_take() -> None:
    """Alone, a request's simulated life is the formula's: one prefill, then decode steps at a growing context."""
    pool = {"gpu": "h200", "input_len": 3000, "output_len": 200, "random_range_ratio": 0.0}
    formula = capacity.estimate("qwen3-32b", **pool, batch_size=1)
    run = capacity.simulate("qwen3-32b", **pool, num_prompts=1).to_dict()
    assert formula.tpot_s is not None
    assert run["mean_tpot_ms"] == pytest.approx(formula.tpot_s.value * 1e3, rel=0.002)


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "input_len", "output_len"), [case[:5] for case in CASES if case[3] < 2000]
)
def test_the_full_load_that_prices_divide_by_is_served(
    model: str, gpu: str, tp: int, input_len: int, output_len: int
) -> None:
    """As many requests in flight as the cache holds, of lengths that differ: to 10 % what clients get of it."""
    pool: dict[str, Any] = {"gpu": gpu, "tensor_parallel_size": tp}
    resolved = resolve(model, Pool(**pool))
    most = min(resolved.concurrent_requests(input_len + output_len), resolved.max_num_seqs)
    load = {"input_len": input_len, "output_len": output_len, "concurrency": most, "random_range_ratio": 0.8}
    served = capacity.estimate(model, **pool, **load).requests_per_s.value
    del load["concurrency"]
    full = capacity.cost(model, **pool, **load, price="1").full
    assert full.requests_per_s == pytest.approx(served, rel=0.1)


def test_a_request_alone_is_the_same_as_batch_and_as_loop() -> None:
    """Which is what `quantize` says of one request: the formula, and the simulated loop of one."""
    load: dict[str, Any] = {"gpu": "h100", "input_len": 1000, "output_len": 100, "random_range_ratio": 0.0}
    batch = capacity.estimate("llama-3.1-8b", **load, batch_size=1)
    loop = capacity.estimate("llama-3.1-8b", **load, concurrency=1)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert getattr(loop, name).value == pytest.approx(getattr(batch, name).value, rel=0.02), name


DAY: dict[str, Any] = {
    "input_len": 1500,
    "output_len": 300,
    "random_range_ratio": 0.2,
    "request_rate": 10,
    "arrivals": "diurnal",
    "day_peak_to_mean": 2.0,
}
BUSIEST = "of 24 h (20 requests/s; mean 10/s)"


@pytest.fixture(scope="module")
def day_plan() -> Any:
    return capacity.plan(
        "qwen3-30b-a3b", **DAY, gpus="h100", price="h100=3.9", slo="ttft:p95:1s tpot:p95:40ms", quantizations="none",
        kv_cache_dtypes="auto", speculators="none", serving="aggregated", tensor_parallel_sizes=(1,),
        max_num_batched_tokens=(None,), data_parallel_sizes=(1,), expert_parallel=(False,), replications=1,
    )  # fmt: skip


def test_a_day_has_the_same_rates_and_verdict_in_every_answer(day_plan: Any) -> None:
    """Mean and peak rate are named alike; one engine is overloaded in its busiest minutes, whichever verb says so."""
    name, pool = "qwen3-30b-a3b", {"gpu": "h100"}
    deployment = DeploymentFile(
        schema="capacity/deployment/v1", model=name, pools=(Pool(**pool),), traffic=Traffic(**DAY)
    )
    estimate = capacity.estimate(deployment)
    run = capacity.simulate(name, **pool, **DAY)
    bill = capacity.cost(name, **pool, **DAY, price="3.9")
    curve = capacity.curve(name, **pool, **DAY, slo="ttft:p95:1s tpot:p95:40ms", rates=(5.0,), replications=1)
    assert run.verdict is not None
    assert run.verdict.verdict == "overloaded"
    assert run.verdict.offered_requests_per_s == pytest.approx(20, rel=0.05)
    assert BUSIEST in run.workload
    assert estimate.verdict == "overloaded"
    assert BUSIEST in estimate.verdict_reason
    assert any(BUSIEST in text for text in bill.warnings)
    assert BUSIEST in curve.workload
    assert BUSIEST in day_plan.workload
    assert curve.highest is not None
    assert day_plan.best is not None
    replicas = day_plan.best.replicas
    assert curve.highest.predicted < run.verdict.capacity_requests_per_s < 20
    assert replicas >= 20 / run.verdict.capacity_requests_per_s > 1


def test_a_days_plan_is_stable_where_it_is_simulated_and_billed_at_the_mean_rate(day_plan: Any) -> None:
    replicas = day_plan.best.replicas
    pool: dict[str, Any] = {"gpu": "h100", "replicas": replicas}
    run = capacity.simulate("qwen3-30b-a3b", **pool, **DAY, slo=["ttft:p95:1s tpot:p95:40ms"])
    bill = capacity.cost("qwen3-30b-a3b", **pool, **DAY, price="3.9")
    assert run.verdict is not None
    assert run.verdict.is_stable
    assert all(level.met for level in run.slos)
    assert bill.served.requests_per_s == pytest.approx(10, rel=0.01)
    assert bill.served.usd_per_million_output_tokens == pytest.approx(
        day_plan.best.cost.usd_per_million_output_tokens, rel=0.05
    )


SIDE_SLO = ("ttft:p95:500ms", "tpot:p95:15ms")
SIDE_LOADS: dict[str, dict[str, Any]] = {
    "a rate": {"request_rate": 40.0, "num_prompts": 600},
    "a closed loop": {"concurrency": 48, "num_prompts": 1000},
    "a day": {"request_rate": 20.0, "arrivals": "diurnal", "day_peak_to_mean": 2.0, "num_prompts": 1000},
}


@pytest.mark.parametrize("load", mostly_ci(SIDE_LOADS, ["a closed loop"]))
def test_a_comparison_has_the_replicas_energy_and_day_of_its_neighbours(load: str) -> None:
    """Replicas are those of `cost` and `estimate`, served rate and energy of `simulate`, the day of `curve`."""
    name, lengths = "llama-3.1-8b", {"input_len": 1024, "output_len": 256, "random_range_ratio": 0.0}
    traffic = {**lengths, **SIDE_LOADS[load]}
    side = {"model": name, "pools": [{"gpu": "h100"}], "traffic": traffic, "cost": {"price": "4"}}
    found = capacity.compare_deployments([side, {**side, "cost": {"price": "2"}}], slo=SIDE_SLO).sides[0]
    asked: dict[str, Any] = {"gpu": "h100", "price": "4", "slo": SIDE_SLO}
    bill = capacity.cost(name, **traffic, **asked)
    assert bill.needed is not None
    assert found.needed is not None
    assert found.needed == bill.needed.within_slo
    if load == "a rate":
        answer = capacity.estimate(name, **traffic, **asked).replicas_needed
        assert answer is not None
        assert found.needed == answer.within_slo
    run = capacity.simulate(name, gpu="h100", replicas=found.needed.replicas, **traffic)
    assert found.drawn is not None
    assert run.drawn_energy is not None
    assert found.served_per_s == pytest.approx(
        run.to_dict()["request_throughput"] if load == "a closed loop" else traffic["request_rate"], rel=0.05
    )
    drawn, same = found.drawn.joules_per_output_token, run.drawn_energy.joules_per_output_token
    if load != "a day":  # that run is of its busiest part
        assert drawn.value == pytest.approx(same.value, rel=0.05)
        return
    curve = capacity.curve(
        name, gpu="h100", replicas=found.needed.replicas, price="4", slo=SIDE_SLO, replications=1, **traffic,
        peak_rate=40.0, peak_to_mean=2.0,
    )  # fmt: skip
    assert curve.day is not None
    assert found.day is not None
    for hour, expected in zip(found.day.hours, curve.day.hours, strict=True):
        assert hour.request_rate_per_s == pytest.approx(expected.request_rate_per_s)
        assert abs(hour.replicas - expected.replicas) <= 1
