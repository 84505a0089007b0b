"""Sensitivities against what they stand for: the same load with a class of seconds made longer."""

from __future__ import annotations

import math

import pytest

from capacity.answers.sensitivity import ObservedLoad, sensitivities
from capacity.answers.served import serve_load
from capacity.deployment import Pool, Traffic
from capacity.hardware.adjustment import Adjustment
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.simulator.load_means import LoadMeans
from capacity.step.expert_load import token_log_ratio
from capacity.step.time_classes import EFFECTS, TIME_CLASSES

SLOWER = 0.05  # of a logarithm
SEEDS = range(6)  # TTFT of one closed loop depends on how its rounds happen to overlap: the mean of several
LENGTHS = {"input_len": 600, "output_len": 80}
QUESTIONS = (
    ("llama-3.1-8b", {"gpu": "h100"}, {"concurrency": 24, "random_range_ratio": 0.6}),
    (
        "llama-3.1-70b",
        {"gpu": "h200", "tensor_parallel_size": 4},
        {"concurrency": 8, "random_range_ratio": 0.6},
    ),
    ("qwen3-30b-a3b", {"gpu": "h100"}, {"concurrency": 24, "random_range_ratio": 0.6}),
    ("qwen3-30b-a3b", {"gpu": "h100", "engine": "sglang"}, {"concurrency": 24, "random_range_ratio": 0.6}),
)


def ttft_of(resolved: ResolvedPool, traffic: Traffic) -> float:
    return sum(means_of(resolved, traffic.model_copy(update={"seed": seed}))[0].ttft_s for seed in SEEDS)


def means_of(resolved: ResolvedPool, traffic: Traffic) -> tuple[LoadMeans, float | None]:
    load = serve_load(resolved, traffic, 256)
    assert load.whole is not None
    return load.whole, load.verdict.load_fraction


@pytest.mark.parametrize(("model", "pool", "load"), QUESTIONS)
def test_a_slower_class_of_seconds_does_what_its_sensitivity_says(
    model: str, pool: dict[str, object], load: dict[str, float]
) -> None:
    """TPOT within a tenth of the whole, TTFT (which queues as it likes) within a quarter; as much for each factor of e
    in tokens that a tilt of experts is applied over."""
    resolved = resolve(model, Pool.model_validate(pool))
    sized = {"random_range_ratio": 0.0, "num_prompts": 400, "client_latency_s": 0.0033}
    traffic = Traffic.model_validate({**LENGTHS, **sized, **load})
    means, load_fraction = means_of(resolved, traffic)
    engine = resolved.engine
    found = sensitivities(
        resolved,
        ObservedLoad(
            **LENGTHS,
            in_flight=means.in_flight,
            ttft_s=means.ttft_s,
            tpot_s=means.tpot_s,
            e2e_s=means.e2e_s,
            server_s=traffic.client_latency_s + engine.server_latency_s(traffic.input_len),
            waiting_s=means.waiting_s,
            load_fraction=load_fraction if "request_rate" in load else None,
        ),
    )
    assert found.tpot is not None
    ttft_s = ttft_of(resolved, traffic)
    for name in EFFECTS:
        shifted = resolved.adjusted_by(Adjustment(source="test", date="2026-11-22", means={name: SLOWER}))
        slower, _ = means_of(shifted, traffic)
        assert slower.tpot_s is not None
        assert means.tpot_s is not None
        tpot = math.log(slower.tpot_s / means.tpot_s) / SLOWER
        ttft = math.log(ttft_of(shifted, traffic) / ttft_s) / SLOWER
        reach = token_log_ratio(1e9) if name == "experts_tilt" else 1.0
        assert found.tpot[name] == pytest.approx(tpot, abs=0.15 * reach), name
        assert found.ttft[name] == pytest.approx(ttft, abs=0.35 * reach), name


@pytest.mark.parametrize(("rate", "busy"), [(4.0, 0.1), (25.0, 0.6), (40.0, 0.95)])
def test_arrivals_that_go_on_amplify_slower_steps(rate: float, busy: float) -> None:
    """All steps 5 % slower on an engine that is so busy: TPOT and TTFT lengthen by more, as said within a third."""
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100"))
    traffic = Traffic(
        input_len=800,
        output_len=100,
        random_range_ratio=0.0,
        request_rate=rate,
        num_prompts=1500,
        client_latency_s=0.0,
    )
    means, load_fraction = means_of(resolved, traffic)
    assert load_fraction == pytest.approx(busy, abs=0.1)
    all_slower = Adjustment(source="test", date="2026-11-22", means=dict.fromkeys(TIME_CLASSES, 0.05))
    slower, _ = means_of(resolved.adjusted_by(all_slower), traffic)
    found = sensitivities(
        resolved,
        ObservedLoad(
            input_len=800,
            output_len=100,
            in_flight=means.in_flight,
            ttft_s=means.ttft_s,
            tpot_s=means.tpot_s,
            e2e_s=means.e2e_s,
            server_s=resolved.engine.server_latency_s(800),
            waiting_s=means.waiting_s,
            load_fraction=load_fraction,
        ),
    )
    assert found.tpot is not None
    assert slower.tpot_s is not None
    assert means.tpot_s is not None
    assert sum(found.tpot.values()) == pytest.approx(math.log(slower.tpot_s / means.tpot_s) / 0.05, rel=0.33)
    assert sum(found.ttft.values()) == pytest.approx(math.log(slower.ttft_s / means.ttft_s) / 0.05, rel=0.33)


def test_shares_of_a_lone_request_are_what_its_steps_make() -> None:
    """Without a queue TTFT hangs on steps by all that is not client and server, and nothing amplifies it."""
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100"))
    load = ObservedLoad(
        input_len=600, output_len=80, in_flight=1, ttft_s=0.05, tpot_s=0.01, e2e_s=0.84, server_s=0.02
    )
    found = sensitivities(resolved, load)
    assert sum(found.ttft.values()) == pytest.approx(0.6)
    assert found.queue_share == 0.0
    assert found.tpot is not None
    assert sum(found.tpot.values()) == pytest.approx(1.0)
    assert sum(found.e2e.values()) == pytest.approx((0.03 + 0.79) / 0.84)


def test_single_tokens_have_no_time_between_them() -> None:
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100"))
    load = ObservedLoad(
        input_len=600, output_len=1, in_flight=1, ttft_s=0.05, tpot_s=None, e2e_s=0.05, server_s=0.0
    )
    found = sensitivities(resolved, load)
    assert found.tpot is None
    assert found.e2e == found.ttft
