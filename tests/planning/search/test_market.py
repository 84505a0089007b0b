"""The GPUs to choose from, and their prices."""

from __future__ import annotations

import pytest

from capacity.base.errors import UnknownName
from capacity.deployment import Cost
from capacity.hardware import profile_names
from capacity.planning.search.market import Market, gpu_names
from capacity.planning.space import Search


def test_names_are_looked_up_and_each_gpu_stands_once() -> None:
    assert gpu_names(Search(gpus="h100,h100-sxm-80gb,a100"), []) == ("h100-sxm-80gb", "a100-sxm-80gb")
    every = gpu_names(Search(gpus="all"), [])
    assert every == tuple(name for name in profile_names() if "@" not in name)
    with pytest.raises(UnknownName):
        gpu_names(Search(gpus="h1000"), [])


@pytest.mark.parametrize(
    ("objective", "budget", "needed"), [("cost", None, True), ("gpus", 5.0, True), ("gpus", None, False)]
)
def test_a_price_is_missed_only_where_it_is_needed(
    objective: str, budget: float | None, needed: bool
) -> None:
    search = Search(gpus="h100,a100", objective=objective, budget=budget)
    market = Market.of(search, Cost(price="h100=2.5"), [])
    quote = market.quotes["h100-sxm-80gb"]
    assert quote is not None
    assert quote.usd_per_gpu_hour == 2.5
    assert market.quotes["a100-sxm-80gb"] is None
    assert set(market.unpriced) == ({"a100-sxm-80gb"} if needed else set())


def test_a_price_of_too_few_providers_does_not_stand_beside_a_market() -> None:
    """An A10G is sold by AWS alone: it is left out where others have a market price, and has its own where none has."""
    beside = Market.of(Search(gpus=("h100", "a10g")), Cost(price_tier="on-demand"), [])
    assert beside.quotes["a10g-24gb"] is None
    assert "known of AWS alone" in beside.unpriced["a10g-24gb"]
    assert beside.quotes["h100-sxm-80gb"] is not None
    alone = Market.of(Search(gpus=("a10g",)), Cost(price_tier="on-demand"), [])
    assert alone.unpriced == {}
    quote = alone.quotes["a10g-24gb"]
    assert quote is not None
    assert quote.caution is not None
    assert quote.caution in quote.quoted
    picked = Market.of(Search(gpus=("h100", "a10g")), Cost(price_tier="on-demand", price_provider="AWS"), [])
    assert picked.unpriced == {}  # whoever names a provider means its price
