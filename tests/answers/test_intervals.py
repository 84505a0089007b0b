"""Intervals of predictions: by hand, and what they hold."""

from __future__ import annotations

import pytest

from capacity.answers.intervals import batch_latencies, served_mean, with_interval
from capacity.answers.phases import batch_over_ranks, request_lengths
from capacity.answers.records import Quantity
from capacity.deployment import Pool, Traffic
from capacity.hardware.served_bands import served_band
from capacity.pool.resolve import resolve


def test_relative_errors_bound_a_prediction() -> None:
    assert with_interval(10.0, -0.1, 0.5) == Quantity(value=10.0, low=9.0, high=15.0)
    assert with_interval(10.0, None, 0.5) == Quantity(value=10.0, low=None, high=15.0)


def test_one_interval_holds_those_of_others() -> None:
    own, other = with_interval(10.0, -0.1, 0.1), with_interval(2.0, -0.5, 0.5)
    assert own.covering(other, None) == Quantity(value=10.0, low=1.0, high=11.0)
    assert own.covering(Quantity(value=12.0)) == Quantity(value=10.0)


def test_a_served_mean_has_the_band_of_its_kind_of_model() -> None:
    for model, is_moe in (("llama-3.1-8b", False), ("gpt-oss-120b", True)):
        band = served_band("ttft", is_moe=is_moe)
        mean = served_mean("ttft", 2.0, resolve(model, Pool(gpu="h200")))
        assert band.low is not None
        assert band.high is not None
        assert (mean.low, mean.high) == (2 * (1 + band.low), 2 * (1 + band.high))


def test_the_ends_of_a_batchs_e2e_are_the_sums_of_its_parts() -> None:
    pool, traffic = (
        resolve("llama-3.1-8b", Pool(gpu="h100")),
        Traffic(input_len=500, output_len=50, batch_size=4),
    )
    times = batch_over_ranks(pool, pool.limits_from(), 4, request_lengths(pool, traffic))
    ttft, tpot, e2e = batch_latencies(pool, times)
    assert tpot is not None
    assert e2e.value == pytest.approx(ttft.value + 49 * tpot.value)
    assert e2e.low == pytest.approx((ttft.low or 0) + 49 * (tpot.low or 0))
    assert e2e.high == pytest.approx((ttft.high or 0) + 49 * (tpot.high or 0))
