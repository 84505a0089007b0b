"""`capacity.cascade`: each side is what `cost` and `simulate` say of it, and the rates are the user's."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.planning.hosted_prices import find_api_prices

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
        full = capacity.cost(model, gpu=gpu, price=LOAD["price"], input_len=600, output_len=60).full
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


def test_everything_escalated_is_the_large_model_and_the_small_one_beside_it() -> None:
    all_of_it = capacity.cascade("llama-3.1-8b", **{**ASKED, "escalation_rate": 1.0})
    _, large = all_of_it.tiers
    assert large.usd_per_month == all_of_it.alone.usd_per_month
    routed = capacity.cascade("llama-3.1-8b", **{**ASKED, "escalation_rate": 1.0, "escalate_by": "prompt"})
    assert routed.cascade == routed.alone
    assert routed.tiers[0].usd_per_request is None


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
    assert any("no latency" in line for line in found.warnings)
    assert found.break_even.escalation_rate_here is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"escalation_rate": None}, "needs an --escalation-rate"),
        ({"small": None, "escalation_rate": None, "small_gpu": None}, "nothing is asked first"),
        ({"escalation_rate": 1.5}, "less than or equal to 1"),
        ({"cache_lookup_s": 1.0}, "--cache-hit-rate"),
        ({"request_rate": None}, "no load"),
        ({"request_rate": float("inf")}, "finite"),
        ({"concurrency": 4}, "thins the arrivals"),
        ({"price": None}, "no price"),
        ({"gpu": None}, "no GPU"),
        ({"api": "DeepInfra"}, "leave it out"),
        ({"api_input_price": 1.0, "gpu": None}, "two prices"),
        ({"small": "llama-3.1-70b", "small_api": "Nobody"}, "Nobody"),
        ({"input_len": 200_000}, "max_model_len"),
        ({"request_rate": 1e12}, "at most 1,000,000"),
        ({"target_utilization": 1.0}, "less than 1"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(change: dict[str, Any], said: str) -> None:
    asked = {name: value for name, value in (ASKED | change).items() if value is not None}
    with pytest.raises(capacity.InvalidInput, match=said) as refused:
        capacity.cascade("llama-3.1-8b", **asked)
    assert "\n" not in str(refused.value)
