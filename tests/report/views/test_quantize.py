"""The table of ways to quantize."""

from __future__ import annotations

import capacity
from capacity.model.quantization import known_quantizations
from capacity.report.tables import render as render_answer
from capacity.techniques.quantize import quantization_list

METHODS = ("bf16", "fp8-tensor", "awq-int4", "kv-fp8")


def test_prices_stand_only_where_one_was_given() -> None:
    asked = {"gpu": "h100", "methods": METHODS}
    assert "$/1M tokens" not in render_answer(capacity.quantize("llama-3.1-8b", **asked), "table")
    priced = capacity.quantize("llama-3.1-8b", price="2", **asked)
    shown = render_answer(priced, "table")
    assert "$/1M tokens" in shown
    for row in priced.rows:
        assert f"{row.usd_per_million_tokens:,.3f}" in shown


def test_what_the_gpu_and_the_engine_cannot_is_marked() -> None:
    """An A100 has no FP8 product, and ollama loads no AWQ."""
    shown = render_answer(capacity.quantize("llama-3.1-8b", gpu="a100", methods=["fp8-tensor"]), "table")
    assert "bf16 *" in shown
    foreign = capacity.quantize("llama-3.1-8b", gpu="h100", engine="ollama", methods=["awq-int4"])
    assert not foreign.rows[0].engine_loads
    assert "awq-int4 †" in render_answer(foreign, "table")


def test_the_names_of_quantization_are_listed() -> None:
    listed = quantization_list()
    text = render_answer(listed, "table")
    assert [row.name for row in listed.rows] == list(known_quantizations())
    for word in ("awq-no-marlin", "squeezellm-4", "int8-sq", "eetq", "gguf-q4_k_m", "bitsandbytes writes"):
        assert word in text


def test_what_is_said_of_several_methods_stands_once() -> None:
    answer = capacity.quantize(
        "llama-3.1-70b", gpu="a100", methods=["gguf-q4_k_m", "gguf-q8_0", "kv-fp8", "kv-int8"]
    )
    shown = " ".join(render_answer(answer, "table").split())
    assert answer.rows[0].note == answer.rows[1].note
    assert shown.count("early copy of") == 1
    assert "see gguf-q4_k_m" in shown
    assert answer.rows[2].reason == answer.rows[3].reason
    assert "kv-fp8, kv-int8: llama-3.1-70b (bf16) needs" in shown
