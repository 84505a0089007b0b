"""A cascade simulated as one deployment agrees with its tiers added up, where nobody waits for anybody."""

from __future__ import annotations

from typing import Any

import pytest

import capacity

LOAD: dict[str, Any] = {
    "input_len": 600,
    "output_len": 60,
    "random_range_ratio": 0.0,
    "num_prompts": 50,
    "request_rate": 5e-4,
    "client_latency_s": 0.0,
    "price": "h100=2,l4=0.5",
}
ASKED: dict[str, Any] = {
    "gpu": "h100",
    "small": "llama-3.2-1b",
    "small_gpu": "l4",
    "escalation_rate": 0.3,
    **LOAD,
}
TIMES = ("mean_ttft_s", "p95_ttft_s", "mean_e2e_s", "p95_e2e_s")


@pytest.mark.parametrize(
    "change",
    [
        {"escalate_by": "answer", "judge_s": 0.2},
        {"escalate_by": "prompt", "judge_s": 0.2, "cache_hit_rate": 0.2},
        {"escalation_rate": 0.0},
        {"escalation_rate": 1.0},
        {"escalate_by": "answer", "cache_hit_rate": 0.2, "client_latency_s": 1.0},
    ],
    ids=str,
)
def test_at_a_low_load_both_say_the_same(change: dict[str, Any]) -> None:
    """No queue anywhere: a request takes what its way takes, to the rounding of the clock."""
    found = capacity.cascade("llama-3.1-8b", simulate=True, **(ASKED | change))
    assert found.together is not None
    for name in TIMES:
        added, own = getattr(found.cascade, name).value, getattr(found.together, name).value
        assert own == pytest.approx(added, rel=1e-3), name
    missed = round(50 * (1 - change.get("cache_hit_rate", 0.0)))
    assert found.together.escalated == round(missed * found.escalation_rate)
    assert found.together.completed == 50


def test_not_asked_for_there_is_no_run() -> None:
    assert capacity.cascade("llama-3.1-8b", **ASKED).together is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"small": None, "small_gpu": None, "escalation_rate": None, "cache_hit_rate": 0.2}, "--small"),
        ({"small_output_len": 30}, "one output length"),
        ({"cache_hit_rate": 0.2, "embedding_model": "bge-m3"}, "--cache-lookup-s"),
        (
            {"small_gpu": None, "small_api_input_price": 1.0, "small_api_output_price": 1.0},
            "needs your own engines",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_simulated_is_said(change: dict[str, Any], said: str) -> None:
    asked = {name: value for name, value in (ASKED | change).items() if value is not None}
    with pytest.raises(capacity.InvalidInput, match=said):
        capacity.cascade("llama-3.1-8b", simulate=True, **asked)
