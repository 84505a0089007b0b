"""Mixtures of llama.cpp: which layers get more bits."""

from __future__ import annotations

import pytest

from capacity.model import load_model
from capacity.model.quantization import bits_per_weight, scheme_for


def test_q4_k_m_promotes_half_of_the_sensitive_layers() -> None:
    scheme = scheme_for(load_model("llama-3.1-8b"), "gguf-q4_k_m")
    promoted = {e.part_name: e.layers for e in scheme.exceptions}
    first_and_last, between = {0, 1, 2, 3, 28, 29, 30, 31}, set(range(6, 28, 3))
    assert promoted == {
        "self_attn.v_proj": first_and_last | between,
        "mlp.down_proj": first_and_last | between,
    }
    assert scheme.lm_head.name == "gguf-q6_k"
    tied = scheme_for(load_model("llama-3.2-1b"), "gguf-q4_k_m")
    assert tied.embedding.name == "gguf-q6_k"


def test_bits_are_those_of_the_mixture_by_hand() -> None:
    """Llama-3.1-8B: 16 of 32 layers hold v and down in Q6_K (6.5625 bits), all else in Q4_K (4.5)."""
    model = load_model("llama-3.1-8b")
    layer = {"q": 4096 * 4096, "k": 1024 * 4096, "v": 1024 * 4096, "o": 4096 * 4096, "ffn": 3 * 14336 * 4096}
    promoted = layer["v"] + layer["ffn"] / 3
    by_hand = 4.5 + (6.5625 - 4.5) * promoted / 2 / sum(layer.values())
    bits = {name: bits_per_weight(model, scheme_for(model, name)) for name in ("q4_k_m", "q4_k_s", "q4_0")}
    assert bits["q4_k_m"] == pytest.approx(by_hand, rel=1e-9)
    assert bits["q4_0"] == pytest.approx(4.5)
    assert bits["q4_0"] < bits["q4_k_s"] < bits["q4_k_m"]
