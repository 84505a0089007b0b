"""Intervals of predictions: by hand, what they hold, and what makes them wider and narrower."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import capacity
from capacity.answers.interval_parts import LAUNCH_SETTINGS, MACHINE, VERSION, Z_90
from capacity.answers.intervals import (
    LoadBands,
    batch_latencies,
    unspecified_settings,
    with_interval,
)
from capacity.answers.phases import batch_over_ranks, request_lengths
from capacity.answers.records import Quantity
from capacity.answers.sensitivity import ObservedLoad
from capacity.deployment import Pool, Traffic
from capacity.deployment.client_latency import MAX_S, MIN_S, USUAL_S
from capacity.hardware.spreads import load_spreads
from capacity.pool.resolve import resolve

LOAD = {"input_len": 800, "output_len": 100, "concurrency": 16, "random_range_ratio": 0.5}
KNOWN: dict[str, Any] = {
    "engine": "vllm@0.15",
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "kv_cache_dtype": "fp8",
    "client_latency_s": 0.005,
}


def width(quantity: Quantity | None) -> float:
    """The logarithm of the interval's ends over one another."""
    assert quantity is not None
    assert quantity.low is not None
    assert quantity.high is not None
    return math.log(quantity.high / quantity.low)


def test_relative_errors_bound_a_prediction() -> None:
    assert with_interval(10.0, -0.1, 0.5) == Quantity(value=10.0, low=9.0, high=15.0)
    assert with_interval(10.0, None, 0.5) == Quantity(value=10.0, low=None, high=15.0)


def test_one_interval_holds_those_of_others() -> None:
    own, other = with_interval(10.0, -0.1, 0.1), with_interval(2.0, -0.5, 0.5)
    assert own.cover(other, None) == Quantity(value=10.0, low=1.0, high=11.0)
    assert own.cover(Quantity(value=12.0)) == Quantity(value=10.0)


def test_a_client_whom_nobody_placed_widens_in_quadrature() -> None:
    own = Quantity(value=0.1, low=0.07, high=0.14)
    load = ObservedLoad(
        input_len=100, output_len=10, in_flight=1, ttft_s=0.1, tpot_s=0.01, e2e_s=0.2, server_s=0.0
    )
    bands = LoadBands(resolve("llama-3.1-8b", Pool(gpu="h100")), load)
    found = replace(bands, as_found=True)
    assert bands.add_client_latency("ttft", own, Traffic()) == own  # as it is launched, with its client
    wider = found.add_client_latency("ttft", own, Traffic())
    assert wider.low == pytest.approx(0.1 - math.hypot(0.03, USUAL_S - MIN_S))
    assert wider.high == pytest.approx(0.1 + math.hypot(0.04, MAX_S - USUAL_S))
    assert found.add_client_latency("ttft", own, Traffic(client_latency_s=USUAL_S)) == own
    nearest = found.add_client_latency("ttft", Quantity(value=0.0015, low=0.0005, high=0.005), Traffic())
    assert nearest.low == 0.0  # no first token before its request


def test_interval_of_a_found_server_narrows_with_each_given_setting() -> None:
    """Every setting alone, of an engine whose servers are seldom started with the defaults; the headline knows all."""
    pool = {"gpu": "h200", "engine": "tensorrt-llm", "max_model_len": 4096}
    vague = capacity.estimate("llama-3.1-8b", **pool, **LOAD)
    assert vague.as_found is not None
    assert width(vague.ttft_s) < width(vague.as_found["ttft_s"])
    for name in ("max_num_batched_tokens", "max_num_seqs", "client_latency_s"):
        said = capacity.estimate("llama-3.1-8b", **pool, **LOAD, **{name: KNOWN[name]}).as_found
        assert said is not None
        assert width(said["ttft_s"]) < width(vague.as_found["ttft_s"]), name


def test_interval_falls_gently_with_what_is_given() -> None:
    """Nothing, the release, then one setting after the other: never wider, and no step loses half of the width."""
    pool = {"gpu": "h100", "max_model_len": 4096}
    given = [("engine", "vllm@0.33"), ("max_num_seqs", 1024), ("kv_cache_dtype", "auto")]
    given += [("max_num_batched_tokens", 8192), ("client_latency_s", USUAL_S)]
    answers = [
        capacity.estimate("llama-3.1-8b", **pool, **LOAD, **dict(given[:count]))
        for count in range(len(given) + 1)
    ]
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        widths = [width((answer.as_found or {})[metric]) for answer in answers]
        for wider, narrower in pairwise(widths):
            assert 0.5 * wider < narrower <= wider
        assert widths[-1] == pytest.approx(width(getattr(answers[0], metric)))  # all given: as launched
    assert len({answer.tpot_s for answer in answers}) == 1


def test_interval_of_a_given_default_is_that_of_its_name() -> None:
    """`auto` and the format that it stands for, and a launch line without the flag."""
    asked = {"gpu": "h100", "max_model_len": 4096, **LOAD}
    auto, named = (
        capacity.estimate("llama-3.1-8b", **asked, kv_cache_dtype=name) for name in ("auto", "bf16")
    )
    assert (auto.as_found, auto.ttft_s, auto.tpot_s) == (named.as_found, named.ttft_s, named.tpot_s)
    launched = capacity.from_launch("vllm serve meta-llama/Llama-3.1-8B-Instruct", gpu="h100")
    assert unspecified_settings(launched.pools[0]) == (VERSION,)
    assert len(unspecified_settings(Pool(gpu="h100"))) == LAUNCH_SETTINGS


def test_interval_with_all_settings_given_keeps_a_floor() -> None:
    """Machine, client and build are not known because flags are."""
    for model in ("llama-3.1-8b", "qwen3-30b-a3b"):
        found = capacity.explain(model, gpu="h100", **LOAD, **KNOWN)
        tpot = next(each for each in found.intervals if each.metric == "TPOT")
        part = next(each for each in tpot.parts if each.name == MACHINE)
        floor = load_spreads().other_machines["moe" if model == "qwen3-30b-a3b" else "dense"].tpot
        assert part.high == pytest.approx(math.expm1(Z_90 * floor))
        assert part.high > 0.04


def test_what_is_less_known_is_wider() -> None:
    """Experts than dense models, another GPU's constants than one's own, an engine never seen than one that was."""
    dense = capacity.estimate("llama-3.1-8b", gpu="h100", **LOAD, **KNOWN)
    experts = capacity.estimate("qwen3-30b-a3b", gpu="h100", **LOAD, **KNOWN)
    assert width(experts.tpot_s) > 1.5 * width(dense.tpot_s)
    transferred = capacity.estimate("llama-3.1-8b", gpu="h100-pcie-80gb", **LOAD, **KNOWN)
    assert width(transferred.tpot_s) > 1.05 * width(dense.tpot_s)  # the machine's part is in both
    unseen = capacity.estimate("llama-3.1-8b", gpu="h100", **LOAD, **{**KNOWN, "engine": "tgi"})
    assert width(unseen.tpot_s) > 1.02 * width(dense.tpot_s)


def test_a_queue_near_saturation_is_less_sure() -> None:
    sure, unsure = (
        capacity.estimate(
            "llama-3.1-8b",
            gpu="h100",
            input_len=800,
            output_len=100,
            random_range_ratio=0.0,
            request_rate=rate,
            **KNOWN,
        )
        for rate in (4.0, 40.0)
    )
    assert unsure.verdict == "stable"
    assert width(unsure.ttft_s) > 1.2 * width(sure.ttft_s)


def test_simulated_percentiles_have_intervals_wider_than_means() -> None:
    run = capacity.simulate("llama-3.1-8b", gpu="h100", **LOAD, **KNOWN, num_prompts=200)
    for name in ("ttft", "tpot", "e2el"):
        mean, p95, p99 = (run.predicted_ms[f"{which}_{name}_ms"] for which in ("mean", "p95", "p99"))
        assert width(p99) > width(p95)
        for which, quantity in (("mean", mean), ("p95", p95), ("p99", p99)):
            assert quantity.value == pytest.approx(run.to_dict()[f"{which}_{name}_ms"])
    shown = run.to_dict()["prediction_intervals"]["p99_ttft_ms"]
    assert shown == {"low": run.predicted_ms["p99_ttft_ms"].low, "high": run.predicted_ms["p99_ttft_ms"].high}


def test_the_ends_of_a_batchs_e2e_are_the_sums_of_its_parts() -> None:
    pool, traffic = (
        resolve("llama-3.1-8b", Pool(gpu="h100")),
        Traffic(input_len=500, output_len=50, batch_size=4),
    )
    lengths = request_lengths(pool, traffic)
    times = batch_over_ranks(pool, pool.limits_from(), 4, lengths)
    ttft, tpot, e2e = batch_latencies(pool, times, lengths, 4)
    assert tpot is not None
    assert e2e.value == pytest.approx(ttft.value + 49 * tpot.value)
    assert e2e.low == pytest.approx((ttft.low or 0) + 49 * (tpot.low or 0))
    assert e2e.high == pytest.approx((ttft.high or 0) + 49 * (tpot.high or 0))


def test_ttft_interval_near_the_largest_cuda_graph_holds_both_sides() -> None:
    """One token more is launched kernel by kernel; away from that size intervals are as without it."""
    asked: dict[str, Any] = {"gpu": "h200", "tensor_parallel_size": 2, "batch_size": 1, "output_len": 50}
    at, beyond, far = (
        capacity.estimate("qwen3-next-80b-a3b", input_len=tokens, **asked) for tokens in (512, 513, 700)
    )
    for metric in ("ttft_s", "e2e_s"):
        replayed, launched = getattr(at, metric), getattr(beyond, metric)
        assert launched.value > 1.2 * replayed.value
        assert replayed.high > launched.value
        assert launched.low < replayed.value
    assert width(far.ttft_s) < 0.5 * width(at.ttft_s)
    assert width(at.tpot_s) == pytest.approx(width(far.tpot_s))
