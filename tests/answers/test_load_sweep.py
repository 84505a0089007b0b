"""One pool over its loads: every point is `estimate`, and where it is full is what the memory says."""

from __future__ import annotations

import pytest

import capacity

PLACE = {"gpu": "h100-sxm-80gb", "input_len": 1024, "output_len": 256}


def test_points_are_the_estimates() -> None:
    sweep = capacity.load_sweep("llama-3.1-8b", loads=(4, 1), price_tier="on-demand", **PLACE)
    assert [point.load for point in sweep.points] == [1, 4]
    direct = capacity.estimate("llama-3.1-8b", concurrency=4, price_tier="on-demand", **PLACE)
    assert sweep.points[1].ttft_s == direct.ttft_s
    assert sweep.points[1].usd_per_million_output_tokens == direct.usd_per_million_output_tokens


def test_the_kv_cache_is_full_where_the_memory_says_so() -> None:
    fit = capacity.fit("llama-3.1-8b", gpu="h100-sxm-80gb")
    blocks = -(-1280 // fit.kv_block_tokens)
    sweep = capacity.load_sweep("llama-3.1-8b", over="batch_size", loads=(1,), **PLACE)
    assert sweep.kv_requests == pytest.approx(fit.kv_capacity_blocks // blocks, abs=1)
    assert (sweep.limit, sweep.full_from) == ("KV cache", float(sweep.kv_requests))
    ends = capacity.load_sweep(
        "llama-3.1-8b", over="batch_size", loads=(sweep.kv_requests, sweep.kv_requests + 1), **PLACE
    )
    assert [point.fits for point in ends.points] == [True, False]
    assert "exceed the KV cache" in str(ends.points[1].reason)


def test_few_seats_are_full_first() -> None:
    sweep = capacity.load_sweep("llama-3.1-8b", loads=(8, 64), max_num_seqs=16, **PLACE)
    assert (sweep.limit, sweep.full_from) == ("max_num_seqs", 16.0)
    waits = [point.ttft_s for point in sweep.points]
    assert waits[0] is not None
    assert waits[1] is not None
    assert waits[1].value > 5 * waits[0].value


def test_rates_go_beyond_what_is_served() -> None:
    sweep = capacity.load_sweep("llama-3.1-8b", over="request_rate", **PLACE)
    assert sweep.full_from is not None
    assert sweep.full_from > 0.5 * sweep.full_requests_per_s
    first, last = sweep.points[0], sweep.points[-1]
    assert first.steady
    assert last.verdict == "overloaded"
    assert last.ttft_s is None
    assert last.requests_per_s is not None
    assert last.requests_per_s.value < last.load


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(capacity.InvalidInput, match="unknown load 'users'"):
        capacity.load_sweep("llama-3.1-8b", over="users", **PLACE)
    with pytest.raises(capacity.InvalidInput, match="leave it out"):
        capacity.load_sweep("llama-3.1-8b", concurrency=3, **PLACE)
    with pytest.raises(capacity.InvalidInput, match="loads must contain at least one"):
        capacity.load_sweep("llama-3.1-8b", loads=(0,), **PLACE)
    with pytest.raises(capacity.DoesNotFit):
        capacity.load_sweep("llama-3.1-70b", **PLACE)
    with pytest.raises(capacity.InvalidInput, match="--input-len"):
        capacity.load_sweep("llama-3.1-8b", gpu="h100-sxm-80gb", output_len=1)
