"""What several methods say alike: sizes of blocks and groups, and weights that are dequantized first."""

from __future__ import annotations

import pytest

from capacity.base.errors import MalformedFile
from capacity.base.fields import Fields
from capacity.model.quantization import find_format, weight_formats
from capacity.model.quantization.methods.recipe import (
    float4_format,
    fp8_block_format,
    kv_cache_scheme,
    make_weight_only,
    read_group_size,
)


def fields(**values: object) -> Fields:
    return Fields(values, "config.json")


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (1, 128), (64, 32)])
def test_a_block_has_one_scale_of_32_bits(rows: int, columns: int) -> None:
    stored = fp8_block_format(fields(block=[rows, columns]), "block")
    assert stored.matrix_bytes(256, 256) == 256 * 256 + 4 * (256 // rows) * (256 // columns)


def test_dequantized_weights_are_the_same_bytes_on_any_gpu() -> None:
    for stored in map(find_format, weight_formats()):
        only = make_weight_only(stored)
        assert only.matrix_bytes(300, 500) == stored.matrix_bytes(300, 500)
        assert only.execution({"bf16"}).compute_dtype == "bf16"


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(MalformedFile, match=r"group_size.*64 is neither 16"):
        float4_format(fields(), 64)
    with pytest.raises(MalformedFile, match=r"bits.*-2 is outside of -1"):
        read_group_size(fields(bits=-2), "bits")
    with pytest.raises(MalformedFile, match="6 bits of type 'float'"):
        kv_cache_scheme(fields(kv_cache_scheme={"num_bits": 6}))
