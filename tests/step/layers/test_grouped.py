"""Attention by groups of heads: what a decode reads of its KV cache."""

from __future__ import annotations

import pytest
from step_models import steps

from capacity.step import decode_shape


def test_an_8_bit_cache_halves_the_kv_bytes() -> None:
    shape = decode_shape(64, 8000)
    full, half = (
        {op.name: op for op in steps(kv=kv).step_cost(shape).operators}["attention decode"]
        for kv in ("auto", "fp8")
    )
    assert half.bytes == pytest.approx(full.bytes / 2, rel=1e-3)
    assert half.seconds < full.seconds


def test_kv_heads_beyond_their_number_replicate() -> None:
    shape = decode_shape(64, 8000)
    moved = {
        tp: {op.name: op.bytes for op in steps(tp=tp).step_cost(shape).operators}["attention decode"]
        for tp in (4, 8, 16)
    }
    assert moved[4] == pytest.approx(2 * moved[8], rel=1e-2)
    assert moved[16] == pytest.approx(moved[8], rel=1e-2)  # 8 KV heads


def test_a_window_stops_growing() -> None:
    shapes = [decode_shape(8, context, window_tokens=128) for context in (200, 20_000)]
    for name, same in (("attention decode (window)", True), ("attention decode", False)):
        a, b = (
            {op.name: op.bytes for op in steps("gpt-oss-120b").step_cost(s).operators}[name] for s in shapes
        )
        assert (a == b) is same


def test_a_norm_over_all_heads_sums_over_the_ranks() -> None:
    shape = decode_shape(4, 1000)
    alone, together = (
        {op.name: op for op in steps("minimax-m2", tp=tp).step_cost(shape).operators} for tp in (1, 4)
    )
    assert "all-reduce of norms" not in alone
    sums, messages = together["all-reduce of norms"], together["all-reduce"]
    assert sums.bytes < messages.bytes / 100
    assert 62 * 2e-6 < sums.seconds < messages.seconds  # one small message a layer
