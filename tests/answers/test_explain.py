"""`explain`: shares of the very steps that `estimate` prices."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput

LOAD: dict[str, Any] = {"gpu": "h100", "input_len": 512, "output_len": 64, "batch_size": 8}


def test_it_explains_the_estimate() -> None:
    why, estimate = capacity.explain("llama-3.1-8b", **LOAD), capacity.estimate("llama-3.1-8b", **LOAD)
    assert why.breakdown == estimate.breakdown
    assert estimate.tpot_s is not None
    assert (why.ttft_s, why.tpot_s) == (estimate.ttft_s.value, estimate.tpot_s.value)
    step_s = sum(op.seconds for op in why.breakdown.prefill)
    memory_s = sum(op.seconds for op in why.breakdown.prefill if op.bound == "memory")
    assert why.prefill.memory == pytest.approx(memory_s / step_s)


def test_one_output_token_has_no_decode_step() -> None:
    why = capacity.explain("llama-3.1-8b", **(LOAD | {"output_len": 1}))
    assert why.tpot_s is why.decode is None
    assert why.breakdown.decode == ()
    assert {response.tpot for response in why.responses} == {None}


def test_what_only_a_simulation_answers_to_is_refused() -> None:
    with pytest.raises(InvalidInput, match="does not take 'turns'"):
        capacity.explain("llama-3.1-8b", **LOAD, turns=2)
