"""Tables of KV by model, GPU and context."""

from __future__ import annotations

import capacity
from capacity.report.tables import render as render_answer
from capacity.report.views.kv import kv_facts


def test_what_was_not_asked_for_has_no_table() -> None:
    plain = render_answer(capacity.kv(["llama-3.1-8b"], contexts=(4096,)), "table")
    assert "GiB at 4K" in plain
    assert "0.50" in plain  # 128 KiB a token, 4,096 of them
    assert "Long contexts" not in plain
    assert "Sliding window in every layer" not in plain
    windowed = render_answer(capacity.kv(["llama-3.1-8b"], contexts=(4096,), window_tokens=1020), "table")
    assert "Sliding window in every layer: 1,020 tokens, 4 attention sinks" in windowed


def test_a_gpu_that_holds_nothing_says_why() -> None:
    shown = " ".join(
        render_answer(capacity.kv(["deepseek-v3"], gpus=["l4"], contexts=(4096,)), "table").split()
    )
    assert "none" in shown
    assert "deepseek-v3 on l4-24gb: " in shown


def test_an_evicted_cache_that_alone_fits_has_a_speed() -> None:
    answer = capacity.kv("llama-3.1-8b", gpus="h100", contexts=(2**20,), eviction="all")
    fact = kv_facts(answer, 2**20, 8)[-1]
    assert fact.label == "KV eviction"
    assert fact.note.endswith(", not lossless")  # without a speed of the full cache to compare with
