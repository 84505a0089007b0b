"""Classes of seconds: every operator is in one, and a step's shares add up."""

from __future__ import annotations

import pytest

from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.step import OpCost, StepCost, decode_shape, prefill_shape
from capacity.step.time_classes import TIME_CLASSES, class_shares, time_class


def operator(name: str, bound: str, seconds: float = 1.0) -> OpCost:
    return OpCost(name=name, flops=0.0, bytes=0.0, seconds=seconds, bound=bound)  # type: ignore[arg-type]


def test_operators_are_told_apart_by_name_and_bound() -> None:
    assert time_class(operator("experts", "compute")) == "experts"
    assert time_class(operator("launch gaps", "launch")) == "eager"
    assert time_class(operator("qkv", "launch")) == "memory"
    assert time_class(operator("qkv", "compute")) == "compute"
    assert time_class(operator("all-reduce", "communication")) == "all_reduce"
    assert time_class(operator("host", "host")) == "host"


def test_shares_are_of_the_whole_step() -> None:
    cost = StepCost(operators=(operator("qkv", "compute", 3.0), operator("host", "host", 1.0)))
    assert class_shares(cost) == {**dict.fromkeys(TIME_CLASSES, 0.0), "compute": 0.75, "host": 0.25}
    assert sum(class_shares(StepCost(operators=())).values()) == 0.0


def test_a_model_with_experts_has_seconds_in_every_class() -> None:
    steps = resolve("deepseek-v3", Pool(gpu="h200", tensor_parallel_size=8)).step_model
    prefill, decode = (
        class_shares(steps.step_cost(shape(8, 500))) for shape in (prefill_shape, decode_shape)
    )
    assert sum(prefill.values()) == pytest.approx(1.0)
    assert decode["experts"] > 0.2
    assert all(prefill[name] > 0 for name in TIME_CLASSES)
