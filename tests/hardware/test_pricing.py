"""Prices with provider and date, no default; cost identities to the cent."""

from __future__ import annotations

import csv
import re
import statistics
from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.money import find_currency, use_currency
from capacity.deployment import Cost
from capacity.hardware import profile_names
from capacity.hardware.price_texts import parse_prices
from capacity.hardware.pricing import (
    TIERS,
    Price,
    find_price,
    price_table,
    price_text,
)
from capacity.hardware.pricing import find_price_for_cost as price_of_cost


def test_no_hidden_default() -> None:
    assert find_price("h100") is None
    with pytest.raises(InvalidInput, match="'RunPod' requires --price-tier"):
        find_price("h100", provider="RunPod")


def test_every_price_is_dated_sourced_and_of_a_known_gpu() -> None:
    table = price_table()
    assert len(table) >= 140
    for price in table:
        assert price.gpu in profile_names()
        assert re.match(r"20\d\d(-\d\d)?(-\d\d)?$", price.date)
        assert price.source
        assert price.tier in TIERS
    sold_by_node = {price.product for price in table if price.gpus_per_instance == 8}
    assert {"p5.48xlarge", "p6-b200.48xlarge", "8x H100 SXM"} <= sold_by_node


def test_a_tier_gives_its_median_and_says_so() -> None:
    price = find_price("H100", tier="on-demand")
    assert price is not None
    offers = [each for each in price_table() if (each.gpu, each.tier) == ("h100-sxm-80gb", "on-demand")]
    assert price.usd_per_gpu_hour == statistics.median(offer.usd_per_gpu_hour for offer in offers)
    firms = len({offer.provider for offer in offers})
    assert (
        f"median of {len(offers)} offers from {firms} providers, $2.40 (Vast) to $12.29 (Azure)"
        in price.description
    )
    assert price.gpus_per_instance == 1
    assert not price.has_few_providers


def table_of(*offers: tuple[str, str, float, int]) -> tuple[Price, ...]:
    """Offers of an H100: provider, tier, $ per GPU-hour and GPUs of an instance."""
    return tuple(
        Price(
            gpu="h100-sxm-80gb",
            provider=provider,
            product=f"{provider} {number}",
            tier=tier,  # type: ignore[arg-type]
            usd_per_gpu_hour=usd,
            gpus_per_instance=gpus,
            date="2026-11-01",
            source="its page",
        )
        for number, (provider, tier, usd, gpus) in enumerate(offers)
    )


def test_the_middle_of_two_is_their_mean_and_no_market_price(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = table_of(("A", "spot", 0.80, 8), ("B", "spot", 6.57, 1))
    monkeypatch.setattr("capacity.hardware.pricing.price_table", lambda: offers)
    price = find_price("h100", tier="spot")
    assert price is not None
    assert price.usd_per_gpu_hour == pytest.approx(3.685)
    assert price.gpus_per_instance == 1  # the least that can be rented of any
    assert "mean of two offers from 2 providers, $0.80 (A) to $6.57 (B)" in price.description
    assert price.has_few_providers
    assert price.caution is not None
    assert "offers are known only from A and B." in price.caution
    (named,) = (find_price("h100", tier="spot", provider="A"),)
    assert named is not None
    assert (named.usd_per_gpu_hour, named.has_few_providers, named.caution) == (0.80, False, None)


def test_three_providers_make_a_market_and_three_offers_of_one_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    three = table_of(("A", "spot", 1.0, 1), ("B", "spot", 2.0, 1), ("C", "spot", 9.0, 1))
    one = table_of(("A", "spot", 1.0, 1), ("A", "spot", 2.0, 1), ("A", "spot", 9.0, 1))
    for offers, thin in ((three, False), (one, True)):
        monkeypatch.setattr("capacity.hardware.pricing.price_table", lambda offers=offers: offers)
        price = find_price("h100", tier="spot")
        assert price is not None
        assert (price.usd_per_gpu_hour, price.has_few_providers) == (2.0, thin)
    own = find_price("h100", table=one)
    assert own is not None
    assert not own.has_few_providers  # a list of one's own is taken at its word


def test_a_term_is_a_tier_and_reserved_holds_all_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = table_of(("A", "reserved-1y", 3.0, 1), ("B", "reserved-3y", 2.0, 1), ("C", "reserved", 2.5, 1))
    monkeypatch.setattr("capacity.hardware.pricing.price_table", lambda: offers)
    found = {tier: find_price("h100", tier=tier) for tier in ("reserved", "reserved-1y", "reserved-3y")}
    assert {tier: price and price.usd_per_gpu_hour for tier, price in found.items()} == {
        "reserved": 2.5,
        "reserved-1y": 3.0,
        "reserved-3y": 2.0,
    }


def test_the_gpus_that_people_rent_have_a_market_on_demand() -> None:
    for gpu in (
        "l4",
        "l40s",
        "rtx-4090",
        "rtx-5090",
        "rtx-pro-6000",
        "a100-sxm-40gb",
        "a100",
        "h100",
        "h200",
        "b200",
    ):
        price = find_price(gpu, tier="on-demand")
        assert price is not None
        assert not price.has_few_providers, gpu
    for gpu, tier in (
        ("l4", "reserved-1y"),
        ("a10g", "reserved-1y"),
        ("h100", "reserved-3y"),
        ("mi300x", "on-demand"),
    ):
        assert find_price(gpu, tier=tier) is not None


def test_provider_and_tier() -> None:
    aws = find_price("b200", tier="on-demand", provider="aws")
    assert aws is not None
    assert (aws.usd_per_gpu_hour, aws.gpus_per_instance) == (14.2416, 8)
    owned = find_price("h100", tier="owned")
    assert owned is not None
    assert owned.usd_per_gpu_hour == pytest.approx((1.30 + 1.69) / 2)  # of hyperscalers and of neoclouds
    with pytest.raises(UnknownName, match="AWS"):
        find_price("h100", tier="on-demand", provider="AWZ")
    with pytest.raises(InvalidInput, match=r"no spot price of l4-24gb.*--price l4-24gb="):
        find_price("l4", tier="spot")
    with pytest.raises(UnknownName, match="price tier"):
        find_price("h200", tier="cheap")


def test_ones_own_price() -> None:
    assert parse_prices("h100=2.50, b200=6") == {"h100-sxm-80gb": 2.5, "b200-sxm-180gb": 6.0}
    assert parse_prices("$2.50") == {None: 2.5}
    price = find_price("h100", override="h100=2.50", tier="on-demand")
    assert price is not None
    assert (price.tier, price.usd_per_gpu_hour) == ("given", 2.5)
    own_gpu = find_price("toy-1gb", override="toy-1gb=1")
    assert own_gpu is not None
    assert own_gpu.usd_per_gpu_hour == 1
    with pytest.raises(InvalidInput, match="is for h200-sxm-141gb, but the deployment uses h100-sxm-80gb"):
        find_price("h100", override="h200=3")


@pytest.mark.parametrize("text", ["", "x", "h100=", "=2", "-1", "nan", "inf", "h100=2,,", "h100:2"])
def test_bad_prices_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_prices(text)
    with pytest.raises(UnknownName):
        parse_prices("h1000000=2")


def test_own_price_in_another_currency_is_converted_and_names_the_rate() -> None:
    rate = find_currency("EUR").rate
    for text in ("2.5EUR", "h100=2.5 eur", "b200=6,h100=2.5EUR"):
        price = find_price("h100", override=text)
        assert price is not None
        assert price.usd_per_gpu_hour == pytest.approx(2.5 * rate)
        assert price.source == f"given with --price, EUR at {rate:.6g} US dollars"
    with use_currency("EUR=1.5"):
        price = find_price("h100", override="2EUR")
    assert price is not None
    assert price.usd_per_gpu_hour == 3.0
    with pytest.raises(InvalidInput, match="'XYZ'"):
        find_price("h100", override="2XYZ")


def test_prices_are_those_of_the_reference_or_newer(shared_dir: Path) -> None:
    """Of a provider's offers of a GPU, each figure of the reference stands here, or one that was read later."""
    with (shared_dir / "reference" / "prices.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ours = [(price.provider, price.usd_per_gpu_hour, price.date) for price in price_table()]
    for row in rows:
        provider, usd = row["provider"], float(row["usd_per_gpu_hour"])
        same = any(value == usd for _, value, _ in ours)
        read = row["date"] if row["date"][:2] == "20" else "2026"
        newer = any(firm == provider and date > read for firm, _, date in ours)
        assert same or newer, row


def test_a_rentable_instance_by_its_name() -> None:
    cost = Cost(price_tier="on-demand", price_instance="p5.48xlarge")
    found = price_of_cost("h100", cost)
    assert found is not None
    assert (found.provider, found.gpus_per_instance) == ("AWS", 8)
    with pytest.raises(UnknownName, match=r"p5\.48xlarge"):
        price_of_cost("h100", Cost(price_tier="on-demand", price_instance="p5.48xlargo"))
    with pytest.raises(InvalidInput, match="requires --price-tier"):
        price_of_cost("h100", Cost(price_instance="p5.48xlarge"))


def test_prices_have_at_least_two_decimals() -> None:
    assert [price_text(usd) for usd in (3.9, 12.0, 1.495, 0.085, 1234.5)] == [
        "$3.90", "$12.00", "$1.495", "$0.085", "$1,234.50",
    ]  # fmt: skip


def test_the_users_own_cost_of_owned_gpus_keeps_the_tier() -> None:
    owned, given = (find_price("h100", tier=tier, override="h100=1.2") for tier in ("owned", None))
    assert owned is not None
    assert given is not None
    assert (owned.tier, given.tier) == ("owned", "given")
    assert owned.is_given
    assert owned.quote == "h100-sxm-80gb: $1.20 per GPU-hour, owned, given with --price"


def test_unknown_currency_of_a_price_names_its_flag() -> None:
    with pytest.raises(InvalidInput, match=r"--price: 'xyz' is no known currency; use .* --currency"):
        parse_prices("2.5xyz")
