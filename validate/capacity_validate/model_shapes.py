"""The step that a whole-model case runs, as the step model knows it. Needs no torch."""

from __future__ import annotations

from capacity.step import StepShape, decode_shape, prefill_shape
from capacity_validate.cases import Case


def shape_of(case: Case, window_tokens: int | None = None) -> StepShape:
    """One whole prompt, or a batch of equal contexts."""
    if case.operator.endswith(" prefill"):
        return prefill_shape(1, case["tokens"], window_tokens=window_tokens)
    return decode_shape(case["batch"], case["context"], window_tokens=window_tokens)
