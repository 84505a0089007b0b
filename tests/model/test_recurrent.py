"""Recurrences: what their states hold, and that they are the same for every context."""

from __future__ import annotations

import pytest
from hf_configs import MOE, read

from capacity.model.recurrent import ParallelMixer, Recurrence

MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4}
INNER = 128
STATE = (
    INNER * 16 * 4 + 3 * (INNER + 2 * 16) * 2
)  # of a layer: 32-bit state, three 16-bit inputs of the convolution


def test_a_state_space_model_keeps_states_alone() -> None:
    mamba = {
        "state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "num_attention_heads": ...,
        "num_key_value_heads": ...,
    }
    model = read(model_type="mamba", time_step_rank=4, intermediate_size=INNER, **mamba)
    assert model.kv_bytes_per_token() == 0
    assert model.state_bytes_per_sequence() == 4 * (INNER * 16 * 4 + INNER * 3 * 2)
    assert model.softmax_groups == ()
    assert model.num_kv_heads == 0


def test_a_hybrid_keeps_both() -> None:
    model = read(model_type="bamba", attn_layer_indices=[1], **MAMBA2)
    assert model.state_bytes_per_sequence() == 3 * STATE
    assert model.kv_bytes_per_token() == 2 * 2 * 8 * 2
    assert {g.kind for g in model.kv_cache_groups()} == {"full", "linear"}


def test_a_16_bit_state_is_half_as_large() -> None:
    whole, half = (
        read(model_type="granitemoehybrid", layer_types=["mamba"] * 4, mamba_ssm_cache_dtype=dtype, **MAMBA2)
        for dtype in ("float32", "bfloat16")
    )
    assert whole.state_bytes_per_sequence() - half.state_bytes_per_sequence() == 4 * INNER * 16 * 2


def test_attention_beside_a_recurrence_keeps_both_in_each_layer() -> None:
    model = read(model_type="falcon_h1", mamba_d_ssm=INNER, **MAMBA2)
    (group,) = model.layer_groups
    assert isinstance(group.mixer, ParallelMixer)
    assert (group.mixer.kind, model.num_kv_heads) == ("gqa+mamba2", 2)
    assert model.state_bytes_per_sequence() == 4 * STATE
    assert model.kv_bytes_per_token() == 4 * 2 * 2 * 8 * 2


def test_lightning_and_kimi_states_are_of_every_head() -> None:
    lightning = read(
        model_type="minimax", attn_type_list=[0, 0, 0, 1], num_local_experts=4, **(MOE | {"num_experts": ...})
    )
    assert lightning.state_bytes_per_sequence() == 3 * 8 * 8 * 8 * 4
    linear = {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "full_attn_layers": [4]}
    latent = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    kimi = read(model_type="kimi_linear", linear_attn_config=linear, **latent, **MOE)
    assert kimi.state_bytes_per_sequence() == 3 * (4 * 16 * 16 * 4 + 3 * 3 * 64 * 2)


@pytest.mark.parametrize("share", [1, 3])
def test_counts_grow_with_the_layers(share: int) -> None:
    model = read(model_type="bamba", attn_layer_indices=list(range(share)), **MAMBA2)
    found = [group.num_layers for group in model.layer_groups if isinstance(group.mixer, Recurrence)]
    assert found == [4 - share]
