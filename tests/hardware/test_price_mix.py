"""`--price-mix`: the mean of the tiers' prices by their shares."""

from __future__ import annotations

import pytest

import capacity
from capacity.base.errors import CapacityError
from capacity.deployment.cost import Cost
from capacity.hardware.pricing import find_price, find_price_for_cost

MIX = "reserved=0.6,on-demand=0.3,spot=0.1"


def usd(tier: str) -> float:
    price = find_price("h100", tier=tier)
    assert price is not None
    return price.usd_per_gpu_hour


def test_the_price_is_the_mean_by_shares_and_names_each_part() -> None:
    price = find_price_for_cost("h100", Cost(price_mix=MIX))
    assert price is not None
    mean = 0.6 * usd("reserved") + 0.3 * usd("on-demand") + 0.1 * usd("spot")
    assert price.usd_per_gpu_hour == pytest.approx(mean, rel=1e-12)
    for part in (
        "60% reserved at $",
        "), not a market price; 30% on-demand at $",
        "10% spot at $",
        "read 20",
    ):
        assert part in price.quote


def test_one_tier_alone_is_that_tier() -> None:
    price = find_price_for_cost("b200", Cost(price_mix="on-demand=1"))
    tier = find_price("b200", tier="on-demand")
    assert price is not None
    assert tier is not None
    assert price.usd_per_gpu_hour == tier.usd_per_gpu_hour


def test_verbs_bill_the_mix() -> None:
    asked = {"gpu": "h100", "input_len": 600, "output_len": 60, "request_rate": 2, "num_prompts": 50}
    mixed = capacity.cost("llama-3.1-8b", price_mix="on-demand=0.5,spot=0.5", **asked)
    same = capacity.cost("llama-3.1-8b", price=repr((usd("on-demand") + usd("spot")) / 2), **asked)
    assert mixed.usd_per_hour == pytest.approx(same.usd_per_hour, rel=1e-12)


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        ("on-demand=0.5,spot=0.4", "add up to 1"),
        ("on-demand=1.5,spot=-0.5", "above 0"),
        ("on-demand=nan", "add up to 1"),
        ("on-demand", "which is not TIER=SHARE"),
        ("", "which is not TIER=SHARE"),
        ("on-demnd=1", "Did you mean"),
    ],
)
def test_a_wrong_mix_is_refused_in_one_line(mix: str, said: str) -> None:
    with pytest.raises(CapacityError, match=said) as refused:
        find_price_for_cost("h100", Cost(price_mix=mix))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "other", [{"price_tier": "spot"}, {"price": "2"}, {"owned_cost": "purchase=1,years=1"}]
)
def test_a_mix_excludes_other_prices(other: dict[str, str]) -> None:
    with pytest.raises(CapacityError, match="remove"):
        find_price_for_cost("h100", Cost(price_mix=MIX, **other))
