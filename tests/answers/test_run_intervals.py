"""Intervals of a run: of its rates as far as the engine holds requests up, of unequal pools those of all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import capacity
from capacity.answers.deployment_run import run_service, verdict_on
from capacity.answers.run_intervals import latency_intervals, rate_intervals, run_bands
from capacity.deployment import DeploymentFile, Pool, Service, Traffic, build
from capacity.pool.resolve import resolve
from capacity.workload import random_requests


@pytest.mark.parametrize(
    ("rate", "concurrency", "least", "most"),
    [
        (4.0, None, 0.0, 0.1),  # the last request's time of a run of half a minute
        (math.inf, 16, 0.9, 1.1),  # all of it is the engine's
        (50.0, None, 0.9, 1.1),  # more than are served: a queue stands behind every request
    ],
    ids=["by the clock", "closed loop", "overloaded"],
)
def test_rates_are_as_sure_as_the_engine_is_what_holds_requests_up(
    rate: float, concurrency: int | None, least: float, most: float
) -> None:
    resolved = resolve("llama-3.1-8b", build(Pool, {"gpu": "h100"}))
    requests = random_requests(
        num_requests=120,
        input_len=2048,
        output_len=64,
        request_rate_per_s=rate,
        concurrency=concurrency,
        seed=3,
    )
    run = run_service([resolved], Service(), requests)
    verdict = verdict_on(run, [resolved], Service(), requests)
    assert verdict is not None
    bands = run_bands(resolved, requests, run, verdict)
    assert bands is not None
    found = rate_intervals(bands, requests, run, verdict)
    # a queue lengthens latencies by more than the steps, but not the time that all requests take
    low, high = replace(bands, seen=replace(bands.seen, load_fraction=None)).ends("e2e")
    for name, inverse in (("duration", False), ("request_throughput", True), ("output_throughput", True)):
        quantity = found[name]
        assert quantity.value == pytest.approx(getattr(run.summary, name))
        assert quantity.low is not None
        assert quantity.high is not None
        whole = (1 / low - 1 / high) if inverse else high - low
        assert least <= (quantity.high - quantity.low) / quantity.value / whole <= most, name


def test_a_percentile_is_no_surer_than_its_mean_and_gaps_are_as_sure_as_tpot() -> None:
    resolved = resolve("llama-3.1-8b", build(Pool, {"gpu": "h100"}))
    requests = random_requests(num_requests=20, input_len=512, output_len=32, request_rate_per_s=2.0, seed=3)
    run = run_service([resolved], Service(), requests)
    bands = run_bands(resolved, requests, run, None)
    assert bands is not None
    said = Traffic(client_latency_s=0.0)
    found = latency_intervals(bands, run, said, None, names=("ttft", "tpot", "itl"), percentiles=(50, 90, 99))
    spread = {
        name: math.log(quantity.high / quantity.low)
        for name, quantity in found.items()
        if quantity.high is not None and quantity.low
    }
    assert len(spread) == 12
    for metric in ("ttft", "tpot"):
        mean, p50, p90, p99 = (spread[f"{name}_{metric}_ms"] for name in ("mean", "p50", "p90", "p99"))
        assert mean == pytest.approx(p50)
        assert p50 <= p90 <= p99
        assert p50 < p99
    assert spread["mean_itl_ms"] == pytest.approx(spread["mean_tpot_ms"])


def relative_ends(found: capacity.Simulation, name: str) -> tuple[float, float]:
    known = found.predicted_rates[name]
    assert known.low is not None
    assert known.high is not None
    value = getattr(found.run.summary, name)
    assert found.to_dict()["prediction_intervals"][name] == {"low": known.low, "high": known.high}
    return known.low / value - 1, known.high / value - 1


SHORT: dict[str, Any] = {"gpu": "h100", "input_len": 500, "output_len": 50, "random_range_ratio": 0.0}


def test_throughput_below_saturation_is_the_offered_rate() -> None:
    found = capacity.simulate("llama-3.1-8b", **SHORT, request_rate=4.0, num_prompts=400)
    assert found.verdict is not None
    assert found.verdict.verdict == "stable"
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        low, high = relative_ends(found, name)
        assert -0.01 < low < 0 < high < 0.01


def test_throughput_near_saturation_may_be_that_of_a_full_engine() -> None:
    """At 95 % of capacity, an engine as slow as its interval permits is full; a faster one serves no more."""
    full = capacity.simulate("llama-3.1-8b", **SHORT, request_rate=4.0, num_prompts=100).verdict
    assert full is not None
    assert full.capacity_requests_per_s is not None
    rate = 0.95 * full.capacity_requests_per_s
    near = capacity.simulate("llama-3.1-8b", **SHORT, request_rate=rate, num_prompts=1000)
    low, high = relative_ends(near, "output_throughput")
    assert high < 0.03
    closed = relative_ends(
        capacity.simulate("llama-3.1-8b", **SHORT, concurrency=32, num_prompts=320), "output_throughput"
    )
    assert closed[0] < low < -0.04


def test_throughput_of_overload_and_of_a_closed_loop_are_the_engines() -> None:
    """The closed loop's interval is the one of `estimate`; more requests than are served have that of a full engine."""
    closed = capacity.simulate("llama-3.1-8b", **SHORT, concurrency=32, num_prompts=320)
    asked = capacity.estimate("llama-3.1-8b", **SHORT, concurrency=32, num_prompts=320).output_tokens_per_s
    assert asked is not None
    assert asked.low is not None
    assert asked.high is not None
    low, high = relative_ends(closed, "output_throughput")
    assert low == pytest.approx(asked.low / asked.value - 1, abs=0.02)
    assert high == pytest.approx(asked.high / asked.value - 1, abs=0.02)
    for rate in (400.0, math.inf):
        found = capacity.simulate("llama-3.1-8b", **SHORT, request_rate=rate, num_prompts=400)
        low, high = relative_ends(found, "request_throughput")
        assert -0.5 < low < -0.05
        assert 0.05 < high < 0.5


def test_requests_that_arrive_at_once_are_as_sure_as_a_closed_loop() -> None:
    """Their queue is the work before them, so its relative error is that of the steps, not several times as large."""
    together = capacity.simulate("llama-3.1-8b", **SHORT, request_rate=math.inf, num_prompts=256)
    closed = capacity.simulate("llama-3.1-8b", **SHORT, concurrency=256, num_prompts=256)

    def width(answer: capacity.Simulation) -> float:
        known = answer.predicted_ms["mean_tpot_ms"]
        assert known.high is not None
        assert known.low
        return math.log(known.high / known.low)

    assert width(together) == pytest.approx(width(closed), rel=0.1)


QUESTIONS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]),
        "gpu": st.sampled_from(["h100", "a100", "mi300x", "l40s"]),
        "engine": st.sampled_from(["vllm", "vllm@0.11", "sglang"]),
        "input_len": st.integers(1, 3000),
        "output_len": st.integers(1, 60),
        "num_prompts": st.integers(2, 60),
        "load": st.one_of(
            st.tuples(st.just("concurrency"), st.integers(1, 40)),
            st.tuples(st.just("request_rate"), st.sampled_from([0.5, 4.0, 30.0, math.inf])),
        ),
        "client_latency_s": st.sampled_from([None, 0.0, 0.02]),
    }
)


@given(QUESTIONS)
@settings(max_examples=examples(8))
def test_interval_ends_rise_with_the_percentile(asked: dict[str, Any]) -> None:
    fields = {
        name: value for name, value in asked.items() if name not in ("model", "load") and value is not None
    }
    name, load = asked["load"]
    found = capacity.simulate(
        asked["model"], **fields, **{name: load}, quantization="fp8", max_model_len=4096
    )
    for known in (found.predicted_ms, found.as_found_ms):
        for metric in ("ttft", "tpot", "e2el"):
            rising = [known.get(f"p{percentile}_{metric}_ms") for percentile in (50, 90, 95, 99)]
            if None in rising:
                assert metric == "tpot"
                assert asked["output_len"] == 1
                continue
            for lower, upper in pairwise(each for each in rising if each is not None):
                assert lower.low is not None
                assert upper.low is not None
                assert 0 <= lower.low <= upper.low <= upper.value
                assert lower.high is None or upper.high is None or lower.high <= upper.high


LOAD: dict[str, Any] = {"input_len": 500, "output_len": 50, "request_rate": 2.0, "num_prompts": 60}


def cascade(rate: float, **pool: Any) -> capacity.Simulation:
    pools = (Pool(gpu="h100", model="llama-3.2-1b", route_escalation_rate=rate), Pool(gpu="h100", **pool))
    return capacity.simulate(
        DeploymentFile(model="llama-3.1-8b", pools=pools, traffic=LOAD, service={"router": "cascade"})
    )


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_a_judged_answer_is_as_sure_as_its_last_token(rate: float) -> None:
    found = cascade(rate)
    for name in ("mean_ttft_ms", "mean_e2el_ms", "p95_e2el_ms"):
        known = found.predicted_ms[name]
        assert known.low is not None
        assert known.high is not None
        assert known.low < known.value < known.high
    if rate == 0.0:
        first, last = (found.predicted_ms[name] for name in ("mean_ttft_ms", "mean_e2el_ms"))
        assert first == last


def test_unequal_pools_have_the_interval_of_the_least_sure() -> None:
    """In turn on a GPU that was measured and on one that was not, or on one of them alone."""
    both = DeploymentFile(
        model="llama-3.1-8b", pools=(Pool(gpu="h100"), Pool(gpu="rtx-4090", max_model_len=8192)), traffic=LOAD
    )
    found, alone = capacity.simulate(both), capacity.simulate("llama-3.1-8b", gpu="h100", **LOAD)

    def width(answer: capacity.Simulation) -> float:
        known = answer.predicted_ms["mean_tpot_ms"]
        assert known.low is not None
        assert known.high is not None
        return (known.high - known.low) / known.value

    assert width(found) > width(alone)
