"""A weight format: bytes of a matrix, and what multiplies it where tensor cores lack."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capacity.model.quantization import find_format, weight_formats


def test_partial_blocks_have_whole_scales() -> None:
    # DeepSeek-V3's kv_a_proj_with_mqa: 576 = 4.5 blocks of 128 rows
    assert find_format("fp8-block").matrix_bytes(576, 7168) == 576 * 7168 + 5 * 56 * 4


@given(
    name=st.sampled_from(tuple(weight_formats())),
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    more=st.integers(1, 99),
)
def test_bytes_grow_with_the_matrix_and_cover_its_values(
    name: str, rows: int, columns: int, more: int
) -> None:
    stored = find_format(name)
    size = stored.matrix_bytes(rows, columns)
    assert size >= rows * columns * stored.value_bits / 8
    assert stored.matrix_bytes(rows + more, columns) > size
    assert stored.matrix_bytes(rows, columns + more) > size


def test_hardware_without_the_tensor_cores_runs_weight_only() -> None:
    a100, h100, b200 = (
        {"bf16", "fp16", "int8"},
        {"bf16", "fp16", "int8", "fp8"},
        {"bf16", "int8", "fp8", "fp4"},
    )
    fp8, nvfp4, awq = find_format("fp8"), find_format("nvfp4"), find_format("awq-int4")
    assert (fp8.execution(a100).kernel, fp8.execution(a100).compute_dtype) == ("w8a16", "bf16")
    assert "no fp8 tensor cores" in str(fp8.execution(a100).note)
    assert (fp8.execution(h100).kernel, fp8.execution(h100).note) == ("fp8", None)
    assert nvfp4.execution(h100).kernel == "w4a16"
    assert nvfp4.execution(b200).kernel == "nvfp4"
    assert all(awq.execution(gpu).kernel == "w4a16" for gpu in (a100, h100, b200))
