"""Every GPU at one load: each row is `estimate` with the replicas that the load needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import capacity
from capacity.answers.load_point import LoadPoint, sort_points
from capacity.answers.records import Quantity
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic
from capacity.hardware import profile_names

LENGTHS = {"input_len": 1024, "output_len": 256}


def test_compare_gpus_has_a_row_for_every_gpu_with_its_estimate() -> None:
    compared = capacity.compare_gpus("llama-3.1-70b", **LENGTHS, request_rate=1.0, price_tier="on-demand")
    assert sorted(row.gpu for row in compared.rows) == list(profile_names())
    assert compared.order == "price"
    served = [row for row in compared.rows if row.verdict == "stable"]
    bills = [row.usd_per_month for row in served if row.usd_per_month is not None]
    assert bills == sorted(bills)
    fitting = [row for row in compared.rows if row.fits]
    assert 0 < len(fitting) < len(compared.rows)
    assert compared.rows[: len(fitting)] == tuple(fitting)
    for row in compared.rows:
        fit = capacity.fit("llama-3.1-70b", gpu=row.gpu)
        assert row.fits == (fit.smallest_tensor_parallel_size is not None)
        assert row.fits or row.reason
    row = next(row for row in fitting if row.replicas == 1)
    direct = capacity.estimate(
        "llama-3.1-70b",
        gpu=row.gpu,
        tensor_parallel_size=row.tensor_parallel_size,
        **LENGTHS,
        request_rate=1.0,
        price_tier="on-demand" if row.price_note is None else None,
    )
    assert (row.ttft_s, row.e2e_s, row.verdict) == (direct.ttft_s, direct.e2e_s, direct.verdict)


def test_what_a_gpu_cannot_do_is_its_row_and_what_none_can_is_an_error() -> None:
    compared = capacity.compare_gpus(
        "llama-3.1-8b", gpus=("a100-sxm-80gb", "h100"), **LENGTHS, batch_size=1, kv_cache_dtype="fp8"
    )
    assert {row.gpu for row in compared.rows} == {"a100-sxm-80gb", "h100-sxm-80gb"}
    assert compared.order == "throughput-per-gpu"
    with pytest.raises(capacity.InvalidInput, match="unknown order"):
        capacity.compare_gpus("llama-3.1-8b", order="speed", **LENGTHS, batch_size=1)
    with pytest.raises(capacity.InvalidInput, match="give exactly one of"):
        capacity.compare_gpus("llama-3.1-8b", **LENGTHS)
    with pytest.raises(capacity.InvalidInput, match="no lengths"):
        capacity.compare_gpus("llama-3.1-8b", batch_size=1)
    with pytest.raises(capacity.InvalidInput, match="no model"):
        capacity.compare_gpus("llama-9", **LENGTHS, batch_size=1)
    with pytest.raises(capacity.InvalidInput, match="max_model_len"):
        capacity.compare_gpus(
            "llama-3.1-8b", gpus=("h100", "l4"), input_len=10**6, output_len=1, batch_size=1
        )


def test_a_deployment_file_asks_the_same() -> None:
    file = DeploymentFile(
        schema="capacity/deployment/v1",
        model="llama-3.1-8b",
        pools=(Pool(gpu="all", tensor_parallel_size=2),),
        traffic=Traffic(**LENGTHS, concurrency=8),
        cost=Cost(price_tier="on-demand"),
    )
    compared = capacity.compare_gpus(file, gpus=("h100-sxm-80gb",))
    assert [row.num_gpus for row in compared.rows] == [2]
    direct = capacity.compare_gpus(
        "llama-3.1-8b",
        gpus=("h100-sxm-80gb",),
        tensor_parallel_size=2,
        **LENGTHS,
        concurrency=8,
        price_tier="on-demand",
    )
    assert compared == direct


def test_compare_gpus_puts_no_saturated_or_dominated_gpu_first() -> None:
    """A saturated H200 NVL at $2,812 a month came before an MI300X at $1,891 that served the load with less latency."""
    compared = capacity.compare_gpus(
        "llama-3.1-70b", gpus=("h200-nvl", "mi300x", "rtx-5090"), quantization="fp8", kv_cache_dtype="fp8",
        max_model_len=8192, random_range_ratio=0.0, **LENGTHS, request_rate=4.0, price_tier="on-demand", order="price",
    )  # fmt: skip
    assert [row.gpu for row in compared.rows] == ["mi300x-192gb", "rtx-5090-32gb", "h200-nvl-141gb"]
    assert all(row.verdict == "stable" for row in compared.rows)
    bills = [row.usd_per_month for row in compared.rows]
    assert bills == sorted(bills)
    five = compared.rows[1]
    assert five.replicas is not None
    assert five.replicas > 1
    assert five.num_gpus == five.replicas * (five.tensor_parallel_size or 0)
    assert five.requests_per_s is not None
    assert five.requests_per_s.value == pytest.approx(4.0)
    assert five.usd_per_thousand_requests is not None
    assert five.usd_per_thousand_requests.value == pytest.approx(
        (five.usd_per_month or 0) / 730 / 3600 / 4 * 1e3
    )


def test_compare_gpus_adds_replicas_until_service_levels_of_use_case_are_met() -> None:
    compared = capacity.compare_gpus(
        "llama-3.3-70b", gpus=("h100", "a40"), use_case="chat", users=2000, price_tier="on-demand"
    )
    best, other = compared.rows
    assert (best.gpu, best.verdict, best.misses) == ("h100-sxm-80gb", "stable", None)
    assert other.misses is not None
    assert "cannot be met" in other.misses


def test_rows_that_are_saturated_or_miss_service_levels_come_last() -> None:
    point = LoadPoint(gpu="a", load=1.0, verdict="stable", ttft_s=Quantity(value=1.0), usd_per_month=9.0)
    misses = replace(point, gpu="b", misses="ttft", usd_per_month=1.0)
    saturated = replace(point, gpu="c", verdict="saturated", usd_per_month=0.5)
    overloaded = replace(point, gpu="d", verdict="overloaded", ttft_s=None, usd_per_month=0.1)
    rows = sort_points((overloaded, saturated, misses, point), "month")
    assert [row.gpu for row in rows] == ["a", "b", "c", "d"]
