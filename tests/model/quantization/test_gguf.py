"""Mixtures of llama.cpp: which layers get more bits."""

from __future__ import annotations

from capacity.model import load_model
from capacity.model.quantization import scheme_for


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
