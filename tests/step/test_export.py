"""Step times as data: every model that comes with the package has them, and strangers are asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_models import FunctionStepTimes, steps

from capacity.hardware import profile_names
from capacity.model import load_model, model_names
from capacity.step import AffineStepTimes, SlowestRank
from capacity.step.export import (
    AffineData,
    SlowestData,
    graph_rows,
    operator_data,
    step_data,
)


@pytest.mark.parametrize("model", model_names())
def test_every_preset_has_data(model: str) -> None:
    data = steps(model, gpu="h200", tp=8, engine="vllm", host=None, data_parallel_size=2).step_data()
    if any(group.phase == "prompt" for group in load_model(model).layer_groups):
        assert data is None, "an encoder's rows are the prompts': such steps are asked for one by one"
        return
    assert data is not None
    assert None not in (data.row_operators, data.sample_operators, data.shared_operators)


@pytest.mark.parametrize("gpu", profile_names())
def test_every_gpu_has_data(gpu: str) -> None:
    assert steps(gpu=gpu).step_data() is not None


def test_graph_rows_are_the_next_size() -> None:
    assert graph_rows((1, 2, 4)) == (1, 1, 2, 4, 4)
    assert graph_rows(()) == ()


def test_plain_times_speak_for_themselves() -> None:
    affine = AffineStepTimes(1e-3, 1e-6, per_context_token_s=1e-9)
    assert step_data(affine) == AffineData(base_ps=10**9, row_ps=10**6, context_ps=1000)
    assert step_data(SlowestRank(affine)) == SlowestData(inner=affine)
    assert step_data(FunctionStepTimes(lambda _: 1.0)) is None
    assert step_data(AffineStepTimes(-1e-3, 1e-6)) is None
    affine.step_ps = lambda _: 7  # type: ignore[method-assign]
    assert step_data(affine) is None


def test_an_operator_of_another_formula_has_no_data() -> None:
    operators = steps("deepseek-v3", tp=8)._operators
    for operator in (*operators.per_token, *operators.per_sample, *operators.per_context):
        assert operator_data(operator) is not None
        strange = type("Strange", (type(operator),), {"__slots__": ()})
        own = strange(**{name: getattr(operator, name) for name in operator.__dataclass_fields__})
        assert operator_data(own) is None
    attention = operators.per_context[-1]
    assert operator_data(replace(attention, work=lambda _: (0.0, 0.0, 0.0, 0.0))) is None
