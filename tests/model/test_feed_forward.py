"""Feed-forwards: their parameters in closed form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capacity.model import MoEFeedForward


@given(
    experts=st.integers(1, 64),
    chosen=st.integers(1, 64),
    width=st.integers(1, 256),
    shared=st.integers(0, 256),
)
def test_choosing_more_experts_activates_more(experts: int, chosen: int, width: int, shared: int) -> None:
    chosen = min(chosen, experts)
    ffn = MoEFeedForward(
        num_experts=experts,
        experts_per_token=chosen,
        expert_intermediate_size=width,
        shared_intermediate_size=shared,
    )
    parts = ffn.parts(32, (0,))
    assert sum(p.params for p in parts if p.kind == "experts") == experts * ffn.params_per_expert(32)
    assert sum(p.params for p in parts) == 32 * experts + 3 * 32 * (experts * width + shared)
