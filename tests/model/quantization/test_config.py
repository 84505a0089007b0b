"""Every `quantization_config`: formats, exclusions by module, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from quantization_configs import LLAMA, check_read, check_refused, compressed, scheme_of

from capacity.base.errors import MalformedFile
from capacity.model import from_hf_config


def test_a_gguf_file_type_is_its_format() -> None:
    check_read({"quant_method": "gguf", "file_type": "Q4_K_M"}, "gguf-q4_k", "gguf")


@pytest.mark.parametrize("place", ["quantization_config", "compression_config"])
def test_the_config_is_found_in_every_place(place: str) -> None:
    config = {"quant_method": "fp8"}
    flat = from_hf_config(LLAMA | {place: config}, name="x")
    outer = {"model_type": "llava", "text_config": LLAMA | {place: config}}
    assert flat.checkpoint.name == from_hf_config(outer, name="x").checkpoint.name == "fp8"


def test_an_empty_config_is_none() -> None:
    assert not scheme_of({}).quantized


def test_kv_cache_wishes() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    fp8_cache = {"num_bits": 8, "type": "float", "dynamic": False}
    assert scheme_of(compressed(weights, {}, kv_cache_scheme=fp8_cache)).kv_cache_dtype == "fp8"
    assert scheme_of(compressed(weights, {}, kv_cache_scheme=None)).kv_cache_dtype is None
    algorithm = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    assert scheme_of({"quantization": algorithm}).kv_cache_dtype == "fp8"
    with pytest.raises(MalformedFile, match=r"kv_cache_quant_algo.*FP6"):
        scheme_of({"quantization": algorithm | {"kv_cache_quant_algo": "FP6"}})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "brandnew"}, "brandnew"),
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"bits": 4}, "quant_method"),
        ({"quant_method": "gguf"}, "--quantization"),
        ({"quant_method": 3}, "quant_method"),
    ],
)
def test_unknown_configs_are_refused_with_the_value(config: dict[str, Any], named: str) -> None:
    check_refused(config, named)
