"""AWQ, GPTQ, FP8, MXFP4 and bitsandbytes: one format for all, overridden by module."""

from __future__ import annotations

from typing import Any

import pytest
from quantization_configs import MIXTURE, check_read, check_refused, scheme_of


def test_mxfp4_is_of_experts_only() -> None:
    scheme = scheme_of({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, base=MIXTURE)
    assert (scheme.experts.name, scheme.attention.name, scheme.shared_expert.name) == (
        "mxfp4",
        "bf16",
        "bf16",
    )


def test_gptq_overrides_by_module() -> None:
    dynamic = {"-:.*self_attn.*": {}, r"+:.*mlp\.down_proj.*": {"bits": 8}}
    scheme = scheme_of({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic})
    assert (scheme.attention.name, scheme.dense_ffn.name) == ("bf16", "int4-g128")
    assert {e.part_name: e.weight_format.name for e in scheme.exceptions} == {"mlp.down_proj": "int8-g128"}


@pytest.mark.parametrize(
    ("config", "expected", "method"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4-g128", "awq"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4-g64", "awq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, "int4-g32", "gptq"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8-channel", "gptq"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, "fp8-block", "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [1, 128]}, "fp8-block-1x128", "fp8"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8-channel-fp32", "fbgemm_fp8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "llm-int8", "bitsandbytes-int8"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4", "bitsandbytes-nf4"),
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            },
            "nf4-dq",
            "bitsandbytes-nf4",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_config_is_read(config: dict[str, Any], expected: str, method: str) -> None:
    check_read(config, expected, method)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "gptq", "bits": 5}, "5 is not one of"),
        ({"quant_method": "gptq"}, "bits"),
        ({"quant_method": "awq", "bits": 3}, "3 bits"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"quant_method": "fp8", "modules_to_not_convert": [3]}, "modules_to_not_convert"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf5"}, "nf5"),
    ],
)
def test_unknown_configs_are_refused_with_the_value(config: dict[str, Any], named: str) -> None:
    check_refused(config, named)
