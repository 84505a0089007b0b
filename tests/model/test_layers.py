"""Mixers of a layer: their matrices, how tensor parallelism divides them, and what of KV they keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.model import Attention, load_model
from capacity.techniques.kv_bytes import compare_attention_kinds


def test_key_and_value_projections_divide_by_kv_heads_only() -> None:
    parts = {p.name: p for p in load_model("qwen3-30b-a3b").parameter_parts()}
    assert parts["self_attn.k_proj"].shard_limit == parts["self_attn.v_proj"].shard_limit == 4
    assert parts["self_attn.q_proj"].sharding == "tensor"


@given(
    heads=st.integers(1, 8),
    groups=st.integers(1, 4),
    head_dim=st.sampled_from([32, 64, 128]),
    hidden=st.sampled_from([64, 256]),
    layers=st.integers(1, 5),
    bias=st.booleans(),
)
def test_attention_counts_are_the_closed_form(
    heads: int, groups: int, head_dim: int, hidden: int, layers: int, bias: bool
) -> None:
    q, k, d = heads * groups, heads, head_dim
    mixer = Attention(num_heads=q, num_kv_heads=k, head_dim=d, qkv_bias=bias)
    parts = mixer.parts(hidden, tuple(range(layers)))
    expected = 2 * hidden * q * d + 2 * hidden * k * d + ((q + 2 * k) * d if bias else 0)
    assert sum(part.params for part in parts) == layers * expected


def test_windows_stand_apart() -> None:
    model = load_model("gpt-oss-120b")
    kinds = {group.kind: group for group in model.kv_cache_groups()}
    assert (kinds["window"].num_layers, kinds["full"].num_layers) == (18, 18)
    assert kinds["window"].window_tokens == model.window_tokens == 128
    scout = load_model("llama-4-scout")
    assert [g.chunked for g in scout.kv_cache_groups()] == [True, False]
    assert scout.window_tokens == 8192
    assert load_model("llama-3.1-8b").window_tokens is None


def test_a_hybrid_keeps_a_state() -> None:
    model = load_model("qwen3-next-80b-a3b")
    linear = next(g for g in model.kv_cache_groups() if g.kind == "linear")
    assert (linear.num_layers, linear.bytes_per_token) == (36, 0)
    assert linear.state_bytes_per_sequence == model.state_bytes_per_sequence() > 0
    assert model.attention_kind == "gqa+linear"


@pytest.mark.parametrize(("name", "kib"), [("llama-3.2-11b-vision", 128), ("llama-3.2-90b-vision", 320)])
def test_cross_attention_layers_cache_no_text_tokens(name: str, kib: int) -> None:
    """32 of 40 and 80 of 100 layers attend to the text: 2 x layers x 8 heads x 128 values x 2 bytes."""
    model = load_model(name)
    assert model.kv_bytes_per_token() == kib * 1024
    assert compare_attention_kinds(model).actual_bytes_per_token == kib * 1024
