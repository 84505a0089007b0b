"""From a bill to a request and a token: identities to the cent, whole instances, and loads that cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.hardware.cost_estimate import cost_estimate, joules_per_token
from capacity.hardware.pricing import Price, find_price

CENT = 0.005


def price_of(usd: float, *, instance: int = 1) -> Price:
    found = find_price("h100", override=str(usd))
    assert found is not None
    return Price(**{name: getattr(found, name) for name in Price.__slots__} | {"gpus_per_instance": instance})


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
        {"h100": (price_of(usd), gpus)},
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
        {"h100": (price_of(2, instance=instance), gpus)},
        requests_per_s=1,
        input_tokens=1,
        output_tokens=1,
        prefill_share=0.5,
    )
    assert gpus <= cost.billed_gpus < gpus + instance
    assert cost.billed_gpus % instance == 0
    assert cost.usd_per_hour == pytest.approx(cost.billed_gpus * 2)


@pytest.mark.parametrize(
    "bad",
    [
        {"requests_per_s": 0},
        {"requests_per_s": float("nan")},
        {"input_tokens": 0},
        {"output_tokens": -1},
        {"prefill_share": 1.1},
    ],
)
def test_impossible_loads_are_refused(bad: dict[str, float]) -> None:
    usual = {
        "requests_per_s": 1.0,
        "input_tokens": 1.0,
        "output_tokens": 1.0,
        "prefill_share": 0.5,
    }
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        cost_estimate({"h100": (price_of(2), 1)}, **(usual | bad))
    with pytest.raises(InvalidInput, match="num_gpus"):
        cost_estimate({"h100": (price_of(2), 0)}, **usual)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 8))
def test_kinds_of_gpus_are_billed_each_by_its_own_price(few: int, many: int, instance: int) -> None:
    kinds = {"a": (price_of(1), few), "b": (price_of(5, instance=instance), many)}
    load = {"requests_per_s": 1.0, "input_tokens": 1.0, "output_tokens": 1.0, "prefill_share": 0.5}
    both = cost_estimate(kinds, **load)
    alone = [cost_estimate({name: kind}, **load) for name, kind in kinds.items()]
    assert both.usd_per_hour == pytest.approx(sum(each.usd_per_hour for each in alone))
    assert both.billed_gpus == sum(each.billed_gpus for each in alone)
    assert both.usd_per_gpu_hour * both.billed_gpus == pytest.approx(both.usd_per_hour)


def test_the_daily_cost_example_of_the_literature() -> None:
    """500 tokens x 10,000 requests a day on one $3/h GPU at 100 tokens/s: 13.89 h, $41.67, $0.0083 per 1k."""
    found = cost_estimate(
        {"gpu": (price_of(3), 1)},
        requests_per_s=100 / 500,
        input_tokens=250,
        output_tokens=250,
        prefill_share=0.5,
    )
    assert 10_000 / found.requests_per_s / 3600 == pytest.approx(13.89, abs=CENT)
    assert 10_000 * found.usd_per_request == pytest.approx(41.67, abs=CENT)
    assert found.usd_per_million_tokens / 1000 == pytest.approx(0.0083, abs=0.00005)


def test_energy() -> None:
    """One H100 at 1730 W all in and 1000 tokens/s: 1.73 J each; 4 GPUs at the same total rate: 6.92 J."""
    assert joules_per_token(1730, 1, 1000) == pytest.approx(1.73)
    assert joules_per_token(1730, 4, 1000) == pytest.approx(6.92)
    with pytest.raises(InvalidInput):
        joules_per_token(1730, 1, 0)
