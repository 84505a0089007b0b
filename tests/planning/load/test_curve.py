"""Curves over load: the knee, the highest rate and users."""

from __future__ import annotations

import math
from typing import Any

import pytest

from capacity.base.errors import InvalidInput
from capacity.base.mappings import omit
from capacity.deployment import DeploymentFile, Pool, Service, Traffic
from capacity.planning.evaluation.evaluate import TOLERANCE
from capacity.planning.load.curve import curve

SMALL: dict[str, Any] = {"gpu": "h100", "input_len": 300, "output_len": 40, "num_prompts": 400}


def test_the_highest_rate_meets_the_slo_and_a_little_more_does_not() -> None:
    found = curve("llama-3.1-8b", slo="ttft:p95:300ms tpot:p95:20ms", requests_per_user_hour=30, **SMALL)
    assert found.highest is not None
    best = found.highest
    assert best.low <= best.at_confidence <= best.predicted <= best.high
    assert found.users == pytest.approx(best.at_confidence * 120)
    rates = [best.predicted, best.predicted * (1 + 2 * TOLERANCE)]
    at, beyond = curve("llama-3.1-8b", slo="ttft:p95:300ms tpot:p95:20ms", rates=rates, **SMALL).points
    assert at.met
    assert not beyond.met


def test_another_draw_of_the_traffic_lands_in_the_interval() -> None:
    asked = SMALL | {"num_prompts": 300, "slo": "ttft:p95:300ms tpot:p95:20ms", "rates": [1.0]}
    best = curve("llama-3.1-8b", **asked).highest
    assert best is not None
    assert best.replications == 3
    assert best.sampling_low is not None
    assert best.sampling_high is not None
    others = [curve("llama-3.1-8b", **asked, seed=seed, replications=1).highest for seed in range(10, 16)]
    inside = [best.sampling_low <= other.predicted <= best.sampling_high for other in others if other]
    assert sum(inside) >= 4  # of six, where nine in ten are expected: 4 or more with probability 0.98
    assert all(other is not None and other.sampling_low is None for other in others)


def test_latency_rises_with_load_and_the_knee_lies_between() -> None:
    found = curve("llama-3.1-8b", slo="e2el:p90:1s", **SMALL)
    latency = [point.mean_e2e_s for point in found.points]
    assert latency[0] < latency[-1]
    knee = found.knee_per_s
    assert knee is not None
    assert found.points[0].request_rate_per_s < knee < found.points[-1].request_rate_per_s
    below = curve("llama-3.1-8b", rates=[knee / 8, knee / 4, knee / 2], **SMALL)
    assert below.knee_per_s is None  # it lies beyond the last rate


def test_windows_are_not_taken_of_steady_generated_traffic() -> None:
    """Its requests come faster or slower than they are drawn: how long they last at one rate says nothing."""
    steady = curve("llama-3.1-8b", slo="e2el:p90:1s", **SMALL, rates=[5.0], slo_window="30s")
    assert not any("busiest" in text for text in steady.warnings)


def test_too_few_requests_to_say_are_said() -> None:
    found = curve("llama-3.1-8b", slo="e2el:p90:30s", **(SMALL | {"num_prompts": 20}))
    assert found.highest is None
    assert "too few" in found.warnings[0]


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="give --slo"):
        curve("llama-3.1-8b", peak_rate=5, rates=[1.0], **SMALL)
    with pytest.raises(InvalidInput, match=r"rates is .*above 0"):
        curve("llama-3.1-8b", rates=[0.0], **SMALL)
    with pytest.raises(InvalidInput, match="--concurrency"):
        curve("llama-3.1-8b", concurrency=4, **SMALL)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 0.5, 2.1])
@pytest.mark.parametrize("peak", [{}, {"peak_rate": 20}])
def test_a_peak_over_the_mean_that_cannot_be_is_refused(value: float, peak: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="peak_to_mean is"):
        curve("llama-3.1-8b", peak_to_mean=value, **SMALL, **peak)
    with pytest.raises(InvalidInput, match="peak_rate is"):
        curve("llama-3.1-8b", peak_rate=value if value in (0, -1) else math.nan, **SMALL)


def test_the_service_of_a_deployment_file_applies() -> None:
    """A timeout below the time of a step fails every request at every rate; autoscaling has no fixed replicas."""

    def asked(**service: Any) -> DeploymentFile:
        pool, traffic = Pool(gpu="h100", replicas=2), Traffic(**omit(SMALL, "gpu"))
        fields = {
            "model": "llama-3.1-8b",
            "pools": (pool,),
            "traffic": traffic,
            "service": Service(**service),
        }
        return DeploymentFile(schema="capacity/deployment/v1", **fields)

    slo = ("e2el:p90:1s",)
    plain, routed, hasty = (
        curve(asked(**service), slo=slo, replications=1).highest
        for service in ({}, {"router": "least-outstanding"}, {"request_timeout_s": 0.001})
    )
    assert plain is not None
    assert routed is not None
    assert hasty is not None
    assert routed != plain
    assert min(routed.predicted, plain.predicted) > hasty.predicted == 0
    with pytest.raises(InvalidInput, match="autoscale_max_replicas of the service changes the number"):
        curve(asked(autoscale_max_replicas=4), slo=slo)
