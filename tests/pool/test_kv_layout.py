"""The layout of KV blocks: closed forms, and the longest request that they hold."""

from __future__ import annotations

import math

import pytest
from filled_pools import H100, VLLM, pool_of
from hypothesis import given
from hypothesis import strategies as st

from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.pool.kv_layout import KvLayout, kv_layout


@pytest.mark.parametrize(
    ("name", "tp", "block_bytes"),
    [
        # 2 x layers x KV heads on the rank x head_dim x 2 bytes x 16 tokens
        ("llama-2-7b", 1, 2 * 32 * 32 * 128 * 2 * 16),
        ("llama-3.1-8b", 1, 2 * 32 * 8 * 128 * 2 * 16),
        ("llama-3.1-8b", 8, 2 * 32 * 1 * 128 * 2 * 16),
        ("llama-3.1-8b", 16, 2 * 32 * 1 * 128 * 2 * 16),  # KV heads replicate past their number
        ("mistral-small-24b", 1, 163_840 * 16),
        # MLA: one latent, no factor 2, block 32, the same on every rank
        ("deepseek-v3", 1, 61 * 576 * 2 * 32),
        ("deepseek-v3", 8, 61 * 576 * 2 * 32),
        # hybrid: 18 layers a group, one page each
        ("gpt-oss-120b", 1, 18 * 2 * 8 * 64 * 2 * 16),
        # Gemma-3-27B: 10 full and 52 windowed layers: groups of 10
        ("gemma-3-27b", 1, 10 * 2 * 16 * 128 * 2 * 16),
    ],
)
def test_block_bytes(name: str, tp: int, block_bytes: int) -> None:
    assert (
        kv_layout(pool_of(load_model(name), H100, VLLM, tensor_parallel_size=tp)).block_bytes == block_bytes
    )


def test_gemma_3_groups() -> None:
    """62 layers: 10 full (one group), 52 windowed (six groups of 10, the last padded by 8)."""
    pool = pool_of(load_model("gemma-3-27b"), H100, VLLM, max_model_len=131_072, max_num_batched_tokens=8192)
    layout = kv_layout(pool)
    assert (layout.full_groups, layout.window_groups, layout.state_groups) == (1, (1023 + 8192,) * 6, 0)
    whole, window = 131_072 // 16, math.ceil((1023 + 8192) / 16) + 1
    assert layout.blocks_of_request(131_072) == whole + 6 * window
    assert layout.blocks_of_request(160) == 7 * 10  # shorter than the window: all groups alike


def test_linear_layers_need_one_block_each_group() -> None:
    """Qwen3-Next: 12 full and 36 linear layers; the block grows until a page holds one state."""
    model = load_model("qwen3-next-80b-a3b")
    layout = kv_layout(pool_of(model, H100, VLLM))
    assert (layout.full_groups, layout.window_groups, layout.state_groups) == (1, (), 3)
    state = model.state_bytes_per_sequence() / 36
    page = model.kv_bytes_per_token() / 12 * layout.block_tokens
    assert state <= page < state + 16 * model.kv_bytes_per_token() / 12
    assert layout.blocks_of_request(1) == 4
    assert layout.blocks_of_request(10 * layout.block_tokens) == 13


def test_an_engine_without_hybrid_groups_keeps_windows_whole() -> None:
    model = load_model("gpt-oss-120b")
    whole = kv_layout(pool_of(model, H100, find_engine("vllm@0.8")))
    assert (whole.groups, whole.full_groups) == (1, 1)
    assert whole.block_bytes == 36 * 2 * 8 * 64 * 2 * 16


@given(
    full=st.integers(0, 2),
    windows=st.lists(st.integers(1, 10_000), max_size=3),
    states=st.integers(0, 2),
    block=st.sampled_from([1, 16, 64]),
    blocks=st.integers(0, 5000),
    limit=st.integers(1, 100_000),
)
def test_longest_request_is_the_longest(
    full: int, windows: list[int], states: int, block: int, blocks: int, limit: int
) -> None:
    layout = KvLayout(
        block_tokens=block, block_bytes=1, full_groups=full, window_groups=tuple(windows), state_groups=states
    )
    longest = layout.longest_request(blocks, limit)
    assert 0 <= longest <= limit
    assert longest == 0 or layout.blocks_of_request(longest) <= blocks
    assert longest == limit or layout.blocks_of_request(longest + 1) > blocks


@pytest.mark.parametrize(
    ("name", "release", "gpu", "token_bytes", "share"),
    [
        # 18 full layers, and 0.8 tokens of the 18 others for each of their tokens
        ("gpt-oss-120b", "0.5.23", "h100", 2 * 8 * 64 * 2 * (18 + 0.8 * 18), 0.8),
        ("gpt-oss-120b", "0.5.8", "h100", 2 * 8 * 64 * 2 * (18 + 0.8 * 18), 0.8),
        # none on Blackwell before 0.5.10, and nowhere before 0.5.8: all layers keep all tokens
        ("gpt-oss-120b", "0.5.8", "b200", 2 * 8 * 64 * 2 * 36, 0.0),
        ("gpt-oss-120b", "0.5.10", "b200", 2 * 8 * 64 * 2 * (18 + 0.8 * 18), 0.8),
        ("gpt-oss-120b", "0.5.4", "h100", 2 * 8 * 64 * 2 * 36, 0.0),
        # 39 of 48 layers have windows, with 8 in place of 4 KV heads; values are narrower than keys
        ("mimo-v2-flash", "0.5.23", "h100", (192 + 128) * 2 * (4 * 9 + 0.8 * 8 * 39), 0.8),
        # never: Gemma 3, and models of which all layers have windows
        ("gemma-3-27b", "0.5.23", "h100", 2 * 16 * 128 * 2 * 62, 0.0),
        ("mistral-7b-v0.1", "0.5.23", "h100", 2 * 8 * 128 * 2 * 32, 0.0),
    ],
)
def test_sglang_has_a_separate_pool_of_windows_for_some_models(
    name: str, release: str, gpu: str, token_bytes: float, share: float
) -> None:
    engine = find_engine(f"sglang@{release}")
    layout = kv_layout(pool_of(load_model(name), load_profile(gpu), engine))
    assert (layout.block_bytes, layout.window_share) == (math.ceil(token_bytes), share)
    assert layout.kv_windows == (None,)


def test_requests_that_fit_are_limited_by_the_smaller_pool() -> None:
    """1,000 tokens, and 800 in the pool of windows, where a request keeps two windows of 10 and 128 tokens."""
    layout = KvLayout(
        block_tokens=1,
        block_bytes=1,
        full_groups=1,
        window_groups=(),
        state_groups=0,
        pool_window=10,
        window_share=0.8,
    )
    assert layout.requests_held(1000, 100) == 800 / 100
    assert layout.requests_held(1000, 200) == 1000 / 200
    assert layout.requests_held(1000, 160) == 800 / 148
