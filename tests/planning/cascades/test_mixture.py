"""Ways of requests: sums of stages, mixtures of ways, against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from capacity.planning.cascades.tiers import EXACT, MAX_POINTS, RequestPath, Stage, mixture_latency

POINTS = (np.arange(4000) + 0.5) / 4000
EXPONENTIAL = -np.log1p(-POINTS)  # of mean 1, by its quantiles


def stage(scale: float = 1.0, ends: tuple[float, float] | None = EXACT) -> Stage:
    return Stage(seconds=EXPONENTIAL * scale, mean_ends=ends, p95_ends=ends)


def test_one_way_is_its_stage() -> None:
    ways = [RequestPath(share=1.0, stages=(stage(2.0, (0.5, 3.0)),))]
    for statistic, value in (("mean", 2.0), ("p95", -2 * math.log(0.05))):
        found = mixture_latency(ways, statistic)  # type: ignore[arg-type]
        assert found.value == pytest.approx(value, rel=2e-3)
        assert (found.low, found.high) == pytest.approx((found.value / 2, found.value * 3))


def test_two_stages_are_an_erlang_and_means_add_exactly() -> None:
    ways = [RequestPath(share=1.0, stages=(stage(), stage(), Stage.constant(1.0)))]
    assert mixture_latency(ways, "mean").value == pytest.approx(1 + 2 * float(EXPONENTIAL.mean()))
    p95 = mixture_latency(ways, "p95").value - 1  # P(T > t) = (1 + t) exp(-t)
    assert (1 + p95) * math.exp(-p95) == pytest.approx(0.05, abs=5e-4)
    assert len(EXPONENTIAL) > MAX_POINTS


def test_a_mixture_of_exponentials() -> None:
    ways = [RequestPath(share=0.9, stages=(stage(),)), RequestPath(share=0.1, stages=(stage(10.0),))]
    p95 = mixture_latency(ways, "p95").value
    assert 0.9 * math.exp(-p95) + 0.1 * math.exp(-p95 / 10) == pytest.approx(0.05, abs=2e-4)
    assert mixture_latency(ways, "mean").value == pytest.approx(1.9, rel=1e-3)


def test_ways_that_nobody_takes_do_not_count() -> None:
    none = RequestPath(share=0.0, stages=(stage(1e6, None),))
    assert mixture_latency([none, RequestPath(share=1.0, stages=(Stage.constant(2.0),))], "p95").high == 2.0


def test_an_unknown_interval_stays_unknown() -> None:
    found = mixture_latency(
        [RequestPath(share=1.0, stages=(replace(Stage.constant(2.0), mean_ends=None), stage()))], "mean"
    )
    assert (found.low, found.high) == (None, None)
