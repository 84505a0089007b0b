"""One load on one pool as a point: the figures of `estimate`, or the reason."""

from __future__ import annotations

import pytest

import capacity
from capacity.answers.load_point import ORDERS, LoadPoint, load_of, load_point, smallest_pool, sort_points
from capacity.answers.records import Quantity
from capacity.deployment import Cost, Pool, Traffic
from capacity.hardware.pricing import find_price_for_cost
from capacity.model import load_model
from capacity.pool.resolve import resolve
from capacity.pool.shortfall import explain_shortfall

LENGTHS = {"input_len": 1024, "output_len": 256}


def test_a_point_is_the_estimate() -> None:
    pool, cost = Pool(gpu="h100-sxm-80gb"), Cost(price_tier="on-demand")
    resolved = resolve("llama-3.1-8b", pool)
    point = load_point(
        resolved, Traffic(**LENGTHS, request_rate=4.0), find_price_for_cost(resolved.profile.name, cost)
    )
    direct = capacity.estimate(
        "llama-3.1-8b", gpu="h100-sxm-80gb", **LENGTHS, request_rate=4.0, price_tier="on-demand"
    )
    for name in (
        "verdict",
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "requests_in_flight",
        "output_tokens_per_s_per_gpu",
        "usd_per_million_output_tokens",
        "basis",
    ):
        assert getattr(point, name) == getattr(direct, name), name
    assert direct.cost is not None
    assert point.usd_per_month == direct.cost.usd_per_month
    assert point.fits
    assert point.steady


def test_what_does_not_fit_is_a_point_with_its_reason() -> None:
    resolved = resolve("llama-3.1-70b", Pool(gpu="h100-sxm-80gb"))
    point = load_point(resolved, Traffic(**LENGTHS, batch_size=1), None)
    assert not point.fits
    assert "too little" in str(point.reason)
    assert point.ttft_s is None
    many = resolve("llama-3.1-8b", Pool(gpu="h100-sxm-80gb", max_num_seqs=8))
    assert "max_num_seqs 8" in str(load_point(many, Traffic(**LENGTHS, batch_size=9), None).reason)


@pytest.mark.parametrize("concurrency", [1, 32])
def test_the_smallest_pool_is_the_least_size_that_fits(concurrency: int) -> None:
    model = load_model("llama-3.1-70b")
    traffic = Traffic(**LENGTHS, concurrency=concurrency)
    sized = smallest_pool(model, Pool(gpu="h100-sxm-80gb"), traffic, Cost())
    fitted = capacity.fit("llama-3.1-70b", gpu="h100-sxm-80gb")
    assert sized.point.tensor_parallel_size == fitted.smallest_tensor_parallel_size == 4


def test_reason_is_computed_for_the_largest_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason takes some fifty memory plans; of the sizes that do not hold the model only the last one is shown."""
    explained: list[int] = []
    monkeypatch.setattr(
        "capacity.pool.resolve.explain_shortfall",
        lambda settings, plan, changed: (
            explained.append(settings.pool.tensor_parallel_size) or explain_shortfall(settings, plan, changed)
        ),
    )
    model, traffic = load_model("llama-3.1-405b"), Traffic(**LENGTHS, concurrency=1)
    short = smallest_pool(model, Pool(gpu="l4"), traffic, Cost())
    assert explained == [short.point.tensor_parallel_size]
    largest = resolve(model, Pool(gpu="l4", tensor_parallel_size=explained[0]))
    assert short.point.reason == load_point(largest, traffic, None).reason
    held = smallest_pool(load_model("llama-3.1-70b"), Pool(gpu="h100"), traffic, Cost())
    assert held.point.fits
    assert len(explained) == 2  # the second is of `load_point` above


def test_a_batch_that_needs_more_kv_takes_more_gpus() -> None:
    model = load_model("llama-3.1-8b")
    few, many = (
        smallest_pool(model, Pool(gpu="l40s-48gb"), Traffic(**LENGTHS, batch_size=n), Cost()).point
        for n in (1, 220)
    )
    assert (few.num_gpus, few.fits, many.fits) == (1, True, True)
    assert many.kv_requests is not None
    assert many.kv_requests >= 220
    assert many.num_gpus is not None
    assert many.num_gpus > 1


def test_a_rate_that_would_overload_it_takes_more_gpus() -> None:
    model, cost = load_model("llama-3.1-8b"), Cost()
    few, more, too_many = (
        smallest_pool(
            model, Pool(gpu="l4-24gb", max_model_len=4096), Traffic(**LENGTHS, request_rate=rate), cost
        )
        for rate in (0.3, 3.0, 1e3)
    )
    assert (few.point.num_gpus, few.point.verdict) == (1, "stable")
    assert more.point.steady
    assert more.point.num_gpus is not None
    assert more.point.num_gpus > 1
    assert too_many.pool is not None  # at its largest: it serves what it can
    assert (too_many.point.num_gpus, too_many.point.steady) == (8, False)


def test_a_size_that_is_said_is_kept() -> None:
    pool = Pool(gpu="h100-sxm-80gb", tensor_parallel_size=8)
    sized = smallest_pool(load_model("llama-3.1-8b"), pool, Traffic(**LENGTHS, concurrency=1), Cost())
    assert sized.point.num_gpus == 8


def test_the_best_stands_first_and_what_does_not_fit_last() -> None:
    def point(gpu: str, ttft_s: float | None, rate: float, reason: str | None = None) -> LoadPoint:
        return LoadPoint(
            gpu=gpu,
            load=1.0,
            reason=reason,
            ttft_s=None if ttft_s is None else Quantity(value=ttft_s),
            output_tokens_per_s=Quantity(value=rate),
        )

    points = [
        point("slow", 2.0, 30.0),
        point("none", None, 0.0, "no"),
        point("grows", None, 99.0),
        point("fast", 1.0, 10.0),
    ]
    assert [p.gpu for p in sort_points(points, "ttft")] == ["fast", "slow", "grows", "none"]
    assert [p.gpu for p in sort_points(points, "throughput")] == ["slow", "fast", "grows", "none"]
    with pytest.raises(capacity.InvalidInput, match="unknown order 'speed'"):
        sort_points(points, "speed")
    assert all(sort_points(points, order) for order in ORDERS)


def test_a_load_is_one() -> None:
    assert load_of(Traffic(**LENGTHS, concurrency=3)) == ("concurrency", 3)
    with pytest.raises(capacity.InvalidInput, match="give exactly one of"):
        load_of(Traffic(**LENGTHS))
    with pytest.raises(capacity.InvalidInput, match="give exactly one of"):
        load_of(Traffic(**LENGTHS, concurrency=3, request_rate=1.0))
