"""Mixtures over ranks: sliced or whole experts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_models import steps

from capacity.step import decode_shape, prefill_shape
from capacity.step.layers.feed_forward import UNEVEN_LOADS


def test_expert_parallel_ranks_hold_whole_experts() -> None:
    shape = decode_shape(512, 1000)
    sliced, whole = (
        {
            op.name: op
            for op in steps("deepseek-v3", tp=8, enable_expert_parallel=ep).step_cost(shape).operators
        }
        for ep in (False, True)
    )
    # All 256 experts are touched either way; the busiest rank has some tokens more than the mean.
    assert whole["experts"].bytes == pytest.approx(sliced["experts"].bytes, rel=0.1)
    assert whole["experts"].flops > sliced["experts"].flops
    dispatched = steps("deepseek-v3", tp=1, data_parallel_size=8, enable_expert_parallel=True).step_cost(
        shape
    )
    assert "expert exchange" in {op.name for op in dispatched.operators}


def test_a_gated_shared_expert_pays_for_its_gate() -> None:
    shape = decode_shape(8, 1000)
    gated, plain = (
        {op.name: op for op in steps(model, tp=8).step_cost(shape).operators}
        for model in ("qwen3-next-80b-a3b", "deepseek-v3")
    )
    assert "shared gate_up" in plain
    assert "shared gate" not in plain
    assert gated["shared gate"].flops == 48 * 2 * 8 * 2048


def test_a_balanced_router_touches_more_experts() -> None:
    skewed, balanced = (
        next(op for op in steps(model, tp=8)._operators.per_token if op.name == "experts")
        for model in ("qwen3-235b-a22b", "deepseek-v3")
    )
    assert skewed.evenness < balanced.evenness
    assert skewed.work(64.0)[1] < replace(skewed, evenness=balanced.evenness).work(64.0)[1]


def test_uneven_loads_slow_large_batches_down_and_leave_small_ones_alone() -> None:
    own = steps("deepseek-v3", tp=8)
    experts = next(op for op in own._operators.per_token if op.name == "experts")
    even = {
        name: getattr(experts.constants, name) / UNEVEN_LOADS
        for name in ("compute_fraction", "routed_fraction")
    }
    balanced = replace(experts, constants=experts.constants.model_copy(update=even))
    lost = [
        experts.seconds(shape) / balanced.seconds(shape)
        for shape in (decode_shape(8, 1000), prefill_shape(1, 16_000))
    ]
    assert lost[0] == pytest.approx(1.0, abs=0.01)
    assert 1.05 < lost[1] < 1 / UNEVEN_LOADS
