"""The sides of a cascade: APIs by their prices, embeddings bought or computed, a small model on the fewest GPUs."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.planning.bills.hosted_prices import find_api_prices

LENGTHS: dict[str, Any] = {"input_len": 600, "output_len": 60, "num_prompts": 200}


def test_two_apis_are_their_prices() -> None:
    found = capacity.cascade(
        "llama-3.3-70b",
        api="DeepInfra",
        small="any-model",
        small_api_input_price=0.05,
        small_api_output_price=0.1,
        escalation_rate=0.5,
        api_ttft_s=0.5,
        api_tpot_s=0.01,
        small_api_ttft_s=0.2,
        input_len=1000,
        output_len=101,
        request_rate=1.0,
    )
    (listed,) = find_api_prices("llama-3.3-70b", "DeepInfra")
    large = listed.usd_per_request(1000, 101, 0.0)
    small = (1000 * 0.05 + 101 * 0.1) / 1e6
    assert found.cascade.usd_per_request.value == pytest.approx(small + large / 2)
    assert found.break_even.escalation_rate_at_scale.value == pytest.approx(1 - small / large)
    assert found.cascade.mean_e2e_s.value == pytest.approx(0.2 + 0.5 * 1.5)
    assert found.cascade.mean_ttft_s.value == pytest.approx(0.2 + 0.5 * 0.5)
    assert found.cascade.billed_gpus == 0


def test_an_api_of_unknown_speed_has_no_latency() -> None:
    found = capacity.cascade(
        "llama-3.3-70b", api="DeepInfra", cache_hit_rate=0.5, **LENGTHS, request_rate=1.0
    )
    assert found.cascade.mean_e2e_s is None
    assert any("latency of an API cannot be predicted" in line for line in found.warnings)
    assert found.break_even.escalation_rate_here is None


def test_an_embedding_is_bought_or_computed() -> None:
    asked = {
        "cache_hit_rate": 0.5,
        "api_input_price": 1.0,
        "api_output_price": 2.0,
        "request_rate": 50.0,
        **LENGTHS,
    }
    bought = capacity.cascade("any", embedding_price=0.1, cache_store_usd_per_month=730.0, **asked)
    lookup = 600 * 0.1 / 1e6 + 1.0 / (50 * 3600)
    assert bought.tiers[0].usd_per_request.value == pytest.approx(lookup)
    computed = capacity.cascade("any", embedding_model="bge-m3", embedding_gpu="l4", price="l4=0.5", **asked)
    _, embedding, _ = computed.tiers
    full = capacity.cost("bge-m3", gpu="l4", price="0.5", **LENGTHS | {"output_len": 1}).full
    assert embedding.usd_per_request_at_scale.value == pytest.approx(full.usd_per_request / 0.7)
    assert computed.cascade.billed_gpus == embedding.engines == -(-50 // (0.7 * full.requests_per_s))
    with pytest.raises(capacity.InvalidInput, match="--embedding-gpu"):
        capacity.cascade("any", embedding_model="bge-m3", price="1", **asked)
    with pytest.raises(capacity.InvalidInput, match="cannot be used with --embedding-model"):
        capacity.cascade("any", embedding_model="bge-m3", embedding_gpu="l4", embedding_price=1.0, **asked)


def test_a_small_model_stands_on_the_fewest_gpus_that_hold_it() -> None:
    asked = {"api_input_price": 9.0, "api_output_price": 9.0, "escalation_rate": 0.5, "price": "1", **LENGTHS}
    load = {"small": "llama-3.1-70b", "small_gpu": "h100", "request_rate": 0.5, "small_output_len": 30}
    found = capacity.cascade("any", **asked, **load)
    assert found.tiers[0].place.startswith("4 x h100")
    eight = capacity.cascade("any", small_tensor_parallel_size=8, small_quantization="fp8", **asked, **load)
    assert eight.tiers[0].place.startswith("8 x h100")
    own = capacity.cost(
        "llama-3.1-70b", gpu="h100", tensor_parallel_size=4, price="1", **LENGTHS | {"output_len": 30}
    )
    assert found.tiers[0].usd_per_request_at_scale.value == pytest.approx(own.full.usd_per_request / 0.7)
