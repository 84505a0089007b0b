"""ModelOpt: algorithms by name and by module."""

from __future__ import annotations

from typing import Any

import pytest
from quantization_configs import MIXTURE, check_read, check_refused, scheme_of


def test_mixed_precision_names_every_module() -> None:
    layers = {f"model.layers.{n}.mlp.experts": {"quant_algo": "NVFP4"} for n in range(4)}
    layers |= {f"model.layers.{n}.self_attn.{p}_proj": {"quant_algo": "FP8"} for n in range(4) for p in "qkv"}
    layers |= {"lm_head": {"quant_algo": "W4A16_NVFP4"}}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    scheme = scheme_of(config, base=MIXTURE)
    assert (scheme.experts.name, scheme.shared_expert.name, scheme.lm_head.name) == (
        "nvfp4",
        "bf16",
        "nvfp4-w4a16",
    )
    exceptions = {e.part_name: e.weight_format.name for e in scheme.exceptions}
    by_format = {"fp8": {"q", "k", "v"}, "bf16": {"o"}}
    for name, projections in by_format.items():
        for projection in projections:
            found = exceptions.get(f"self_attn.{projection}_proj", scheme.attention.name)
            assert found == name


@pytest.mark.parametrize(
    ("config", "expected", "method"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", "modelopt-fp8"),
        ({"quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4", "modelopt-nvfp4"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "nvfp4", "modelopt-nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "nvfp4-w4a16", "modelopt-nvfp4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_config_is_read(config: dict[str, Any], expected: str, method: str) -> None:
    check_read(config, expected, method)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP5"}, "FP5"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
    ],
)
def test_unknown_configs_are_refused_with_the_value(config: dict[str, Any], named: str) -> None:
    check_refused(config, named)


@pytest.mark.parametrize("algorithm", ["NVFP4", "MXFP4", "W4A16_AWQ", "W4A16_NVFP4"])
@pytest.mark.parametrize("size", [0, -2, 17.5, "x", 1 << 40])
def test_a_group_of_none_is_refused(algorithm: str, size: object) -> None:
    check_refused({"quant_method": "modelopt", "quant_algo": algorithm, "group_size": size}, "group_size")


def test_groups_are_those_of_the_algorithm_or_as_they_are_given() -> None:
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    check_read(modelopt, "nvfp4", "modelopt-nvfp4")
    check_refused(modelopt | {"group_size": 32}, "nvfp4 has groups of 16")
    assert (
        scheme_of(modelopt | {"quant_algo": "W4A16_AWQ", "group_size": 64}).dense_ffn.name == "int4-g64-sym"
    )
    mixed = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4", "group_size": 0}},
    }
    check_refused(modelopt | mixed, "group_size")
