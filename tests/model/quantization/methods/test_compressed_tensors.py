"""compressed-tensors: groups by target, and what they leave out."""

from __future__ import annotations

from typing import Any

import pytest
from quantization_configs import MIXTURE, check_read, check_refused, compressed, scheme_of


def test_llama_4_scout_fp8_leaves_attention_at_16_bit() -> None:
    ignored = [f"language_model.model.layers.{n}.self_attn.{p}_proj" for n in range(4) for p in "qkvo"]
    ignored += [f"language_model.model.layers.{n}.feed_forward.router" for n in range(4)]
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    activations = {"num_bits": 8, "type": "float", "dynamic": True}
    base = MIXTURE | {"model_type": "llama4_text", "attention_chunk_size": 64}
    scheme = scheme_of(compressed(weights, activations, ignore=ignored), base=base)
    names = (scheme.attention.name, scheme.experts.name, scheme.shared_expert.name, scheme.lm_head.name)
    assert names == ("bf16", "fp8-channel", "fp8-channel", "bf16")
    assert scheme.exceptions == ()


def test_groups_by_target() -> None:
    int4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {
        "experts": {"targets": ["re:.*mlp.experts.*"], "weights": int4},
        "rest": {"targets": ["Linear"], "weights": fp8, "input_activations": {"num_bits": 8}},
    }
    scheme = scheme_of({"quant_method": "compressed-tensors", "config_groups": groups}, base=MIXTURE)
    assert (scheme.experts.name, scheme.attention.name) == ("int4-g128-sym", "fp8-channel")


@pytest.mark.parametrize(
    ("config", "expected", "method"),
    [
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "tensor"}, {}),
            "fp8",
            "compressed-tensors-fp8",
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8}),
            "fp8-channel",
            "compressed-tensors-fp8",
        ),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "channel"}),
            "fp8-channel-w8a16",
            "compressed-tensors-fp8",
        ),
        (
            compressed(
                {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, {}
            ),
            "fp8-block",
            "compressed-tensors-fp8",
        ),
        (
            compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8, "type": "int"}),
            "int8",
            "compressed-tensors-int8",
        ),
        (
            compressed(
                {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}
            ),
            "int4-g128",
            "compressed-tensors-int4",
        ),
        (
            compressed(
                {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
            ),
            "int4-g32-sym",
            "compressed-tensors-int4",
        ),
        (
            compressed(
                {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
                {"num_bits": 4},
            ),
            "nvfp4",
            "compressed-tensors-nvfp4",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_config_is_read(config: dict[str, Any], expected: str, method: str) -> None:
    check_read(config, expected, method)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        (compressed({"num_bits": 5, "type": "int"}), "num_bits.*5 bits"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 64}), "group_size.*64"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "spiral"}), "spiral"),
        (compressed({"num_bits": 8}, ignore=["re:("]), "regular expression"),
        (compressed({"num_bits": 8}, sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24-bitmask"),
    ],
)
def test_unknown_configs_are_refused_with_the_value(config: dict[str, Any], named: str) -> None:
    check_refused(config, named)
