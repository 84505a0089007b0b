"""`capacity.cascade`: its ends are the large model, and what cannot be asked is said in one line."""

from __future__ import annotations

from typing import Any

import pytest

import capacity

LENGTHS: dict[str, Any] = {"input_len": 600, "output_len": 60, "num_prompts": 200}
LOAD: dict[str, Any] = {**LENGTHS, "request_rate": 60.0, "price": "h100=2,l4=0.5"}
ASKED: dict[str, Any] = {
    "gpu": "h100",
    "small": "llama-3.2-1b",
    "small_gpu": "l4",
    "escalation_rate": 0.3,
    **LOAD,
}


def test_everything_escalated_is_the_large_model_and_the_small_one_beside_it() -> None:
    all_of_it = capacity.cascade("llama-3.1-8b", **{**ASKED, "escalation_rate": 1.0})
    _, large = all_of_it.tiers
    assert large.usd_per_month == all_of_it.alone.usd_per_month
    routed = capacity.cascade("llama-3.1-8b", **{**ASKED, "escalation_rate": 1.0, "escalate_by": "prompt"})
    assert routed.cascade == routed.alone
    assert routed.tiers[0].usd_per_request is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"escalation_rate": None}, "needs --escalation-rate"),
        ({"small": None, "escalation_rate": None, "small_gpu": None}, "no tier before the large model"),
        ({"escalation_rate": 1.5}, "less than or equal to 1"),
        ({"cache_lookup_s": 1.0}, "--cache-hit-rate"),
        ({"request_rate": None}, "no load"),
        ({"request_rate": float("inf")}, "finite"),
        ({"concurrency": 4}, "not used by cascade"),
        ({"price": None}, "no price"),
        ({"gpu": None}, "no GPU"),
        ({"api": "DeepInfra"}, "leave it out"),
        ({"api_input_price": 1.0, "gpu": None}, "give both --api-input-price"),
        ({"small": "llama-3.1-70b", "small_api": "Nobody"}, "Nobody"),
        ({"input_len": 200_000}, "max_model_len"),
        ({"request_rate": 1e12}, "more than 1,000,000"),
        ({"target_utilization": 1.0}, "less than 1"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(change: dict[str, Any], said: str) -> None:
    asked = {name: value for name, value in (ASKED | change).items() if value is not None}
    with pytest.raises(capacity.InvalidInput, match=said) as refused:
        capacity.cascade("llama-3.1-8b", **asked)
    assert "\n" not in str(refused.value)
