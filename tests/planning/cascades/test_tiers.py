"""Sides of a cascade: what a rate costs on engines of one's own, whole, and of an API, by the token."""

from __future__ import annotations

import numpy as np
import pytest

from capacity import cost
from capacity.answers.engine_setup import make_workload
from capacity.answers.full_load import full_load
from capacity.base.errors import InvalidInput
from capacity.deployment import Cost, Pool, Traffic
from capacity.hardware.pricing import find_price_for_cost
from capacity.planning.bills.hosted_prices import ApiPrice
from capacity.planning.cascades.tiers import HostedSide, OwnSide, answer_times
from capacity.pool.resolve import resolve

MODEL = "llama-3.2-1b"


@pytest.fixture(scope="module")
def own() -> OwnSide:
    resolved = resolve(MODEL, Pool(gpu="h100"))
    price = find_price_for_cost("h100", Cost(price="3.6"))
    assert price is not None
    traffic = Traffic(input_len=600, output_len=60, request_rate=1000.0, num_prompts=60)
    return OwnSide(resolved, price, traffic, 0.5)


def test_engines_are_whole_and_at_most_at_their_target(own: OwnSide) -> None:
    rate = own.capacity_per_s.value
    assert (
        rate
        == cost(
            MODEL, gpu="h100", price="3.6", input_len=600, output_len=60, num_prompts=60
        ).full.requests_per_s
    )
    for load, engines in ((0.0, 0), (rate * 0.1, 1), (rate * 0.5, 1), (rate * 0.51, 2), (rate * 3, 6)):
        assert own.engines(load) == engines == own.billed_gpus(load)
        assert own.usd_per_hour(load).value == pytest.approx(3.6 * engines)
        assert own.utilization(load) == (pytest.approx(load / engines / rate) if engines else None)
    assert own.usd_at_scale.value == pytest.approx(3.6 / 3600 / (0.5 * rate))
    with pytest.raises(InvalidInput, match=r"engines of llama-3\.2-1b"):
        own.engines(1e12)


def test_the_interval_of_a_bill_is_that_of_the_full_load(own: OwnSide) -> None:
    _, (low, high) = full_load(own.resolved, make_workload(own.traffic, own.resolved.max_model_len))
    assert 0 < low < 1 < high
    rate = own.capacity_per_s
    assert (rate.low, rate.high) == pytest.approx((rate.value / high, rate.value / low))
    assert own.usd_at_scale.high == pytest.approx(own.usd_at_scale.value * high)
    many = own.usd_per_hour(rate.value * 50)
    assert many.value == pytest.approx(360)
    assert many.low == pytest.approx(360 * low, abs=3.6)
    assert many.high == pytest.approx(360 * high, abs=3.6)


def test_an_engine_is_simulated_at_its_share(own: OwnSide) -> None:
    ran = own.simulate_share(own.capacity_per_s.value)  # of two engines
    arrivals = ran.run.records.arrival_ps / 1e12
    each = (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
    assert each == pytest.approx(own.capacity_per_s.value / 2, rel=0.5)
    waits = answer_times(ran)
    assert len(waits.ttft.seconds) == 60
    assert np.all(waits.e2e.seconds > waits.ttft.seconds)
    assert waits.e2e.mean_ends is not None
    assert waits.e2e.p95_ends is not None


def test_an_engine_that_is_given_too_much_is_said_to_be(own: OwnSide) -> None:
    traffic = Traffic(input_len=600, output_len=60, request_rate=1000.0, num_prompts=9000)
    assert own.waits(own.capacity_per_s.value * 0.3).warning is None  # type: ignore[union-attr]
    busy = OwnSide(own.resolved, own.price, traffic, 0.999)
    full = busy.waits(busy.capacity_per_s.value * 0.999)
    assert full is not None
    assert full.warning is not None
    assert "--target-utilization" in full.warning


def test_an_api_is_paid_by_the_token() -> None:
    price = ApiPrice(
        provider="user", model="m", usd_per_million_input=1.0, usd_per_million_output=4.0, cached_multiple=1.0,
        cache_write_multiple=1.0, date="", source="given",
    )  # fmt: skip
    api = HostedSide(price, 600.0, 60.0, None, None)
    assert api.usd_at_scale.value == pytest.approx((600 + 240) / 1e6)
    assert api.usd_per_hour(2.0).value == pytest.approx(7200 * 840 / 1e6)
    assert (api.engines(2.0), api.billed_gpus(2.0), api.utilization(2.0), api.waits(2.0)) == (None,) * 4
    timed = HostedSide(price, 600.0, 61.0, 0.5, 0.01).waits(2.0)
    assert timed is not None
    assert (float(timed.ttft.seconds[0]), float(timed.e2e.seconds[0])) == pytest.approx((0.5, 1.1))
