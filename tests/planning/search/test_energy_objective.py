"""Objective `energy`: drawn joules per output token, its lower bound, and the loads that it refers to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import capacity
from capacity.answers.costs import ServedLoad
from capacity.answers.drawn_energy import drawn_energy
from capacity.deployment import Pool, Traffic
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.resampling import resample_traffic
from capacity.planning.search.energy_objective import (
    EnergyObjective,
    idle_per_token,
    per_token,
    planned_load,
)
from capacity.pool.resolve import ResolvedPool, resolve

LOAD = ServedLoad(requests_per_s=20.0, input_tokens=1000.0, output_tokens=200.0)


def engine(model: str = "llama-3.1-8b", **fields: object) -> ResolvedPool:
    return resolve(model, Pool(gpu="h100", **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-120b"])
def test_value_is_that_of_the_answer_and_rises_with_the_replicas(model: str) -> None:
    pool = engine(model)
    objective = EnergyObjective(lambda replicas: [(pool, replicas)], LOAD, least=2)
    values = [objective(replicas) for replicas in range(2, 12)]
    assert values == sorted(values)
    for replicas, value in enumerate(values, 2):
        own = drawn_energy([(pool, replicas)], LOAD).joules_per_output_token.value
        assert value >= own * (1 - 1e-12)
        assert value == pytest.approx(own, rel=0.01)


def test_value_never_falls_even_if_the_energy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    energies = iter((3.0, 2.0, 4.0))
    monkeypatch.setattr("capacity.planning.search.energy_objective.per_token", lambda *_: next(energies))
    objective = EnergyObjective(lambda _: [], LOAD, least=1)
    assert [objective(replicas) for replicas in (3, 1, 2, 3)] == [4.0, 3.0, 3.0, 4.0]


def test_idle_gpus_are_a_lower_bound_and_a_closed_loop_has_none() -> None:
    pool = engine()
    workload = resample_traffic(Traffic(request_rate=0.001, input_len=1000, output_len=20), None, 1)[0]
    load = Load.average([workload])
    own = per_token([(pool, 1)], planned_load(pool, load, workload))
    least = idle_per_token(pool.profile, 1, load)
    assert least <= own < 1.5 * least
    closed = resample_traffic(Traffic(concurrency=8, input_len=1000, output_len=20), None, 1)[0]
    assert idle_per_token(pool.profile, 1, Load.average([closed])) == 0.0


def test_closed_loop_has_its_requests_in_flight_and_more_of_them_need_less_energy() -> None:
    pool = engine()
    few, many = (
        per_token([(pool, 1)], replace(LOAD, requests_per_s=math.inf, in_flight=users))
        for users in (4.0, 64.0)
    )
    assert many < few / 4


def test_separate_prefill_pool_draws_too() -> None:
    prefill, decode = engine(role="prefill"), engine(role="decode")
    both = per_token([(prefill, 1), (decode, 2)], LOAD)
    assert both > per_token([(decode, 2)], LOAD)
    closed = replace(LOAD, requests_per_s=math.inf, in_flight=32.0)
    assert 0 < per_token([(prefill, 1), (decode, 2)], closed) < math.inf


def test_plan_for_energy_prefers_a_power_cap_and_states_how_to_set_it() -> None:
    space: dict[str, Any] = {
        "gpus": "h100", "quantizations": "none", "tensor_parallel_sizes": 1, "kv_cache_dtypes": "auto",
        "max_num_batched_tokens": "default", "speculators": "none", "serving": "aggregated", "replications": 1,
        "routers": "round-robin", "input_len": 1024, "output_len": 64, "request_rate": 20, "slo": "ttft:p95:2s",
    }  # fmt: skip
    free = capacity.plan("llama-3.1-8b", objective="energy", **space).best
    plan = capacity.plan("llama-3.1-8b", objective="energy", power_cap="auto", **space)
    capped = plan.best
    assert capped is not None
    assert free is not None
    assert capped.pool.power_cap is not None
    assert capped.drawn is not None
    assert free.drawn is not None
    assert capped.drawn.joules_per_output_token.value < free.drawn.joules_per_output_token.value
    assert capped.watts / capped.num_gpus < free.watts / free.num_gpus
    assert any("nvidia-smi -pl" in note for note in capped.launch[0].notes)
    assert any("Power cap of" in note for note in plan.warnings)
    # without a gain, the GPU without a cap
    assert (
        capacity.plan("llama-3.1-8b", objective="gpus", power_cap="none,80%", **space)
        .ranked[0]
        .pool.power_cap
        is None
    )
