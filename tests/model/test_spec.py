"""The model as a value: its parameters in parts, what its layers cache, what they are. Numbers are others'."""

from __future__ import annotations

import pytest

from capacity.base.errors import UnknownName
from capacity.model import (
    Attention,
    DenseFeedForward,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    MoEFeedForward,
    load_model,
    model_names,
)


@pytest.mark.parametrize("name", model_names())
def test_parts_are_distinct_and_cover_every_layer(name: str) -> None:
    model = load_model(name)
    parts = model.parameter_parts()
    assert len({(part.name, part.layers) for part in parts}) == len(parts)
    indices = sorted(layer for group in model.layer_groups for layer in group.layers)
    assert indices == list(range(model.num_layers))
    assert all(part.params > 0 for part in parts)
    assert all(set(part.layers) <= set(indices) for part in parts)
    assert all((part.shard_limit is not None) == (part.sharding == "kv_heads") for part in parts)
    dividers = {
        "embedding": "vocabulary",
        "lm_head": "vocabulary",
        "experts": "experts",
        "router": "replicated",
    }
    assert all(part.sharding == dividers[part.kind] for part in parts if part.kind in dividers)


def test_tied_embeddings_are_counted_once() -> None:
    model = load_model("llama-3.2-1b")
    assert [p.kind for p in model.parameter_parts()].count("embedding") == 1
    assert all(p.kind != "lm_head" for p in model.parameter_parts())


# KV cache


def test_kv_cache_formats_scale_the_bytes() -> None:
    model = load_model("llama-3.1-70b")
    assert model.kv_bytes_per_token() == 2 * 80 * 8 * 128 * 2
    assert model.kv_bytes_per_token("fp8") == model.kv_bytes_per_token() / 2
    assert model.kv_bytes_per_token("int4") == 2 * 80 * 8 * (128 / 2 + 4)  # FP16 scale and zero per head
    with pytest.raises(UnknownName, match="KV cache dtype"):
        model.kv_bytes_per_token("fp7")


def test_mistral_small_holds_what_vllm_prints() -> None:
    # 163,840 bytes per token: vLLM 0.11 log, llm-d-planner docs/empirical-vllm-memory-results.md
    assert load_model("mistral-small-24b").kv_bytes_per_token() == 163_840


def test_group_types() -> None:
    def mixers(name: str) -> set[type]:
        return {type(group.mixer) for group in load_model(name).layer_groups}

    assert mixers("llama-2-7b") == {Attention}
    assert mixers("kimi-k2") == {LatentAttention}
    assert mixers("qwen3.5-35b-a3b") == {Attention, LinearAttention}
    kimi = load_model("kimi-k2").layer_groups
    assert [(g.layers[0], g.num_layers, type(g.feed_forward)) for g in kimi] == [
        (0, 1, DenseFeedForward),
        (1, 60, MoEFeedForward),
    ]
    assert load_model("llama-2-7b").attention_kind == "mha"
    assert load_model("deepseek-v3").attention_kind == "mla"
    assert load_model("deepseek-v3").num_attention_heads == 128


def test_specs_are_values() -> None:
    assert load_model("qwen3-8b") == load_model("Qwen/Qwen3-8B")
    assert len({load_model("qwen3-8b"), load_model("qwen3-8b")}) == 1
    group = LayerGroup(
        layers=(0,),
        mixer=Attention(num_heads=1, num_kv_heads=1, head_dim=2),
        feed_forward=DenseFeedForward(intermediate_size=4),
    )
    assert group.num_layers == 1
