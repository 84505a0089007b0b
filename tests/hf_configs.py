"""A small Llama's config.json with changes, and what the tests read of its model."""

from __future__ import annotations

from typing import Any

from capacity.model import Attention, ModelSpec, from_hf_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def read(**changes: Any) -> ModelSpec:
    """The small Llama with `changes`; a value of ... removes its key."""
    config = {key: value for key, value in (LLAMA | changes).items() if value is not ...}
    return from_hf_config(config, name="small")


def windows(model: ModelSpec) -> list[int | None]:
    """By layer."""
    by_layer = {layer: group.mixer.window_tokens for group in model.layer_groups for layer in group.layers}
    return [by_layer[layer] for layer in range(model.num_layers)]


def feed_forwards(model: ModelSpec) -> list[type]:
    """By layer."""
    by_layer = {layer: type(group.feed_forward) for group in model.layer_groups for layer in group.layers}
    return [by_layer[layer] for layer in range(model.num_layers)]


def attention(model: ModelSpec) -> Attention:
    mixer = model.layer_groups[0].mixer
    assert isinstance(mixer, Attention)
    return mixer
