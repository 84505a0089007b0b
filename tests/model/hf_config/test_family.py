"""Families of architectures: biases, norms, mixers, and those that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import LATENT, MOE, attention, read, windows
from pydantic import TypeAdapter

from capacity.base.errors import MalformedFile
from capacity.model import Attention, LatentAttention, LinearAttention, MoEFeedForward
from capacity.model.feed_forward import DenseFeedForward, NoFeedForward
from capacity.model.hf_config import family
from capacity.model.hf_config.family import Family, find_family, supported_model_types
from capacity.model.recurrent import NoMixer, Recurrence


def test_biases_by_family() -> None:
    def biases(**changes: Any) -> tuple[bool, bool]:
        found = attention(read(**changes))
        return found.qkv_bias, found.output_bias

    assert biases() == (False, False)
    assert biases(attention_bias=True) == (True, True)
    assert biases(model_type="qwen2") == (True, False)
    assert biases(model_type="qwen3") == (False, False)
    assert biases(model_type="glm4_moe", n_routed_experts=4, attention_bias=True, **MOE) == (True, False)
    assert biases(model_type="gpt_oss", **MOE) == (True, True)
    assert biases(model_type="qwen2_moe", qkv_bias=False, **MOE) == (False, False)


def test_norms_by_family() -> None:
    assert attention(read(model_type="qwen3")).qk_norm == "per_head"
    assert attention(read(model_type="minimax_m2", **MOE)).qk_norm == "full"
    assert attention(read(model_type="glm4_moe", use_qk_norm=True, **MOE)).qk_norm == "per_head"
    assert attention(read(model_type="glm4_moe", **MOE)).qk_norm == "none"
    assert (read(model_type="gemma2").norms_per_layer, read().norms_per_layer) == (4, 2)


def test_gpt_oss_has_sinks_and_expert_biases() -> None:
    model = read(model_type="gpt_oss", sliding_window=128, **MOE)
    ffn = model.layer_groups[0].feed_forward
    assert isinstance(ffn, MoEFeedForward)
    assert (attention(model).sinks, ffn.expert_bias, ffn.router_bias) == (True, True, True)
    assert windows(model) == [128, None, 128, None]


def test_routers_with_a_correction_bias_are_balanced() -> None:
    def balanced(model_type: str, **fields: Any) -> bool:
        ffn = read(model_type=model_type, **fields).layer_groups[-1].feed_forward
        assert isinstance(ffn, MoEFeedForward)
        return ffn.balanced_router

    routed = MOE | {"n_routed_experts": 4}
    assert balanced("minimax_m2", **MOE)
    assert balanced("glm4_moe", **routed)
    assert balanced("deepseek_v3", **(LATENT | routed))
    assert not balanced("deepseek_v2", **(LATENT | routed))
    assert not balanced("qwen3_moe", **MOE)
    assert not balanced("gpt_oss", **MOE)


def test_sparse_attention_needs_its_indexer() -> None:
    with pytest.raises(MalformedFile, match="index_n_heads"):
        read(model_type="glm_moe_dsa", **LATENT)
    indexed = LATENT | {"q_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 128, "index_topk": 64}
    mixer = read(model_type="deepseek_v32", **indexed).layer_groups[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert mixer.indexer is not None
    assert mixer.indexer.top_k == 64


def test_qwen_next_is_linear_but_every_fourth() -> None:
    linear = {
        f"linear_{k}": 2 for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    }
    model = read(model_type="qwen3_next", linear_conv_kernel_dim=4, **linear, **MOE)
    kinds = {layer: type(group.mixer) for group in model.layer_groups for layer in group.layers}
    assert kinds == {0: LinearAttention, 1: LinearAttention, 2: LinearAttention, 3: Attention}
    full = model.layer_groups[1].mixer
    assert isinstance(full, Attention)
    assert full.output_gate


def test_mtp_layers_are_counted_apart() -> None:
    plain, with_mtp = (read(model_type="deepseek_v3", num_nextn_predict_layers=n, **LATENT) for n in (0, 2))
    assert plain.total_params == with_mtp.total_params
    assert plain.mtp_parts() == ()
    assert with_mtp.mtp is not None
    assert with_mtp.mtp.layers == (4, 5)


def test_nemotron_counts_mixers_and_feed_forwards_as_layers() -> None:
    mamba = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2}
    model = read(model_type="nemotron_h", hybrid_override_pattern="M-*E", **mamba, **MOE)
    kinds = [type(group.mixer) for group in model.layer_groups]
    forms = [type(group.feed_forward) for group in model.layer_groups]
    assert kinds == [Recurrence, NoMixer, Attention, NoMixer]
    assert forms == [NoFeedForward, DenseFeedForward, NoFeedForward, MoEFeedForward]
    # inner 32 x state 16 at 32 bit, and three inputs of a convolution over 32 + 2 x 2 x 16 at 16 bit
    assert model.state_bytes_per_sequence() == 32 * 16 * 4 + 3 * 96 * 2
    with pytest.raises(MalformedFile, match="hybrid_override_pattern"):
        read(model_type="nemotron_h", hybrid_override_pattern="MX", **mamba)


def test_gemma_layers_that_share_a_cache_keep_none() -> None:
    sizes = {
        "global_head_dim": 512,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 1000,
        "sliding_window": 64,
    }
    types = ["sliding_attention", "full_attention"] * 2
    model = read(model_type="gemma4_text", head_dim=8, num_kv_shared_layers=2, layer_types=types, **sizes)
    full = {g.layers for g in model.kv_cache_groups() if g.kind == "full"}
    assert full == {(1,)}
    # the one full layer that keeps: 2 KV heads of 512, keys and values, 16 bit
    assert model.kv_bytes_per_token() == 2 * 2 * 512 * 2


def test_compressed_attention_keeps_a_window_and_entries_of_several_tokens() -> None:
    fields = {
        "head_dim": 32, "q_lora_rank": 16, "o_groups": 2, "o_lora_rank": 8, "sliding_window": 64,
        "index_n_heads": 2, "index_head_dim": 128, "index_topk": 16, "compress_ratios": [0, 128, 4, 128],
    }  # fmt: skip
    model = read(model_type="deepseek_v4", **fields, **MOE)
    # 32 values at 16 bit: every 128th token in two layers, every fourth in one, with an index key there; the window
    # in all four
    assert model.kv_bytes_per_token() == 64 * (2 / 128 + 1 / 4) + 132 / 4
    assert model.window_kv_bytes_per_token() == 4 * 64
    with pytest.raises(MalformedFile, match="compress_ratios"):
        read(model_type="deepseek_v4", **(fields | {"compress_ratios": [4]}), **MOE)


def test_every_row_is_a_family_of_the_kinds_that_its_fields_declare() -> None:
    adapter = TypeAdapter(Family)
    for model_type in supported_model_types():
        found = find_family(model_type)
        adapter.validate_python({name: getattr(found, name) for name in Family.__dataclass_fields__})
        for rule in ("mixer", "feed_forward", "window", "extras", "outside", "phase"):
            assert callable(getattr(found, rule)), (model_type, rule)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"qkv_bais": True}, "llama: got an unexpected keyword argument 'qkv_bais'"),
        ({"mixer": "mixers.grouped_quarry"}, "llama: there is no rule 'mixers.grouped_quarry'"),
        (
            {"window": {"rule": "windows.interleaved_window", "every": 2}},
            "unexpected keyword argument 'every'",
        ),
        ({"like": "lama"}, "llama: like: there is no row 'lama'"),
    ],
)
def test_a_slip_in_a_row_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    rows = family._rows()
    monkeypatch.setattr(family, "_rows", lambda: rows | {"llama": rows["llama"] | change})
    find_family.cache_clear()
    with pytest.raises(MalformedFile, match=said):
        find_family("llama")
    find_family.cache_clear()
