"""Attention's traffic: the paper's orders of growth, counts by hand, and the measured kernel beside the floor."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step import decode_shape
from capacity.techniques.attention_io import (
    attention_io,
    naive_attention,
    query_tile_rows,
    shared_memory_bytes,
    tiled_attention,
)

KIB = 1024


@lru_cache(maxsize=4)
def pool(model: str = "llama-3.1-8b", gpu: str = "h100") -> ResolvedPool:
    return resolve(model, Pool(gpu=gpu))


def test_by_hand_for_one_head_of_1024_tokens() -> None:
    """N = 1024, d = 64, 16 bit, 100 KiB on chip: naive 4Nd + 4N^2 values; B = 51200/256 = 200 rows, 6 tiles."""
    naive = naive_attention(1024, 64)
    assert naive.hbm_bytes == 2 * (4 * 1024 * 64 + 4 * 1024**2)
    assert naive.extra_memory_bytes == 2 * 2 * 1024**2
    assert query_tile_rows(64, on_chip_bytes=100 * KIB) == 200
    tiled = tiled_attention(1024, 64, on_chip_bytes=100 * KIB)
    assert tiled.hbm_bytes == 2 * (2 * 1024 * 64 + 2 * 1024 * 64 * 6)
    assert tiled.extra_memory_bytes == 8 * 1024
    assert tiled.flops == naive.flops == 4 * 1024**2 * 64


def test_growth_is_the_papers() -> None:
    """Dao et al., theorem 2: naive O(Nd + N^2), tiled O(N^2 d^2 / M): four times per doubling of N, half per 2M."""
    assert naive_attention(65536, 64).hbm_bytes / naive_attention(32768, 64).hbm_bytes == pytest.approx(
        4, rel=0.01
    )
    small = tiled_attention(65536, 64, on_chip_bytes=64 * KIB).hbm_bytes
    assert tiled_attention(131072, 64, on_chip_bytes=64 * KIB).hbm_bytes / small == pytest.approx(4, rel=0.01)
    assert small / tiled_attention(65536, 64, on_chip_bytes=128 * KIB).hbm_bytes == pytest.approx(2, rel=0.02)
    wide = tiled_attention(65536, 128, on_chip_bytes=64 * KIB).hbm_bytes
    assert wide / small == pytest.approx(4, rel=0.01)  # d^2


@given(st.integers(512, 100_000), st.sampled_from([64, 96, 128]), st.booleans())
def test_tiling_never_moves_more_than_writing_the_square(tokens: int, head_dim: int, causal: bool) -> None:
    naive = naive_attention(tokens, head_dim, causal=causal)
    tiled = tiled_attention(tokens, head_dim, on_chip_bytes=227 * KIB, causal=causal)
    assert tiled.hbm_bytes <= naive.hbm_bytes
    assert tiled.flops == naive.flops
    assert tiled.hbm_bytes >= 2 * 4 * tokens * head_dim  # each operand at least once


def test_what_fits_on_chip_is_read_once() -> None:
    assert tiled_attention(100, 64, on_chip_bytes=1 << 30).hbm_bytes == 2 * 4 * 100 * 64


def test_the_measured_kernel_lies_between_the_floor_and_naive_attention() -> None:
    """Prefill attention of Llama-3.1-8B on H100: fitted kernels stay above the tiled roofline, below the naive one."""
    for tokens in (4096, 16384, 65536):
        io = attention_io(pool(), tokens)
        assert io.tiled_seconds < io.kernel_seconds < io.naive_seconds
        assert io.traffic_ratio > 3
    assert (
        attention_io(pool(), 32768).naive_extra_bytes == 2 * 2 * 32 * 32768**2
    )  # 137 GB: more than the GPU has


def test_each_kernel_is_what_the_step_model_says_of_it() -> None:
    """The same as asking for it by name, in a prefill and in a decode; on Hopper the fitted kernel is the third."""
    io = attention_io(pool(), 65_536)
    kernels = {each.kernel: each for each in io.kernels}
    named = resolve("llama-3.1-8b", Pool(gpu="h100", attn_implementation="flash_attention_1")).step_model
    cost = named.step_cost(decode_shape(1, 65_536)).operators
    assert kernels["flash_attention_1"].decode_s == sum(
        op.seconds for op in cost if op.name == "attention decode"
    )
    assert kernels["flash_attention_3"].prefill_s == io.kernel_seconds
    times = [
        kernels[name].times_fitted for name in ("flash_attention_3", "flash_attention_2", "flash_attention_1")
    ]
    assert times == pytest.approx([1.0, 1.75, 3.5], rel=0.02)
    eager = kernels["eager"].times_fitted
    assert eager is not None
    assert eager > 3.5
    assert all(each.source and each.date for each in io.kernels)


def test_a_kernel_of_other_gpus_has_no_time() -> None:
    kernels = {each.kernel: each for each in attention_io(pool(gpu="l40s"), 4096).kernels}
    assert kernels["flash_attention_3"].prefill_s is None
    assert kernels["flash_attention_2"].times_fitted == 1.0


def test_on_chip_memory_is_the_gpus() -> None:
    assert shared_memory_bytes(pool(gpu="h100").profile) == 227 * KIB
    assert shared_memory_bytes(pool(gpu="l40s").profile) == 99 * KIB


def test_bad_questions_are_refused_in_one_line() -> None:
    with pytest.raises(InvalidInput):
        naive_attention(0, 64)
    with pytest.raises(InvalidInput):
        tiled_attention(10, 0, on_chip_bytes=1000)
    with pytest.raises(InvalidInput, match="on-chip"):
        tiled_attention(10, 64, on_chip_bytes=0)
    with pytest.raises(InvalidInput, match="mla"):
        attention_io(pool("deepseek-v2-lite"), 100)
