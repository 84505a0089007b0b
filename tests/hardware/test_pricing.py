"""Prices with provider and date, no default; cost identities to the cent."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Cost
from capacity.hardware import profile_names
from capacity.hardware.pricing import (
    TIERS,
    Price,
    cost_estimate,
    find_price,
    gpu_hours,
    joules_per_token,
    parse_prices,
    price_table,
    usd_per_hour,
)
from capacity.hardware.pricing import price_of as price_of_cost

CENT = 0.005


def price_of(usd: float, *, instance: int = 1) -> Price:
    found = find_price("h100", override=str(usd))
    assert found is not None
    return Price(**{name: getattr(found, name) for name in Price.__slots__} | {"gpus_per_instance": instance})


def test_no_hidden_default() -> None:
    assert find_price("h100") is None
    with pytest.raises(InvalidInput, match="needs a tier"):
        find_price("h100", provider="RunPod")


def test_every_price_is_dated_sourced_and_of_a_known_gpu() -> None:
    table = price_table()
    assert len(table) >= 49
    for price in table:
        assert price.gpu in profile_names()
        assert re.match(r"20\d\d(-\d\d)?(-\d\d)?$", price.date)
        assert price.source
        assert price.tier in TIERS
    sold_by_node = {price.product for price in table if price.gpus_per_instance == 8}
    assert {"p5.48xlarge", "p6-b200.48xlarge us-east-1", "8x H100 SXM"} <= sold_by_node


def test_a_tier_gives_its_median_and_says_so() -> None:
    price = find_price("H100", tier="on-demand")
    assert price is not None
    assert (price.provider, price.usd_per_gpu_hour) == ("Nebius", 3.85)  # the 5th of 10
    assert "median of 10 from $2.29 to $12.29" in price.described
    assert "2026-09-25" in price.described


def test_provider_and_tier() -> None:
    aws = find_price("b200", tier="on-demand", provider="aws")
    assert aws is not None
    assert (aws.usd_per_gpu_hour, aws.gpus_per_instance) == (14.2416, 8)
    owned = find_price("h100", tier="owned")
    assert owned is not None
    assert owned.usd_per_gpu_hour == 1.30
    with pytest.raises(UnknownName, match="AWS"):
        find_price("h100", tier="on-demand", provider="AWZ")
    with pytest.raises(InvalidInput, match=r"no spot price of h200-sxm-141gb.*--price h200-sxm-141gb="):
        find_price("h200", tier="spot")
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
    with pytest.raises(InvalidInput, match="is for h200-sxm-141gb; the deployment uses h100-sxm-80gb"):
        find_price("h100", override="h200=3")


@pytest.mark.parametrize("text", ["", "x", "h100=", "=2", "-1", "nan", "inf", "h100=2,,", "h100:2"])
def test_bad_prices_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_prices(text)
    with pytest.raises(UnknownName):
        parse_prices("h1000000=2")


@given(
    usd=st.floats(0.01, 50),
    gpus=st.integers(1, 64),
    rate=st.floats(0.001, 1000),
    inputs=st.integers(1, 100_000),
    outputs=st.integers(1, 10_000),
    share=st.floats(0, 1),
)
def test_cost_identities(usd: float, gpus: int, rate: float, inputs: int, outputs: int, share: float) -> None:
    cost = cost_estimate(
        price_of(usd),
        num_gpus=gpus,
        requests_per_s=rate,
        input_tokens=inputs,
        output_tokens=outputs,
        prefill_share=share,
    )
    assert cost.usd_per_hour == pytest.approx(usd * gpus)
    assert cost.usd_per_month == pytest.approx(cost.usd_per_hour * 730, abs=CENT)
    requests_of_hour = rate * 3600
    assert cost.usd_per_request * requests_of_hour == pytest.approx(cost.usd_per_hour, abs=CENT)
    inputs_bill = requests_of_hour * inputs * cost.usd_per_million_input_tokens / 1e6
    outputs_bill = requests_of_hour * outputs * cost.usd_per_million_output_tokens / 1e6
    assert inputs_bill + outputs_bill == pytest.approx(cost.usd_per_hour, abs=CENT)
    assert inputs_bill == pytest.approx(share * cost.usd_per_hour, abs=CENT)
    blended = requests_of_hour * (inputs + outputs) * cost.usd_per_million_tokens / 1e6
    assert blended == pytest.approx(cost.usd_per_hour, abs=CENT)


@given(st.integers(1, 64), st.integers(1, 16))
def test_whole_instances_are_billed(gpus: int, instance: int) -> None:
    cost = cost_estimate(
        price_of(2, instance=instance),
        num_gpus=gpus,
        requests_per_s=1,
        input_tokens=1,
        output_tokens=1,
        prefill_share=0.5,
    )
    assert gpus <= cost.billed_gpus < gpus + instance
    assert cost.billed_gpus % instance == 0
    assert cost.billed_usd_per_hour == pytest.approx(cost.billed_gpus * 2)


def test_the_daily_cost_example_of_the_literature() -> None:
    """500 tokens x 10,000 requests a day on one $3/h GPU at 100 tokens/s: 13.89 h, $41.67, $0.0083 per 1k."""
    tokens = 500 * 10_000
    hours = gpu_hours(tokens, 100)
    bill = hours * usd_per_hour(price_of(3), 1)
    assert hours == pytest.approx(13.89, abs=CENT)
    assert bill == pytest.approx(41.67, abs=CENT)
    assert bill / tokens * 1000 == pytest.approx(0.0083, abs=0.00005)


def test_energy() -> None:
    """One H100 at 1730 W all in and 1000 tokens/s: 1.73 J each; 4 GPUs at the same total rate: 6.92 J."""
    assert joules_per_token(1730, 1, 1000) == pytest.approx(1.73)
    assert joules_per_token(1730, 4, 1000) == pytest.approx(6.92)
    with pytest.raises(InvalidInput):
        joules_per_token(1730, 1, 0)


@pytest.mark.parametrize(
    "bad",
    [
        {"num_gpus": 0},
        {"requests_per_s": 0},
        {"requests_per_s": float("nan")},
        {"input_tokens": 0},
        {"output_tokens": -1},
        {"prefill_share": 1.1},
    ],
)
def test_impossible_loads_are_refused(bad: dict[str, float]) -> None:
    usual = {
        "num_gpus": 1,
        "requests_per_s": 1.0,
        "input_tokens": 1.0,
        "output_tokens": 1.0,
        "prefill_share": 0.5,
    }
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        cost_estimate(price_of(2), **(usual | bad))  # type: ignore[arg-type]


def test_prices_are_those_of_the_reference(shared_dir: Path) -> None:
    with (shared_dir / "reference" / "prices.csv").open(newline="") as file:
        expected = sorted(float(row["usd_per_gpu_hour"]) for row in csv.DictReader(file))
    ours = sorted(price.usd_per_gpu_hour for price in price_table())
    for value in set(expected):
        assert ours.count(value) >= expected.count(value)


def test_a_rentable_instance_by_its_name() -> None:
    cost = Cost(price_tier="on-demand", price_instance="p5.48xlarge")
    found = price_of_cost("h100", cost)
    assert found is not None
    assert (found.provider, found.gpus_per_instance) == ("AWS", 8)
    with pytest.raises(UnknownName, match=r"p5\.48xlarge"):
        price_of_cost("h100", Cost(price_tier="on-demand", price_instance="p5.48xlargo"))
    with pytest.raises(InvalidInput, match="needs a tier"):
        price_of_cost("h100", Cost(price_instance="p5.48xlarge"))
