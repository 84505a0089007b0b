"""Every GPU that holds a model: each row is `fit` at its smallest pool, and dearer ones stand behind."""

from __future__ import annotations

import pytest

import capacity
from capacity.hardware import profile_names
from capacity.hardware.pricing import find_price


def test_every_gpu_is_a_row_in_the_order_of_price() -> None:
    answer = capacity.compare_fits("llama-3.1-70b", max_model_len=8192)
    assert sorted(row.gpu for row in answer.rows) == list(profile_names())
    holding = [row for row in answer.rows if row.fits]
    assert answer.rows[: len(holding)] == tuple(holding)
    prices = [row.usd_per_hour for row in holding if row.usd_per_hour is not None]
    assert prices == sorted(prices)
    assert all(row.usd_per_hour is None for row in holding[len(prices) :])
    assert all(row.price_note for row in answer.rows if row.num_gpus and row.usd_per_hour is None)


@pytest.mark.parametrize("gpu", ["a100", "l40s", "mi300x", "rtx-3090", "t4"])
def test_a_row_is_what_fit_says(gpu: str) -> None:
    (row,) = capacity.compare_fits("llama-3.1-70b", gpus=[gpu], max_model_len=8192).rows
    whole = capacity.fit("llama-3.1-70b", gpu=gpu, max_model_len=8192)
    assert row.fits == (whole.smallest_tensor_parallel_size is not None)
    if not row.fits:
        assert row.reason
        return
    fit = capacity.fit(
        "llama-3.1-70b", gpu=gpu, max_model_len=8192, tensor_parallel_size=row.tensor_parallel_size
    )
    assert row.tensor_parallel_size == whole.smallest_tensor_parallel_size
    assert (fit.fits, fit.kv_capacity_tokens) == (True, row.kv_capacity_tokens)
    assert (fit.memory.weights_bytes, fit.max_context_tokens) == (row.weights_bytes, row.max_context_tokens)
    price = find_price(gpu, tier="on-demand")
    assert price is not None
    assert row.usd_per_hour == pytest.approx(row.num_gpus * price.usd_per_gpu_hour)


def test_what_holds_shorter_requests_stands_between() -> None:
    answer = capacity.compare_fits("llama-3.1-8b", gpus=["t4", "a10", "h100"], tensor_parallel_size=1)
    assert [row.gpu for row in answer.rows] == ["h100-sxm-80gb", "a10-24gb", "t4-16gb"]
    assert [(row.fits, row.max_context_tokens > 0) for row in answer.rows] == [
        *((True, True), (False, True), (False, False)),
    ]


def test_what_none_can_be_asked_is_an_error_and_what_one_cannot_is_its_row() -> None:
    with pytest.raises(capacity.InvalidInput, match="exceeds the 131072 positions"):
        capacity.compare_fits("llama-3.1-8b", gpus=["h100", "a100"], max_model_len=10**6)
    rows = capacity.compare_fits("llama-3.1-8b", gpus=["h100", "tpu-v5e"], engine="tensorrt-llm").rows
    assert rows[0].fits
    assert "does not run on Google TPUs" in str(rows[1].reason)
