"""Bytes of KV: windows, states, kinds of attention and ways to forget, by hand and by counting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.model import load_model, model_names
from capacity.techniques.kv_bytes import compare_attention_kinds, limited_attention, request_kv_bytes

KIB = 1024


def test_windows_stop_growing_and_states_never_do() -> None:
    """Gemma-3-27B: 10 of 62 layers see all, 52 the last 1,024. gpt-oss-120b: 18 and 18 of 128 tokens."""
    gemma = load_model("gemma-3-27b")
    per_layer = 2 * 16 * 128 * 2
    assert request_kv_bytes(gemma, 32768) == per_layer * (10 * 32768 + 52 * 1024)
    assert request_kv_bytes(gemma, 500) == per_layer * 62 * 500
    qwen = load_model("qwen3-next-80b-a3b")
    state = qwen.state_bytes_per_sequence()
    assert request_kv_bytes(qwen, 2000) - request_kv_bytes(qwen, 1000) == 1000 * qwen.kv_bytes_per_token()
    assert request_kv_bytes(qwen, 1) == state + qwen.kv_bytes_per_token()


@given(st.sampled_from(sorted(model_names())), st.integers(1, 1 << 20))
def test_a_longer_context_never_takes_less(name: str, tokens: int) -> None:
    model = load_model(name)
    assert request_kv_bytes(model, tokens) <= request_kv_bytes(model, tokens + 1)
    if model.kv_bytes_per_token():  # an encoder keeps nothing, a recurrence the same state in any format
        assert request_kv_bytes(model, tokens, "fp8") < request_kv_bytes(model, tokens)


def test_kinds_of_attention_by_hand() -> None:
    """Llama-3.1-8B: 32 query heads on 8 KV heads. As MHA 4 times, as MQA an eighth; latent 32 x 576 x 2 B."""
    kinds = compare_attention_kinds(load_model("llama-3.1-8b"))
    assert kinds.actual == "gqa"
    assert kinds.mha_bytes_per_token == 4 * kinds.actual_bytes_per_token
    assert kinds.mqa_bytes_per_token == kinds.actual_bytes_per_token / 8
    assert kinds.mla_bytes_per_token == 32 * 576 * 2
    deepseek = compare_attention_kinds(load_model("deepseek-v3"))
    assert deepseek.actual == "mla"
    assert deepseek.mla_bytes_per_token == deepseek.actual_bytes_per_token
    assert (
        deepseek.mha_bytes_per_token == 61 * 2 * 128 * 128 * 2
    )  # 4 MB: DeepSeek-V2's 93.3 % less than MHA is this


def test_sinks_and_a_window_bound_the_cache() -> None:
    model = load_model("llama-2-7b")
    ways = {w.name: w for w in limited_attention(model, 4_000_000, sink_tokens=4, window_tokens=2044)}
    assert ways["sinks and window"].kv_bytes == 2048 * 512 * KIB
    assert ways["window"].kv_bytes == ways["chunks"].kv_bytes == 2044 * 512 * KIB
    assert ways["full"].kv_bytes == 4_000_000 * 512 * KIB
    for way in limited_attention(model, 100, window_tokens=2044):
        assert (way.kv_bytes, way.pair_fraction, way.seen_tokens) == (100 * 512 * KIB, 1, 100)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 6))
def test_limited_attention_is_what_counting_pairs_gives(tokens: int, window: int, sinks: int) -> None:
    """Token i sees itself and all before it; the last `window`; those and the first `sinks`; or its own chunk."""

    def seen(name: str, i: int, j: int) -> bool:
        return {
            "full": True,
            "window": i - j < window,
            "sinks and window": i - j < window or j < sinks,
            "chunks": i // window == j // window,
        }[name]

    causal = tokens * (tokens + 1) // 2
    for way in limited_attention(load_model("llama-2-7b"), tokens, window_tokens=window, sink_tokens=sinks):
        counted = sum(seen(way.name, i, j) for i in range(tokens) for j in range(i + 1))
        assert way.pair_fraction == pytest.approx(counted / causal)
        assert way.seen_tokens == sum(seen(way.name, tokens - 1, j) for j in range(tokens))
