"""The peak of activations grows with the limits of a step."""

from __future__ import annotations

from filled_pools import MODELS, VLLM
from hypothesis import given
from hypothesis import strategies as st

from capacity.model import load_model
from capacity.pool.activations import activation_bytes


@given(
    name=st.sampled_from(MODELS),
    seqs=st.integers(1, 2048),
    tokens=st.integers(1, 65_536),
    more=st.integers(0, 4096),
)
def test_activations_grow_with_the_limits(name: str, seqs: int, tokens: int, more: int) -> None:
    model = load_model(name)
    base = activation_bytes(model, VLLM, sampled_rows=seqs, tokens=tokens)
    assert activation_bytes(model, VLLM, sampled_rows=seqs + more, tokens=tokens) >= base
    assert activation_bytes(model, VLLM, sampled_rows=seqs, tokens=tokens + more) >= base
