"""Stretched step times: their pieces, and the quantiles of the error band."""

from __future__ import annotations

import pytest

from capacity import estimate
from capacity.deployment import Pool
from capacity.planning.evaluation.step_error import Factors, ScaledSteps, factors_at
from capacity.pool.resolve import resolve
from capacity.step import decode_shape, prefill_shape


def test_scaled_steps_agree_with_their_pieces() -> None:
    steps = ScaledSteps(
        resolve("llama-3.1-8b", Pool(gpu="h100")).step_model, Factors(prefill=1.4, decode=1.1)
    )
    for batch, context in ((1, 100), (7, 1000), (64, 4096), (200, 777)):
        shape = decode_shape(batch, context)
        piece = steps.decode_piece(shape)
        later = shape._replace(decode_context_tokens=piece.max_context_tokens or shape.decode_context_tokens)
        for at in (shape, later):
            value = piece.base_ps + piece.context_ps * at[9] + piece.window_context_ps * at[10]
            assert steps.step_ps(at) == value
        assert steps.step_ps(shape) * 1e-12 == pytest.approx(steps.step_seconds(shape), rel=0.01)
    assert steps.step_seconds(prefill_shape(1, 500)) == pytest.approx(
        1.4 * resolve("llama-3.1-8b", Pool(gpu="h100")).step_model.step_seconds(prefill_shape(1, 500))
    )


@pytest.mark.parametrize(
    ("model", "concurrency"), [("llama-3.1-8b", 16), ("llama-3.1-8b", 64), ("qwen3-30b-a3b", 16)]
)
def test_factors_at_95_percent_are_the_ends_of_estimate(model: str, concurrency: int) -> None:
    """The 5 % and 95 % points are the ends of the 90 % interval: of the same deployment at a load."""
    resolved = resolve(model, Pool(gpu="h100"))
    found = estimate(model, gpu="h100", input_len=1000, output_len=500, concurrency=concurrency).tpot_s
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert factors_at(resolved, 0.95).decode == pytest.approx(found.high / found.value, rel=0.03)
    assert factors_at(resolved, 0.05).decode == pytest.approx(found.low / found.value, rel=0.03)
    assert factors_at(resolved, 0.5) == factors_at(resolved, None) == Factors()
