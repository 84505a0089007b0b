"""Advice: each effect is that of asking for it, the most beneficial first."""

from __future__ import annotations

from typing import Any

import pytest
from listed_advice import LOAD, MODEL, line

from capacity import advise, cost, simulate
from capacity.hardware.pricing import find_price
from capacity.planning.advice import AdviceList


def test_the_most_beneficial_comes_first(answer: AdviceList) -> None:
    for other in (False, True):
        benefits = [found.benefit for found in answer.advice if found.other_model is other]
        assert benefits == sorted(benefits, reverse=True)
    models = [found.other_model for found in answer.advice]
    assert models == sorted(models)
    assert sum(models) == 5
    assert {found.change for found in answer.refused} == {
        "swap preempted requests to the host",
        "a larger batch",
        "a smaller model of the same family",
        "keep 1,024 tokens of each request's KV (SnapKV)",
    }


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("quantize the weights to fp8", {"quantization": "fp8"}),
        ("speculative decoding by EAGLE-3", {"speculator": "eagle3", "num_speculative_tokens": 4}),
        ("right-size to 1 replicas", {"replicas": 1}),
        ("give up the prefix cache", {"enable_prefix_caching": False}),
    ],
)
def test_an_effect_is_that_of_asking_for_it(answer: AdviceList, text: str, asked: dict[str, Any]) -> None:
    runs = [simulate(MODEL, **(LOAD | {"replicas": 2} | extra)).run.to_dict() for extra in ({}, asked)]
    effects = line(answer, text).effects
    assert effects is not None
    assert line(answer, text).flags == " ".join(
        f"--no-{n.replace('_', '-')}" if v is False else f"--{n.replace('_', '-')} {v}"
        for n, v in asked.items()
    )
    for name, key in (("ttft_p95_s", "p95_ttft_ms"), ("e2e_p95_s", "p95_e2el_ms")):
        assert 1e3 * getattr(effects, name) == pytest.approx(runs[1][key] - runs[0][key], abs=1e-6)
    replicas = asked.get("replicas", 2)
    each = cost(
        MODEL,
        **({k: v for k, v in (LOAD | asked).items() if k != "replicas"}),
        replicas=replicas,
        price_tier="on-demand",
    )
    assert answer.base.usd_per_request_full is not None
    assert effects.usd_per_request_full == pytest.approx(
        each.full.usd_per_request - answer.base.usd_per_request_full, rel=0.02, abs=1e-9
    )


def test_a_queue_before_the_engine_is_that_of_the_router() -> None:
    """Alone on an engine that many requests would share: a short queue keeps them back, and they wait."""
    load = LOAD | {"request_rate": 60.0}
    found = line(advise(MODEL, **load), "queue requests")
    held = int(found.flags.split()[-1])
    runs = [
        simulate(MODEL, **load, **extra).run.to_dict() for extra in ({}, {"max_outstanding_requests": held})
    ]
    moved = (runs[1]["p95_ttft_ms"] - runs[0]["p95_ttft_ms"]) / 1e3
    assert found.effects is not None
    assert found.effects.ttft_p95_s == pytest.approx(moved, abs=1e-9)
    assert moved > 0.01


def test_spot_changes_the_bill_alone(answer: AdviceList) -> None:
    tiers = [find_price("h100", tier=tier) for tier in ("on-demand", "spot")]
    usual, spot = (price.usd_per_gpu_hour for price in tiers if price is not None)
    effects = line(answer, "spot").effects
    assert effects is not None
    assert effects.usd_per_hour == pytest.approx(2 * (spot - usual))
    assert (effects.ttft_p95_s, effects.e2e_p95_s) == (0.0, 0.0)


def test_streaming_is_worth_the_wait_for_the_last_word(answer: AdviceList) -> None:
    effects = line(answer, "streaming").effects
    assert effects is not None
    assert effects.ttft_p95_s == pytest.approx(answer.base.e2e_p95_s - answer.base.ttft_p95_s)


def test_what_quality_costs(answer: AdviceList) -> None:
    assert line(answer, "to fp8").worst_quality_loss is not None
    assert line(answer, "EAGLE-3").worst_quality_loss == 0.0
    assert not line(answer, "KV heads").quality_known


def test_without_a_price_money_is_not_made_up() -> None:
    answer = advise(MODEL, **(LOAD | {"num_prompts": 20}))
    assert all(found.effects is not None and found.effects.usd_per_hour is None for found in answer.advice)
    assert "no price was given" in (line(answer, "spot").refused or "")


def test_a_price_of_too_few_providers_never_heads_the_advice() -> None:
    """Spot H200s are a third of the price, and known of two providers: the line comes last, and says so."""
    answer = advise(
        "llama-3.1-8b", gpu="h200", price_tier="on-demand", input_len=300, output_len=40, request_rate=4.0,
        num_prompts=60,
    )  # fmt: skip
    spot = answer.advice[-1]
    assert spot.change == "rent spot capacity"
    assert spot.thin_price
    assert "no market price" in spot.note
    assert not any(line.thin_price for line in answer.advice[:-1])
    assert spot.benefit > answer.advice[0].benefit  # by its price alone it would have come first
