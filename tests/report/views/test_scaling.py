"""The table of layouts."""

from __future__ import annotations

import pytest

import capacity
from capacity.report.tables import render as render_answer

OWN = {
    "tensor": "MB/token",
    "pipeline": "bubble",
    "expert": "busiest",
}  # a word of the headings that an axis has for itself


@pytest.mark.parametrize("axis", OWN)
def test_each_axis_has_its_own_columns(axis: str) -> None:
    model = "qwen3-30b-a3b" if axis == "expert" else "llama-3.1-8b"
    shown = render_answer(capacity.scale(model, gpu="h100", axis=axis, most_gpus=2), "table")
    assert f"{axis} parallelism, 32 requests in flight" in shown
    assert [other for other, column in OWN.items() if column in shown.split()] == [axis]


def test_what_does_not_fit_and_what_is_cheapest_are_said() -> None:
    answer = capacity.scale("llama-3.3-70b", gpu="h100", max_model_len=4096, most_gpus=4, tpot_s=1.0)
    shown = " ".join(render_answer(answer, "table").split())
    assert f"1 GPUs: {answer.rows[0].reason}" in shown
    assert f"cheapest layout with a TPOT of at most 1000 ms: {answer.cheapest_num_gpus} GPUs" in shown
    none = capacity.scale("llama-3.1-8b", gpu="h100", most_gpus=1, tpot_s=1e-6)
    assert "no layout" in render_answer(none, "table")
