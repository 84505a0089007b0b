"""Cost of owned GPUs: every part by hand, and its use in place of a price tier."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import capacity
from capacity.base.errors import InvalidInput
from capacity.deployment import Cost
from capacity.hardware.owned_cost import parse_owned_cost
from capacity.hardware.pricing import find_price_for_cost

SERVER = "purchase=262800,gpus=8,years=5,residual=0.2,kwh=0.1,watts=8000,pue=1.25,hosting=584,staff=0.5"


def test_parts_by_hand() -> None:
    """262,800 x 0.8 over 43,800 h and 8 GPUs: 0.6; 8 kW x 1.25 x 0.1 over 8: 0.125; 584 over 730 h and 8 GPUs: 0.1."""
    price = find_price_for_cost("h100", Cost(owned_cost=SERVER))
    assert price is not None
    parts = parse_owned_cost(SERVER, price.gpu).parts(price.gpu)
    assert parts == pytest.approx({"depreciation": 0.6, "power": 0.125, "hosting": 0.1, "staff": 0.4125})
    assert price.usd_per_gpu_hour == pytest.approx(sum(parts.values()))
    assert price.tier == "owned"
    assert all(f"${usd:,.3f} {name}" in price.description for name, usd in parts.items())


def test_power_without_watts_is_that_of_the_servers_gpus() -> None:
    """700 W with 27 % host, 13 % fans, 96 % of the supply and a PUE of 1 (`server_power.toml`), at $1 per kWh."""
    parts = parse_owned_cost("purchase=0,years=1,gpus=4,kwh=1,pue=1", "h100-sxm-80gb").parts("h100-sxm-80gb")
    assert parts["power"] == pytest.approx(0.7 * 1.27 * 1.13 / 0.96)


@given(st.floats(0.5, 20), st.floats(0, 0.9), st.integers(1, 16))
def test_depreciation_over_the_life_is_what_was_lost(years: float, residual: float, gpus: int) -> None:
    owned = parse_owned_cost(f"purchase=1e5,years={years},residual={residual},gpus={gpus}", "h100-sxm-80gb")
    assert owned.parts("h100-sxm-80gb")["depreciation"] * years * 8760 * gpus == pytest.approx(
        1e5 * (1 - residual)
    )


def test_costs_of_two_gpus_are_kept_apart() -> None:
    two = "gpu=h100,purchase=43800,years=5;gpu=l40s,purchase=8760,years=5"
    prices = [find_price_for_cost(gpu, Cost(owned_cost=two)) for gpu in ("h100", "l40s")]
    assert [price and price.usd_per_gpu_hour for price in prices] == pytest.approx([1.0, 0.2])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("purchase=1", "years is missing"),
        ("purchase=1,years=0", "years is '0': must be greater than 0"),
        ("purchase=1,years=1,residual=2", "residual is '2'"),
        ("purchase=1,years=1,purchase=2", "'purchase' is given twice"),
        ("250000", "'250000' has no value"),
        ("purchase=1,years=1,price=2", "unknown field 'price'"),
        ("purchase=1,years=1,pue=1.2", "without kwh"),
        ("gpu=h200,purchase=1,years=1", "has 0 costs of h100"),
    ],
)
def test_a_malformed_cost_is_refused_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as refused:
        find_price_for_cost("h100", Cost(owned_cost=text))
    assert "\n" not in str(refused.value)


def test_owned_cost_is_billed_and_excludes_another_price() -> None:
    asked = {"gpu": "h100", "input_len": 600, "output_len": 60, "owned_cost": "purchase=43800,years=5"}
    assert capacity.cost("llama-3.1-8b", **asked).usd_per_hour == pytest.approx(1.0)
    for other in ({"price": "2"}, {"price_tier": "spot"}, {"price_provider": "AWS"}):
        with pytest.raises(InvalidInput, match="remove the other --price options"):
            capacity.cost("llama-3.1-8b", **asked, **other)
