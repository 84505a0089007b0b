"""Products with block scales: what is handed to `_scaled_mm` means what the check believes, by the layouts' definition.

No CPU has these kernels, so a stand-in decodes values and scales from their bytes, independently of how they were made.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.cases import make_case  # noqa: E402
from capacity_validate.kernels import Unsupported, gemm  # noqa: E402
from kernel_checks import cpu_bench, error_of, prepared  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def untiled(scales: Any, rows: int, columns: int) -> Any:
    """Scale of (row, block): in tiles of 512 bytes, at 16 x (row % 32) + 4 x (row % 128 // 32) + block % 4.

    Source: cuBLAS documentation, "1D block scaling factors layout".
    """
    flat = scales.view(torch.uint8).flatten()
    wide = -(-columns // 4)
    found = torch.empty(rows, columns, dtype=torch.uint8)
    for row in range(rows):
        for block in range(columns):
            tile = (row // 128) * wide + block // 4
            found[row, block] = flat[512 * tile + 16 * (row % 32) + 4 * (row % 128 // 32) + block % 4]
    return found.view(scales.dtype).float()


def values_of(values: Any) -> Any:
    """[rows, k] in float32; of a byte of FP4 the low half first."""
    if values.dtype != torch.float4_e2m1fn_x2:
        return values.float()
    codes = values.view(torch.uint8)
    both = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)
    return torch.tensor(FP4)[both.long()]


def stand_in(a: Any, b: Any, *, scale_a: Any, scale_b: Any, out_dtype: Any, **_: Any) -> Any:
    left, right = values_of(a), values_of(b.T)
    if scale_a.dtype == torch.float32:
        assert scale_a.stride() == (1, scale_a.shape[0])  # 1 x 128: column by column
        assert scale_b.T.is_contiguous()
        scales = (
            scale_a.repeat_interleave(128, dim=1),
            scale_b.T.repeat_interleave(128, 0).repeat_interleave(128, 1),
        )
    else:
        block = 32 if scale_a.dtype == torch.float8_e8m0fnu else 16
        scales = tuple(
            untiled(s, x.shape[0], x.shape[1] // block).repeat_interleave(block, dim=1)
            for s, x in ((scale_a, left), (scale_b, right))
        )
    return ((left * scales[0]) @ (right * scales[1]).T).to(out_dtype)


CASES = [
    make_case("gemm", kernel, m=m, n=256, k=k)
    for kernel in ("fp8_block", "mxfp8", "nvfp4")
    for m, k in ((16, 256), (200, 384))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_product_of_what_is_handed_over_is_the_product_that_is_checked(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "_scaled_mm", stand_in)
    built = prepared(case)
    assert error_of(built) < 0.01  # bf16 output
    exact = 2.0 * case["m"] * case["n"] * case["k"]
    assert built.flops == exact


@pytest.mark.parametrize("case", CASES[1::2], ids=lambda case: case.kernel)
def test_scales_in_the_wrong_order_are_found(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random values have scales within a factor of two of each other: half a layout off is still seen."""

    def rolled(a: Any, b: Any, *, scale_a: Any, scale_b: Any, out_dtype: Any, **rest: Any) -> Any:
        as_bytes = scale_a if scale_a.dtype == torch.float32 else scale_a.view(torch.uint8)
        moved = as_bytes.flip(0).view(scale_a.dtype)
        if scale_a.dtype == torch.float32:
            moved = moved.T.contiguous().T
        return stand_in(a, b, scale_a=moved, scale_b=scale_b, out_dtype=out_dtype, **rest)

    monkeypatch.setattr(torch, "_scaled_mm", rolled)
    built = prepared(case)
    assert error_of(built) > built.tolerance


def test_quantized_values_are_near_what_they_stand_for() -> None:
    """The relative error of each format on normal values: 2.6 %, 2.6 % and some 10 %."""
    for quantize, most in (
        (gemm._quantize_fp8_blocks, 0.04),
        (gemm._quantize_mxfp8, 0.04),
        (gemm.quantize_nvfp4, 0.13),
    ):
        made = quantize(cpu_bench(), 128, 256, weights=False)
        plain = cpu_bench().random(128, 256, dtype=torch.float32)
        error = float((made.corner - plain).norm() / plain.norm())
        assert 0.005 < error < most


def test_sizes_that_blocks_do_not_divide_are_refused() -> None:
    with pytest.raises(Unsupported, match="multiples of 128"):
        prepared(make_case("gemm", "fp8_block", m=16, n=200, k=256))
    with pytest.raises(Unsupported, match="blocks of 32"):
        prepared(make_case("gemm", "mxfp8", m=16, n=200, k=48))


def test_on_this_device_every_one_is_refused_or_right() -> None:
    for case in CASES:
        try:
            built = prepared(case)
        except Unsupported:
            continue
        assert error_of(built) <= built.tolerance
