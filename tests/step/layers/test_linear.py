"""Linear attention: its products, and a state that no context makes longer."""

from __future__ import annotations

from step_models import steps

from capacity.step import decode_shape


def test_gates_have_a_product_of_their_own_and_contexts_cost_nothing() -> None:
    short, long = (
        {op.name: op for op in steps("qwen3-next-80b-a3b", tp=4).step_cost(shape).operators}
        for shape in (decode_shape(8, 1000), decode_shape(8, 50_000))
    )
    assert short["linear gates"].flops == 36 * 2 * 8 * 2048 * 2 * (32 / 4)
    assert short["linear qkvz"].flops == 36 * 2 * 8 * 2048 * 2 * (16 * 128 + 32 * 128) / 4
    assert long["linear attention"] == short["linear attention"]
