"""Quark: AMD's formats by their names."""

from __future__ import annotations

from typing import Any

import pytest
from quantization_configs import check_read, check_refused


@pytest.mark.parametrize(
    ("config", "expected", "method"),
    [
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
            },
            "fp8",
            "quark-fp8",
        ),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}},
            "mxfp4",
            "quark-mxfp4",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_config_is_read(config: dict[str, Any], expected: str, method: str) -> None:
    check_read(config, expected, method)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "quark"}, "global_quant_config"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "bfp9"}}}, "bfp9"),
    ],
)
def test_unknown_configs_are_refused_with_the_value(config: dict[str, Any], named: str) -> None:
    check_refused(config, named)
