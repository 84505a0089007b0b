"""A model_type that is not known: read by its fields' names, as what is said, and nothing left out in silence."""

from __future__ import annotations

from typing import Any

import pytest
from hf_configs import LATENT, LLAMA, MOE, attention, read, windows

from capacity.base.errors import MalformedFile, UnsupportedModel
from capacity.model import LatentAttention, LinearAttention, from_hf_config
from capacity.model.feed_forward import DenseFeedForward, MoEFeedForward
from capacity.model.recurrent import Recurrence


def test_a_plain_decoder_counts_as_the_llama_that_it_is() -> None:
    model = read(model_type="brand_new")
    assert model.total_params == read().total_params
    assert model.assumed
    (note,) = model.notes
    assert "'brand_new' is unknown" in note
    assert "grouped-query attention and a gated feed-forward, untied embeddings" in note
    assert "(assumed)" in note
    assert "not read" not in note


def test_a_config_without_model_type_is_read_and_said() -> None:
    assert (
        read(model_type=...)
        .notes[0]
        .startswith("a config without model_type is unknown: its field names indicate")
    )


def test_known_types_say_nothing() -> None:
    assert (read().assumed, read().notes) == (False, ())


@pytest.mark.parametrize("field", ["altup_num_inputs", "hyper_streams", "memory_slots"])
def test_a_field_that_may_change_the_layers_is_named(field: str) -> None:
    assert read(model_type="new", **{field: 4}).notes[0].endswith(f"fields not read: {field}")
    assert (
        "not read"
        not in read(model_type="new", **{field: True, "bos_token_id": 7, "rope_theta": 1e6}).notes[0]
    )


def test_many_of_them_are_counted() -> None:
    note = read(model_type="new", **{f"strange_{letter}": 3 for letter in "abcdefgh"}).notes[0]
    assert note.endswith("strange_a, strange_b, strange_c, strange_d, strange_e, strange_f and 2 more")


def test_an_unknown_kind_of_layer_is_read_as_full_attention_and_said() -> None:
    kinds = ["sliding_attention", "holographic_attention"] * 2
    model = read(model_type="new", layer_types=kinds, sliding_window=64)
    assert windows(model) == [64, None, 64, None]
    assert "layer_types 'holographic_attention' (read as full attention)" in model.notes[0]


def test_biases_and_norms_by_their_flags() -> None:
    mixer = attention(read(model_type="new", qkv_bias=True, use_qk_norm=True))
    assert (mixer.qkv_bias, mixer.output_bias, mixer.qk_norm) == (True, False, "per_head")
    mixer = attention(read(model_type="new", use_bias=True))
    assert (mixer.qkv_bias, mixer.output_bias, mixer.qk_norm) == (True, True, "none")


@pytest.mark.parametrize(
    ("activation", "gated"),
    [
        *((name, True) for name in ("silu", "swish", "swiglu", "geglu", "reglu", "mish")),
        *(
            (name, False)
            for name in ("relu2", "relu6", "gelu_new", "gelu", "quick_gelu", "gelu_python", "tanh")
        ),
    ],
)
def test_a_gate_by_the_activation(activation: str, gated: bool) -> None:
    part = read(model_type="new", hidden_act=activation).layer_groups[0].feed_forward
    assert isinstance(part, DenseFeedForward)
    assert part.gated is gated


def test_an_activation_that_has_a_gate_or_none_goes_by_the_norms_and_says_so() -> None:
    tanh = {"model_type": "new", "hidden_act": "gelu_pytorch_tanh"}
    for fields, gated in (({"rms_norm_eps": 1e-6}, True), ({"norm_epsilon": 1e-5}, False)):
        model = read(**tanh, **fields)
        part = model.layer_groups[0].feed_forward
        assert isinstance(part, DenseFeedForward)
        assert part.gated is gated
        assert "is used with and without a gate" in model.notes[0]
    stated = read(**tanh, norm_epsilon=1e-5, use_gated_mlp=True)
    assert stated.layer_groups == read(model_type="new").layer_groups
    assert "says nothing" not in stated.notes[0]


def test_experts_by_any_name() -> None:
    routed = {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    model = read(model_type="new", num_shared_experts=2, **routed)
    part = model.layer_groups[-1].feed_forward
    assert part == MoEFeedForward(
        num_experts=8, experts_per_token=2, expert_intermediate_size=16, shared_intermediate_size=32
    )
    assert isinstance(model.layer_groups[0].feed_forward, DenseFeedForward)
    assert "8 experts, 2 per token" in model.notes[0]


def test_mixers_by_their_fields() -> None:
    linear = {
        f"linear_{k}": 2 for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    }
    mamba = {
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 16,
        "layers_block_type": ["mamba", "attention"] * 2,
    }
    cases: list[tuple[dict[str, Any], set[type]]] = [
        (LATENT, {LatentAttention}),
        ({**linear, "linear_conv_kernel_dim": 4}, {LinearAttention, type(attention(read()))}),
        (mamba, {Recurrence, type(attention(read()))}),
    ]
    for fields, kinds in cases:
        assert {type(group.mixer) for group in read(model_type="new", **fields).layer_groups} == kinds


def test_layer_group_size_makes_lightning_layers_between_softmax_layers() -> None:
    """Ring-flash-linear-2.0: every eighth of 32 layers caches KV, 8 KiB a token; 104 B parameters as published."""
    shapes = {
        "hidden_size": 4096, "intermediate_size": 9216, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 157_184, "num_experts": 256,
        "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024, "n_group": 8,
        "first_k_dense_replace": 1, "layer_group_size": 8, "group_norm_size": 8, "tie_word_embeddings": False,
    }  # fmt: skip
    model = read(model_type="bailing_moe_linear", **shapes)
    assert model.kv_bytes_per_token() == 4 * 2 * 4 * 128 * 2
    assert model.state_bytes_per_sequence() == 28 * 32 * 128 * 128 * 4
    assert model.total_params == pytest.approx(104e9, rel=0.005)
    assert "lightning attention" in model.notes[0]
    assert "not read" not in model.notes[0]


def test_a_field_that_groups_layers_and_is_not_read_is_named() -> None:
    assert (
        "fields not read: layers_per_group" in read(model_type="new", layers_per_group=4, n_group=8).notes[0]
    )
    known = read(layer_group_size=8)
    assert "layer_group_size" in known.notes[0]


def test_rwkv_and_bitnet_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="'rwkv7' is not supported: RWKV's recurrence"):
        from_hf_config({"model_type": "rwkv7", "hidden_size": 64}, name="x")
    with pytest.raises(MalformedFile, match=r"'bitnet' is not supported: .* ternary weights; remove"):
        read(model_type="bitnet", quantization_config={"quant_method": "bitnet"})


def test_a_missing_field_is_still_named() -> None:
    for key in ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "num_attention_heads"):
        with pytest.raises(MalformedFile, match=key):
            from_hf_config({k: v for k, v in LLAMA.items() if k != key} | {"model_type": "new"}, name="x")


def test_experts_of_an_unknown_type_that_are_too_many_are_refused() -> None:
    with pytest.raises(MalformedFile, match="num_experts_per_tok"):
        read(model_type="new", **(MOE | {"num_experts_per_tok": 9}))
