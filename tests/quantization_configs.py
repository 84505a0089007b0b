"""Small models with a `quantization_config`."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.base.errors import MalformedFile
from capacity.model import ModelSpec, from_hf_config
from capacity.model.quantization import QuantizationScheme

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
MIXTURE = LLAMA | {
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}


def quantized(config: dict[str, Any], *, base: dict[str, Any] = LLAMA) -> ModelSpec:
    return from_hf_config(base | {"quantization_config": config}, name="small")


def scheme_of(config: dict[str, Any], *, base: dict[str, Any] = LLAMA) -> QuantizationScheme:
    return quantized(config, base=base).checkpoint


def compressed(
    weights: dict[str, Any], activations: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}} | more


def check_read(config: dict[str, Any], expected: str, method: str) -> None:
    """The config is read as one format of all matrices; embedding and head stay at 16 bit."""
    scheme = scheme_of(config)
    assert (scheme.dense_ffn.name, scheme.attention.name, scheme.method) == (expected, expected, method)
    if method != "gguf":
        assert (scheme.lm_head.name, scheme.embedding.name) == ("bf16", "bf16")


def check_refused(config: dict[str, Any], named: str) -> None:
    """The config is refused in one line that names its field and value."""
    with pytest.raises(MalformedFile, match=named) as caught:
        scheme_of(config)
    assert "quantization_config" in str(caught.value)
    assert "\n" not in str(caught.value)
