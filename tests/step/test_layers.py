"""From layers to operators: nothing is lost on the way, whatever its class; what has no builder is refused."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import pytest

from capacity.base.errors import UnsupportedModel
from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.step import OpCost, StepShape, decode_shape, layers
from capacity.step.layers import merge_operators
from capacity.step.layers.builder import Builder
from capacity.step.model import StepModel
from capacity.step.operators import Operator
from capacity.step.row_counts import sampled_tokens
from capacity.step.setting import StepSetting

SETTING = StepSetting(
    model=load_model("llama-3.1-8b"), profile=load_profile("h100"), engine=find_engine("vllm")
)
ROWS = 4
SHAPE = decode_shape(ROWS, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Softcap:
    """An operator of a class that nothing else knows: so many seconds for each sampled row."""

    name: str = "softcap of this test"
    row_s: float = 1e-3

    def seconds(self, shape: StepShape) -> float:
        return self.row_s * sampled_tokens(shape)

    def cost(self, shape: StepShape) -> OpCost:
        return OpCost(name=self.name, flops=0.0, bytes=0.0, seconds=self.seconds(shape), bound="compute")

    def key(self) -> Hashable:
        return self.name

    def add(self, other: Self) -> Self:
        return replace(self, row_s=self.row_s + other.row_s)


def yielding(monkeypatch: pytest.MonkeyPatch, *operators: Operator) -> None:
    """Let the model's head have further operators."""
    head = layers.head

    def longer(build: Builder) -> Iterator[Operator]:
        yield from head(build)
        yield from operators

    monkeypatch.setattr(layers, "head", longer)


def test_an_operator_of_a_new_class_is_in_the_step_and_in_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = replace(SETTING, host=replace(SETTING.host_time(), overlapped=False))
    before = StepModel(setting).step_seconds(SHAPE)
    yielding(monkeypatch, Softcap(), Softcap(row_s=2e-3))
    after = StepModel(setting)
    assert after.step_seconds(SHAPE) == pytest.approx(before + ROWS * 3e-3, rel=1e-12)
    cost = after.step_cost(SHAPE)
    assert [op.seconds for op in cost.operators if op.name == Softcap().name] == [pytest.approx(ROWS * 3e-3)]
    assert cost.seconds == pytest.approx(after.step_seconds(SHAPE), rel=1e-12)


def test_what_is_no_operator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timer:
        name = "timer"

        def seconds(self, shape: StepShape) -> float:
            return float(shape.num_tokens)

    yielding(monkeypatch, Timer())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Timer is not an operator of a step: it lacks cost, key, add"):
        StepModel(SETTING)


def test_equal_operators_are_one_row() -> None:
    build = Builder(SETTING)
    one, other = (build.gemm("down", "dense_ffn", k=64, n=32, repeats=count)[0] for count in (2, 3))
    (wide,) = build.gemm("down", "dense_ffn", k=64, n=64)
    quiet, loud = (build.traffic("norms", kernels=n, bytes_per_row=n) for n in (1.0, 2.0))
    rows = merge_operators([one, quiet, wide, other, loud])
    assert rows == (
        replace(one, count=5),
        build.traffic("norms", kernels=3.0, bytes_per_row=3.0),
        wide,
    )
    assert sum(op.seconds(SHAPE) for op in rows) == pytest.approx(
        sum(op.seconds(SHAPE) for op in (one, quiet, wide, other, loud)), rel=1e-12
    )


def test_a_mixer_without_operators_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mamba:
        kind: str = "mamba"

    (group,) = SETTING.model.layer_groups
    model = replace(SETTING.model, layer_groups=(replace(group, mixer=Mamba()),))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="the step model has no operators for Mamba"):
        StepModel(replace(SETTING, model=model))
