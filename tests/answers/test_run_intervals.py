"""Intervals of a run: of its rates as far as the engine holds requests up, of unequal pools those of all of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

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
    low, high = bands.ends("e2e")
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
