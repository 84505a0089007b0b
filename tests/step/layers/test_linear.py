"""Linear attention: its products, and a state that no context makes longer."""

from __future__ import annotations

import pytest
from step_models import steps

from capacity.step import decode_shape
from capacity.step.layers.linear import recurrence_constants


def test_gates_have_a_product_of_their_own_and_contexts_cost_nothing() -> None:
    short, long = (
        {op.name: op for op in steps("qwen3-next-80b-a3b", tp=4).step_cost(shape).operators}
        for shape in (decode_shape(8, 1000), decode_shape(8, 50_000))
    )
    assert short["linear gates"].flops == 36 * 2 * 8 * 2048 * 2 * (32 / 4)
    assert short["linear qkvz"].flops == 36 * 2 * 8 * 2048 * 2 * (16 * 128 + 32 * 128) / 4
    assert long["linear attention"] == short["linear attention"]


@pytest.mark.parametrize(
    ("peak", "heads", "measured_s"),
    [
        (989e12, 8, 0.259e-3),
        (989e12, 64, 1.045e-3),
        (2250e12, 8, 0.338e-3),
        (2250e12, 16, 0.424e-3),
        (2250e12, 48, 0.653e-3),
    ],
)
def test_the_recurrence_takes_what_was_measured(peak: float, heads: float, measured_s: float) -> None:
    flops = 8192 * heads * 8 * 128 * 128
    seconds = flops / (recurrence_constants(heads, peak).compute_fraction * peak)
    assert seconds == pytest.approx(measured_s, rel=0.25)
    assert recurrence_constants(heads, 1e12).compute_fraction == 1.0
