"""What a cascade answers: each side is what `cost` and `simulate` say of it, and the parts add up."""

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


@pytest.fixture(scope="module")
def answer() -> Any:
    return capacity.cascade("llama-3.1-8b", cache_hit_rate=0.2, **ASKED)


def test_engines_keep_to_their_part_of_the_full_load_of_cost(answer: Any) -> None:
    _, small, large = answer.tiers
    assert (small.requests_per_s, large.requests_per_s) == pytest.approx((48.0, 14.4))
    for tier, model, gpu in ((small, "llama-3.2-1b", "l4"), (large, "llama-3.1-8b", "h100")):
        full = capacity.cost(model, gpu=gpu, price=LOAD["price"], **LENGTHS).full
        each = tier.requests_per_s / full.requests_per_s
        assert tier.utilization == pytest.approx(each / tier.engines)
        assert each / 0.7 <= tier.engines < each / 0.7 + 1
        assert tier.usd_per_request_at_scale.value == pytest.approx(full.usd_per_request / 0.7)


def test_a_tier_is_as_fast_as_simulate_says(answer: Any) -> None:
    _, small, _ = answer.tiers
    own = capacity.simulate(
        "llama-3.2-1b", gpu="l4", request_rate=small.requests_per_s / small.engines, **LENGTHS
    )
    mean = own.predicted_ms["mean_e2el_ms"]
    assert small.mean_e2e_s.value == pytest.approx(own.run.summary.e2el_ms.mean / 1e3)
    assert small.mean_e2e_s.high / small.mean_e2e_s.value == pytest.approx(mean.high / mean.value)


def test_every_price_is_told_with_where_it_is_from(answer: Any) -> None:
    for gpu in ("h100-sxm-80gb", "l4-24gb"):
        assert sum(line.startswith(f"{gpu}: $") for line in answer.warnings) == 1
    listed = capacity.cascade("llama-3.1-8b", **{**ASKED, "price": None, "price_tier": "on-demand"})
    assert any("median of" in line and "read 20" in line for line in listed.warnings)
    assert [tier.gpu for tier in listed.tiers] == ["l4-24gb", "h100-sxm-80gb"]


def test_parts_add_up(answer: Any) -> None:
    assert answer.cascade.usd_per_month.value == pytest.approx(
        sum(t.usd_per_month.value for t in answer.tiers)
    )
    assert answer.cascade.usd_per_request_at_scale.value == pytest.approx(
        sum(t.share * t.usd_per_request_at_scale.value for t in answer.tiers)
    )
    assert answer.saved_fraction == pytest.approx(
        1 - answer.cascade.usd_per_month.value / answer.alone.usd_per_month.value
    )
    for whole in (answer.cascade, answer.alone):
        assert whole.mean_e2e_s.low < whole.mean_e2e_s.value < whole.mean_e2e_s.high
        assert whole.p95_e2e_s.value > whole.mean_e2e_s.value
    assert answer.cascade.mean_ttft_s.value > answer.tiers[1].mean_e2e_s.value * 0.8  # shown when judged
    asked = next(row for row in answer.rates if row.escalation_rate == 0.3)
    assert asked.usd_per_month == answer.cascade.usd_per_month
