"""Drawn energy of a deployment: sums over its GPUs, its interval, and the same value in every answer."""

from __future__ import annotations

import math

import pytest

from capacity import cost, estimate, simulate
from capacity.answers.costs import ServedLoad
from capacity.answers.drawn_energy import drawn_energy
from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.quantity import Quantity
from capacity.deployment import Pool
from capacity.hardware.server_power import server_power
from capacity.pool.resolve import resolve

LOAD = ServedLoad(requests_per_s=8.0, input_tokens=1000.0, output_tokens=200.0)
QUESTION = {"gpu": "h100", "input_len": 1000, "output_len": 200}


def test_replicas_that_share_the_load_draw_as_many_times_one_with_its_share() -> None:
    pool = resolve("llama-3.1-8b", Pool(gpu="h100", tensor_parallel_size=2))
    two = drawn_energy([(pool, 2)], LOAD)
    one = drawn_energy([(pool, 1)], LOAD.at_rate(4.0))
    assert two.gpu_watts.value == pytest.approx(2 * one.gpu_watts.value)
    assert two.joules_per_output_token.value == pytest.approx(two.gpu_watts.value / 1600)
    assert two.gpu_watts.value < 4 * 700


def test_facility_adds_host_fans_power_supplies_and_cooling_by_hand() -> None:
    pool, server = resolve("llama-3.1-8b", Pool(gpu="h100")), server_power()
    found = drawn_energy([(pool, 1)], LOAD)
    watts = (found.gpu_watts.value + 0.27 * 700) * 1.13 / 0.96 * 1.2
    assert found.facility_watts.value == pytest.approx(watts)
    assert (found.pue, server.pue.basis) == (1.2, "assumed")
    # 8 GPUs at full power: 8.4 kW at the wall (Latif et al., 2025)
    assert server.facility_watts(5600, 5600) / server.pue.value == pytest.approx(8400, rel=0.01)


def test_interval_of_energy_covers_that_of_the_rate_too() -> None:
    pool = resolve("llama-3.1-8b", Pool(gpu="h100"))
    exact = drawn_energy([(pool, 1)], LOAD).joules_per_output_token
    wide = drawn_energy([(pool, 1)], LOAD, Quantity(value=8.0, low=4.0, high=16.0)).joules_per_output_token
    assert exact.low is not None
    assert wide.low is not None
    assert exact.low / exact.value > 0.7  # the fit: 0.74 to 1.28 of the prediction
    assert wide.low / wide.value == pytest.approx(
        math.exp(-math.hypot(math.log(2), math.log(exact.value / exact.low)))
    )


def test_gpus_that_were_not_measured_are_marked_as_assumed() -> None:
    for gpu, basis in (
        ("h100", "fitted"),
        ("b200", "fitted"),
        ("a100-80gb", "assumed"),
        ("mi300x", "assumed"),
    ):
        pool = resolve("llama-3.1-8b", Pool(gpu=gpu))
        assert drawn_energy([(pool, 1)], LOAD).basis == basis


def test_answers_agree_on_one_load() -> None:
    load = QUESTION | {"request_rate": 4.0, "random_range_ratio": 0.0}
    estimated = estimate("llama-3.1-8b", **load).energy.drawn
    billed = cost("llama-3.1-8b", **load, price="2").served
    simulated = simulate("llama-3.1-8b", **load, num_prompts=300).drawn_energy
    assert billed is not None
    for other in (billed.drawn, simulated):
        assert other is not None
        assert other.gpu_watts.value == pytest.approx(estimated.gpu_watts.value, rel=0.02)


def test_drawn_energy_is_below_the_provisioned_and_falls_with_the_load() -> None:
    answers = [estimate("llama-3.1-8b", **QUESTION, concurrency=users).energy for users in (1, 16, 128)]
    drawn = [each.drawn.joules_per_output_token.value for each in answers]
    assert drawn == sorted(drawn, reverse=True)
    for each in answers:
        assert each.drawn.facility_joules_per_output_token.value < each.joules_per_output_token


def test_lower_power_limit_draws_less_and_takes_longer() -> None:
    load = {"input_len": 4000, "output_len": 20, "batch_size": 32}
    usual, limited = (
        estimate("llama-3.1-8b", gpu=gpu, **load)
        for gpu in ("h100", "h100+tdp=400")  # type: ignore[arg-type]
    )
    assert limited.energy.drawn.gpu_watts.value < 400 < usual.energy.drawn.gpu_watts.value
    assert limited.output_tokens_per_s.value < usual.output_tokens_per_s.value


def test_grid_region_gives_grams_of_the_facility_by_hand() -> None:
    drawn = estimate("llama-3.1-8b", **QUESTION, batch_size=8, grid_region="Germany").energy.drawn
    grams = drawn.co2_g_per_million_output_tokens
    assert grams is not None
    assert grams.value == pytest.approx(drawn.facility_joules_per_output_token.value / 3.6 * 330)
    bill = cost("llama-3.1-8b", **QUESTION, price="2", grid_region="germany")
    assert (bill.co2_g_per_kwh, bill.full.drawn.co2_g_per_kwh) == (330, 330)  # type: ignore[union-attr]
    with pytest.raises(UnknownName, match=r"no grid region 'germny'\. Did you mean 'germany'"):
        estimate("llama-3.1-8b", **QUESTION, batch_size=8, grid_region="germny")
    with pytest.raises(InvalidInput, match="both set the carbon intensity: give one"):
        cost("llama-3.1-8b", **QUESTION, price="2", grid_region="us", co2_g_per_kwh=100.0)


def test_loads_of_every_kind_have_a_power() -> None:
    for fields in (
        {"speculator": "eagle3", "num_speculative_tokens": 3},
        {"pipeline_parallel_size": 2},
        {"data_parallel_size": 2},
        {"use_cache": False},
    ):
        energy = estimate("llama-3.1-8b", **QUESTION, **fields, batch_size=4).energy  # type: ignore[arg-type]
        assert 84 < energy.drawn.gpu_watts.value / max(fields.get("pipeline_parallel_size", 1), 1) < 1400
    embedding = estimate("bge-m3", gpu="h100", input_len=500, output_len=1, batch_size=8).energy
    assert 84 < embedding.drawn.gpu_watts.value < 700
