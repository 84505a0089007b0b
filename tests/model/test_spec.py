"""The model as a value: its parameters in parts, what its layers cache, what they are. Numbers are others'."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from capacity.model.parts import ParameterPart


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


def test_what_tensor_parallelism_replicates_in_latent_attention() -> None:
    replicated = {p.name for p in load_model("deepseek-v3").parameter_parts() if p.sharding == "replicated"}
    assert {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "mlp.gate", "layernorms"} <= replicated
    assert not {"self_attn.q_b_proj", "self_attn.kv_b_proj", "self_attn.o_proj"} & replicated


def test_key_and_value_projections_divide_by_kv_heads_only() -> None:
    parts = {p.name: p for p in load_model("qwen3-30b-a3b").parameter_parts()}
    assert parts["self_attn.k_proj"].shard_limit == parts["self_attn.v_proj"].shard_limit == 4
    assert parts["self_attn.q_proj"].sharding == "tensor"


def test_tied_embeddings_are_counted_once() -> None:
    model = load_model("llama-3.2-1b")
    assert [p.kind for p in model.parameter_parts()].count("embedding") == 1
    assert all(p.kind != "lm_head" for p in model.parameter_parts())


@given(
    heads=st.integers(1, 8),
    groups=st.integers(1, 4),
    head_dim=st.sampled_from([32, 64, 128]),
    hidden=st.sampled_from([64, 256]),
    layers=st.integers(1, 5),
    bias=st.booleans(),
)
def test_attention_counts_are_the_closed_form(
    heads: int, groups: int, head_dim: int, hidden: int, layers: int, bias: bool
) -> None:
    q, k, d = heads * groups, heads, head_dim
    mixer = Attention(num_heads=q, num_kv_heads=k, head_dim=d, qkv_bias=bias)
    parts = mixer.parts(hidden, tuple(range(layers)))
    expected = 2 * hidden * q * d + 2 * hidden * k * d + ((q + 2 * k) * d if bias else 0)
    assert sum(part.params for part in parts) == layers * expected


@given(
    experts=st.integers(1, 64),
    chosen=st.integers(1, 64),
    width=st.integers(1, 256),
    shared=st.integers(0, 256),
)
def test_choosing_more_experts_activates_more(experts: int, chosen: int, width: int, shared: int) -> None:
    chosen = min(chosen, experts)
    ffn = MoEFeedForward(
        num_experts=experts,
        experts_per_token=chosen,
        expert_intermediate_size=width,
        shared_intermediate_size=shared,
    )
    parts = ffn.parts(32, (0,))
    assert sum(p.params for p in parts if p.kind == "experts") == experts * ffn.params_per_expert(32)
    assert sum(p.params for p in parts) == 32 * experts + 3 * 32 * (experts * width + shared)


def test_a_part_counts_its_matrices() -> None:
    part = ParameterPart(
        name="mlp.experts.up_proj", kind="experts", rows=3, columns=5, matrices_per_layer=7, layers=(0, 2)
    )
    assert (part.num_matrices, part.params) == (14, 210)


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


def test_latent_cache_is_one_head_whatever_the_heads() -> None:
    model = load_model("deepseek-v3")
    (group, *_) = model.kv_cache_groups()
    assert group.num_kv_heads == 1
    assert model.kv_bytes_per_token() == 61 * (512 + 64) * 2
    assert model.kv_bytes_per_token("fp8") == 61 * 576
    assert not any(g.index for g in model.kv_cache_groups())


def test_sparse_attention_adds_the_indexers_keys_and_packs_fp8_its_own_way() -> None:
    model = load_model("deepseek-v3.2")
    indexer = sum(g.bytes_per_token for g in model.kv_cache_groups() if g.index)
    assert indexer == 61 * 132  # vLLM: 128 FP8 keys and one FP32 scale
    assert model.kv_bytes_per_token("fp8") == 61 * 656  # vLLM fp8_ds_mla: 512 + 16 + 128
    assert sum(g.bytes_per_token for g in model.kv_cache_groups()) == 61 * (1152 + 132)


def test_windows_stand_apart() -> None:
    model = load_model("gpt-oss-120b")
    kinds = {group.kind: group for group in model.kv_cache_groups()}
    assert (kinds["window"].num_layers, kinds["full"].num_layers) == (18, 18)
    assert kinds["window"].window_tokens == model.window_tokens == 128
    scout = load_model("llama-4-scout")
    assert [g.chunked for g in scout.kv_cache_groups()] == [True, False]
    assert scout.window_tokens == 8192
    assert load_model("llama-3.1-8b").window_tokens is None


def test_a_hybrid_keeps_a_state() -> None:
    model = load_model("qwen3-next-80b-a3b")
    linear = next(g for g in model.kv_cache_groups() if g.kind == "linear")
    assert (linear.num_layers, linear.bytes_per_token) == (36, 0)
    assert linear.state_bytes_per_sequence == model.state_bytes_per_sequence() > 0
    assert model.attention_kind == "gqa+linear"


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
