"""Every GPU at one load: each row is `estimate` at the smallest pool."""

from __future__ import annotations

import pytest

import capacity
from capacity.deployment import Cost, DeploymentFile, Pool, Traffic
from capacity.hardware import profile_names

LENGTHS = {"input_len": 1024, "output_len": 256}


def test_every_gpu_is_a_row_with_the_estimate_of_its_smallest_pool() -> None:
    compared = capacity.compare_gpus("llama-3.1-70b", **LENGTHS, request_rate=1.0, price_tier="on-demand")
    assert sorted(row.gpu for row in compared.rows) == list(profile_names())
    assert compared.order == "price"
    prices = [row.usd_per_million_output_tokens for row in compared.rows if row.steady]
    values = [price.value for price in prices if price is not None]
    assert values == sorted(values)
    fitting = [row for row in compared.rows if row.fits]
    assert 0 < len(fitting) < len(compared.rows)
    assert compared.rows[: len(fitting)] == tuple(fitting)
    for row in compared.rows:
        fit = capacity.fit("llama-3.1-70b", gpu=row.gpu)
        assert row.fits == (fit.smallest_tensor_parallel_size is not None)
        assert row.fits or row.reason
    row = fitting[-1]
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
    with pytest.raises(capacity.InvalidInput, match="no order"):
        capacity.compare_gpus("llama-3.1-8b", order="speed", **LENGTHS, batch_size=1)
    with pytest.raises(capacity.InvalidInput, match="give one of"):
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
