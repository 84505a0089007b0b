"""Halls: agreement with `plan` and `estimate`, the best choice within the budget, and what is served if it is short."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import capacity
from capacity.base.errors import CapacityError, InvalidInput
from capacity.planning.halls.hall import parse_power, plan_hall
from capacity.planning.halls.hall_options import HallPlan

SMALL = {
    "model": "llama-3.1-8b", "slo": ["ttft:p95:2s"],
    "input_len": 1024, "output_len": 128, "request_rate": 40,
}  # fmt: skip
CODER = {
    "model": "qwen3-14b",
    "slo": ["ttft:p95:2s"],
    "input_len": 1000,
    "output_len": 60,
    "request_rate": 20,
}
SPACE: dict[str, Any] = {"quantizations": "none", "tensor_parallel_sizes": 1}


@pytest.fixture(scope="module")
def priced() -> HallPlan:
    """A hall that serves all requests at the lowest cost; without pruning, so every option has its power."""
    space = SPACE | {"gpus": "h100,l40s", "power_cap": "none,65%", "price": "h100=3,l40s=1"}
    return plan_hall([SMALL, CODER], power_budget="1MW", objective="cost", **space)


def test_one_model_in_one_cell_has_the_deployment_of_plan() -> None:
    space = SPACE | {"gpus": "h100", "power_cap": "65%", "routers": "round-robin", "replications": 1}
    hall = plan_hall([SMALL], power_budget="1MW", **space, grid_region="germany").models[0]
    planned = capacity.plan(
        SMALL["model"], slo=SMALL["slo"], request_rate=40, input_len=1024, output_len=128, objective="gpus",
        serving="aggregated", speculators="none", max_num_batched_tokens="default", kv_cache_dtypes="auto",
        alternatives=False, **space,
    ).best  # fmt: skip
    assert planned is not None
    assert planned.drawn is not None
    assert (hall.replicas, hall.num_gpus, hall.provisioned_watts) == (
        planned.replicas,
        planned.num_gpus,
        planned.watts,
    )
    assert hall.drawn_watts.value == pytest.approx(planned.drawn.facility_watts.value)
    assert hall.power_cap_watts == 455
    assert hall.co2_g_per_hour == pytest.approx(hall.drawn_watts.value / 1000 * 330)
    # the energy of one replica at its share of the load
    alone = capacity.estimate(
        SMALL["model"], gpu="h100", power_cap=455, request_rate=40 / hall.replicas, input_len=1024, output_len=128,
    ).energy  # fmt: skip
    assert hall.joules_per_output_token.value == pytest.approx(
        alone.drawn.joules_per_output_token.value, rel=0.05
    )
    assert hall.provisioned_watts == pytest.approx(alone.watts_per_gpu * hall.num_gpus)


def test_cells_share_the_traffic_equally() -> None:
    space = SPACE | {"gpus": "h100", "power_cap": "none"}
    one, many = (
        plan_hall([SMALL | {"request_rate": rate}], power_budget="1MW", **space).models[0]
        for rate in (150, 600)
    )
    assert one.num_gpus < many.num_gpus
    assert many.num_gpus / one.num_gpus == pytest.approx(4, rel=0.15)
    assert many.drawn_watts.value / one.drawn_watts.value == pytest.approx(4, rel=0.15)
    assert many.output_tokens_per_s == pytest.approx(600 * 128, rel=0.1)


def test_choice_is_the_cheapest_within_the_budget_by_brute_force(priced: HallPlan) -> None:
    found = [[option for option in model.options if option.usd_per_hour] for model in priced.models]
    assert all(len(options) == 4 for options in found)
    combinations = list(itertools.product(*found))
    watts = [sum(option.provisioned_watts or 0 for option in each) for each in combinations]
    dollars = [sum(option.usd_per_hour or 0 for option in each) for each in combinations]
    assert priced.usd_per_hour == pytest.approx(min(dollars))
    tight = sorted(watts)[3] + 1
    space = SPACE | {"gpus": "h100,l40s", "power_cap": "none,65%", "price": "h100=3,l40s=1"}
    limited = plan_hall([SMALL, CODER], power_budget=tight, objective="cost", **space)
    within = [usd for usd, each in zip(dollars, watts, strict=True) if each <= tight]
    assert limited.limit is None
    assert limited.provisioned_watts <= tight
    assert limited.usd_per_hour == pytest.approx(min(within))


def test_room_is_stated_and_sums_are_those_of_the_models(priced: HallPlan) -> None:
    assert (priced.served_share, priced.limit) == (1.0, None)
    assert priced.headroom == pytest.approx(1e6 / priced.provisioned_watts - 1)
    for name in ("provisioned_watts", "usd_per_hour"):
        assert getattr(priced, name) == pytest.approx(sum(getattr(model, name) for model in priced.models))
    assert priced.drawn_watts.value == pytest.approx(sum(model.drawn_watts.value for model in priced.models))
    assert priced.drawn_watts.high is not None
    assert priced.drawn_watts.value < priced.drawn_watts.high < priced.provisioned_watts
    for model in priced.models:
        assert sum(option.chosen for option in model.options) == 1
        assert all(option.reason for option in model.options if not option.chosen)
        assert model.launch


def test_hall_that_is_too_small_serves_the_same_share_of_each_model() -> None:
    tables = [SMALL | {"request_rate": 150}, CODER | {"request_rate": 60}]
    space = SPACE | {"gpus": "h100", "power_cap": "65%"}
    whole = plan_hall(tables, power_budget="10MW", **space)
    short = plan_hall(tables, power_budget=0.6 * whole.provisioned_watts, **space)
    assert short.limit == "power"
    assert short.headroom == 0.0
    assert short.provisioned_watts <= short.power_budget_watts
    for model in short.models:
        assert model.served_share == pytest.approx(0.6, abs=1 / model.replicas)
        assert model.served_requests_per_s < model.requests_per_s
    left = short.power_budget_watts - short.provisioned_watts
    assert all(left < model.provisioned_watts / model.replicas for model in short.models)


@pytest.mark.ci
def test_pruning_changes_no_answer() -> None:
    space = SPACE | {"gpus": "b200,a100-80gb", "power_cap": "none,65%"}
    pruned = plan_hall([SMALL | {"request_rate": 100}], power_budget="1MW", **space).models[0]
    every = plan_hall(
        [SMALL | {"request_rate": 100}], power_budget="1MW", objective="energy", **space
    ).models[0]
    assert any(option.bound for option in pruned.options)
    watts = [option.provisioned_watts or 0 for option in every.options]
    assert pruned.provisioned_watts == pytest.approx(min(watts))
    by_name = {(option.gpu, option.power_cap_watts): option for option in every.options}
    for option in pruned.options:
        other = by_name[option.gpu, option.power_cap_watts].provisioned_watts or 0
        assert (option.provisioned_watts or 0) <= other * (1 + 1e-9)


@pytest.mark.parametrize(
    ("text", "watts"),
    [("2MW", 2e6), ("2 MW", 2e6), ("500kW", 5e5), ("0.5 GW", 5e8), ("900W", 900), (3e6, 3e6)],
)
def test_power_has_a_unit(text: str | float, watts: float) -> None:
    assert parse_power(text) == watts


@pytest.mark.parametrize("text", ["2", "2mw", "", "-1MW", "0MW", "nan", 0, -5, float("inf"), "1e400MW"])
def test_text_that_is_no_power_is_refused(text: str | float) -> None:
    with pytest.raises(InvalidInput, match="--power-budget"):
        parse_power(text)


@pytest.mark.parametrize(
    ("tables", "options", "words"),
    [
        ([], {}, "no models"),
        (
            [{"model": "llama-3.1-8b", "input_len": 9, "output_len": 9, "slo": ["ttft:p95:1s"]}],
            {},
            "no request rate",
        ),
        ([{"request_rate": 3}], {}, "has no name"),
        ([SMALL | {"lengths": 3}], {}, "unknown option 'lengths'"),
        ([SMALL | {"slo": ["ttft:p95:1ms"]}], {}, "llama-3.1-8b: ttft:p95:1ms"),
        ([SMALL], {"max_gpus": 8}, "--max-gpus has no effect on a hall"),
        ([SMALL], {"serving": "aggregated"}, "--serving has no effect on a hall"),
        ([SMALL], {"objective": "latency"}, "--objective latency is not supported by a hall"),
        ([SMALL], {"objective": "cost"}, "no price"),
        ([SMALL], {"gpus": "h100x"}, "h100x"),
        (
            [SMALL],
            {"power_budget": "1kW", "power_cap": "65%"},
            "too small for one replica of each model: 1.38 kW",
        ),
    ],
)
def test_bad_halls_are_refused_in_one_line(tables: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(CapacityError, match=words) as refused:
        plan_hall(tables, **{"power_budget": "1MW", "gpus": "h100", **SPACE, **options})
    assert "\n" not in str(refused.value)
