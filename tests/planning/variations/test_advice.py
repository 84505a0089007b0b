"""Advice: what helps, by need; each effect is that of asking for the change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from listed_advice import LOAD, MODEL, line

from capacity import advise, cost, simulate
from capacity.hardware.pricing import find_price
from capacity.planning.variations.advice import MAX_ADVICE, MAX_QUALITY_LOSS, MIN_BENEFIT, AdviceList
from capacity.planning.variations.changes import Need

PROFILES = Path(__file__).parents[3] / "hardware_profiles"


def test_advice_is_at_most_eight_changes_that_help_by_need(answer: AdviceList) -> None:
    assert 3 <= len(answer.advice) <= MAX_ADVICE
    needs = [get_args(Need).index(found.needs) for found in answer.advice]
    assert needs == sorted(needs)
    for found in answer.advice:
        assert found.benefit >= MIN_BENEFIT
        assert (found.quality_loss_change or 0.0) <= MAX_QUALITY_LOSS
    assert len(answer.without_benefit) > 5
    assert {found.change for found in answer.refused} == {
        "a model of the same shape with 8 KV heads (GQA)",
        "swap preempted requests to the host",
        "a larger batch",
        "a smaller model of the same family",
        "keep 1,024 tokens of each request's KV (SnapKV)",
    }


def test_quality_is_the_change_and_not_the_state_of_the_deployment() -> None:
    """An FP8 KV cache loses quality already: a spot price or a token budget does not change that."""
    answer = advise(MODEL, **(LOAD | {"num_prompts": 40}), kv_cache_dtype="fp8", price_tier="on-demand")
    for text in ("spot", "token budget", "chunked prefill"):
        assert line(answer, text).quality_loss_change == 0.0
        assert line(answer, text).quality == "same"
    assert (line(answer, "to int4").quality_loss_change or 0.0) > 0


def test_needs_follow_from_the_change(answer: AdviceList) -> None:
    needs = {
        "right-size to 1 replicas": "nothing",
        "queue requests": "nothing",
        "to fp8": "a restart",
        "to int4": "another checkpoint",
        "EAGLE-3": "another checkpoint",
        "n-gram": "a restart",
        "spot": "other hardware",
        "double tensor parallelism": "other hardware",
        "half of the layers": "another checkpoint",
    }
    assert {text: line(answer, text).needs for text in needs} == needs


def test_calibrated_gpu_has_the_price_of_its_card(tmp_path: Path) -> None:
    profile = (PROFILES / "h100-sxm-80gb.toml").read_text(encoding="utf-8")
    (tmp_path / "h100-sxm-80gb@prod.toml").write_text(
        profile.replace('"h100-sxm-80gb"', '"h100-sxm-80gb@prod"'), encoding="utf-8"
    )
    asked = {**LOAD, "gpu": "h100@prod", "num_prompts": 20, "profiles": tmp_path, "price_tier": "on-demand"}
    assert (
        advise(MODEL, **asked).base.usd_per_hour
        == advise(MODEL, **(LOAD | {"num_prompts": 20}), price_tier="on-demand").base.usd_per_hour
    )


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("quantize the weights to fp8", {"quantization": "fp8"}),
        ("speculative decoding by EAGLE-3", {"speculator": "eagle3", "num_speculative_tokens": 4}),
        ("right-size to 1 replicas", {"replicas": 1}),
        ("turn off chunked prefill", {"enable_chunked_prefill": False}),
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


def test_without_a_price_money_is_not_made_up() -> None:
    answer = advise(MODEL, **(LOAD | {"num_prompts": 20}))
    assert all(found.effects is not None and found.effects.usd_per_hour is None for found in answer.advice)
    assert "no price was given" in (line(answer, "spot").refused or "")


def test_a_price_of_too_few_providers_comes_last_in_its_group() -> None:
    """Spot H200s are a third of the price, and two providers publish one: the line comes last, and says so."""
    answer = advise(
        "llama-3.1-8b", gpu="h200", price_tier="on-demand", input_len=300, output_len=40, request_rate=4.0,
        num_prompts=60,
    )  # fmt: skip
    spot = answer.advice[-1]
    assert spot.change == "rent spot capacity"
    assert spot.thin_price
    assert "no market price" in spot.note
    assert not any(line.thin_price for line in answer.advice[:-1])
