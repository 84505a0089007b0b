"""A price means one thing: every verb that is asked about a deployment at a load says the same $ per token."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from long_forms import mostly_slow

import capacity
from capacity.answers.costs import ServedLoad, cost_of
from capacity.deployment import Pool
from capacity.hardware.pricing import find_price
from capacity.pool.resolve import resolve

SAME = 0.03
CENT = 0.005
PRICE = "3.00"

DEPLOYMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama-3.1-8b", {"gpu": "h100"}),
    "tensor parallel": ("llama-3.1-70b", {"gpu": "h100", "tensor_parallel_size": 4}),
    "experts": ("qwen3-30b-a3b", {"gpu": "h200"}),
    "small GPU": ("llama-3.1-8b", {"gpu": "l40s", "quantization": "fp8"}),
    "windowed": ("gpt-oss-20b", {"gpu": "h100"}),
    "another engine": ("qwen3-32b", {"gpu": "h200", "engine": "sglang"}),
}
LENGTHS = {"short answers": (1024, 128), "long answers": (300, 600)}
CASES = mostly_slow(
    product(DEPLOYMENTS, LENGTHS),
    [("dense", "long answers"), ("experts", "short answers"), ("small GPU", "long answers")],
)
CONCURRENCIES = (1, 24)
LOADS = (0.05, 0.35, 0.7)  # of full load


def prices(answer: Any) -> tuple[float, float]:
    """$ per 1M input and output tokens of an answer's cost."""
    return answer.usd_per_million_input_tokens, answer.usd_per_million_output_tokens


def question_of(name: str, lengths: str) -> tuple[str, dict[str, Any]]:
    model, pool = DEPLOYMENTS[name]
    input_len, output_len = LENGTHS[lengths]
    return model, {**pool, "price": PRICE, "input_len": input_len, "output_len": output_len}


@pytest.mark.parametrize(("name", "lengths"), CASES)
def test_at_a_rate(name: str, lengths: str) -> None:
    model, asked = question_of(name, lengths)
    full = capacity.cost(model, **asked).full.requests_per_s
    for load in LOADS:
        rate = float(f"{load * full:.3g}")
        question = {**asked, "request_rate": rate}
        bill = capacity.cost(model, **question)
        curve = capacity.curve(model, **asked, rates=(rate,), replications=1)
        said = {
            "estimate": capacity.estimate(model, **question).cost,
            "simulate": capacity.simulate(model, **question).cost,
            "a day's requests": capacity.cost(model, **asked, requests_per_day=rate * 86_400).served,
            "curve": curve.points[0].cost,
        }
        assert bill.served is not None
        assert bill.served.requests_per_s == pytest.approx(rate)
        for verb, cost in said.items():
            assert prices(cost) == pytest.approx(prices(bill.served), rel=SAME), (verb, rate)


@pytest.mark.parametrize(("name", "lengths"), CASES)
def test_in_a_closed_loop(name: str, lengths: str) -> None:
    model, asked = question_of(name, lengths)
    for concurrency in CONCURRENCIES:
        question = {**asked, "concurrency": concurrency}
        bill = capacity.cost(model, **question)
        said = {
            "estimate": capacity.estimate(model, **question).cost,
            "simulate": capacity.simulate(model, **question).cost,
        }
        for verb, cost in said.items():
            assert prices(cost) == pytest.approx(prices(bill.served), rel=SAME), (verb, concurrency)


@pytest.mark.parametrize(
    ("name", "rate"),
    mostly_slow([("dense", 6.0), ("tensor parallel", 4.0), ("experts", 8.0)], [("tensor parallel", 4.0)]),
)
def test_of_a_plan(name: str, rate: float) -> None:
    """The plan's own deployment, asked about by itself."""
    model, asked = question_of(name, "short answers")
    gpu, size = asked.pop("gpu"), asked.pop("tensor_parallel_size", 1)
    found = capacity.plan(
        model, **asked, gpus=gpu, tensor_parallel_sizes=str(size), quantizations="default", kv_cache_dtypes="auto",
        speculators="none", serving="aggregated", max_num_batched_tokens="default", max_gpus=size, request_rate=rate,
        slo=("ttft:p95:20s",), replications=1, num_prompts=600,
    )  # fmt: skip
    assert found.best is not None
    assert found.best.candidate.num_gpus == size
    bill = capacity.cost(model, **asked, gpu=gpu, tensor_parallel_size=size, request_rate=rate)
    assert prices(found.best.cost) == pytest.approx(prices(bill.served), rel=SAME)


def test_filling_and_draining_are_not_billed() -> None:
    """The bill of a load that a deployment keeps up with does not hang on how long it was simulated."""
    model, asked = question_of("dense", "long answers")
    short, long = (
        capacity.cost(model, **asked, request_rate=4.0, num_prompts=count).served for count in (150, 1500)
    )
    assert short is not None
    assert long is not None
    assert short.requests_per_s == long.requests_per_s == pytest.approx(4.0)
    assert short.usd_per_request == pytest.approx(long.usd_per_request)


@pytest.mark.parametrize(
    "lengths",
    [
        {"random_range_ratio": 0.9},
        {"length_distribution": "gamma", "input_len_cv": 1.0, "output_len_cv": 1.0},
    ],
)
def test_the_price_of_a_few_requests_is_the_bill_over_the_tokens_of_many(lengths: dict[str, Any]) -> None:
    """Cost per second over output tokens per second of a run so long that its filling and its draw do not count."""
    model, asked = question_of("dense", "short answers")
    asked = {**asked, **lengths, "request_rate": 4.0}
    many = capacity.simulate(model, **asked, num_prompts=40_000)
    usd_per_s = float(PRICE) / 3600
    by_tokens = usd_per_s / many.run.summary.output_throughput * 1e6
    few = [capacity.simulate(model, **asked, num_prompts=count).cost for count in (100, 300)]
    for cost in few:
        assert cost is not None
        share = cost.prefill_share
        assert cost.usd_per_million_output_tokens / (1 - share) == pytest.approx(by_tokens, rel=0.01)


def test_more_in_flight_is_cheaper_by_the_token() -> None:
    model, asked = question_of("dense", "short answers")
    bills = [capacity.cost(model, **asked, concurrency=number).served for number in (1, 8, 64)]
    outputs = [bill.usd_per_million_output_tokens for bill in bills if bill is not None]
    assert outputs == sorted(outputs, reverse=True)
    assert outputs[0] > 10 * outputs[-1]


def test_an_overloaded_deployment_is_billed_for_what_it_serves() -> None:
    model, asked = question_of("dense", "short answers")
    bill = capacity.cost(model, **asked, request_rate=300.0, num_prompts=3000)
    assert bill.served is not None
    assert bill.served.requests_per_s == pytest.approx(bill.full.requests_per_s, rel=0.15)
    assert bill.verdict == "overloaded"
    assert bill.offered_requests_per_s == 300.0


@settings(deadline=None, max_examples=examples(40))
@given(
    name=st.sampled_from(sorted(DEPLOYMENTS)),
    rate=st.floats(0.01, 100),
    inputs=st.integers(1, 4000),
    outputs=st.integers(1, 2000),
    replicas=st.integers(1, 9),
    closed=st.booleans(),
    hits=st.floats(0, 0.95),
)
def test_input_and_output_add_up_to_the_bill(
    name: str, rate: float, inputs: int, outputs: int, replicas: int, closed: bool, hits: float
) -> None:
    """To the cent of an hour, at any load, possible or not."""
    model, pool = DEPLOYMENTS[name]
    resolved = resolve(model, Pool(**pool))
    load = ServedLoad(
        requests_per_s=rate,
        input_tokens=inputs,
        output_tokens=outputs,
        in_flight=16.0 * replicas if closed else None,
        hit_fraction=hits,
    )
    cost = cost_of(find_price(pool["gpu"], override=PRICE), [(resolved, replicas)], load)
    assert cost is not None
    requests = rate * 3600
    input_usd = requests * inputs / 1e6 * cost.usd_per_million_input_tokens
    output_usd = requests * outputs / 1e6 * cost.usd_per_million_output_tokens
    assert 0 < cost.prefill_share <= 1
    assert input_usd + output_usd == pytest.approx(cost.usd_per_hour, abs=CENT)
    assert cost.usd_per_hour == pytest.approx(3.0 * resolved.pool.num_gpus * replicas)
