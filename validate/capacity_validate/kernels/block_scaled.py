"""Products whose scales are of blocks: FP8 with a scale for 1 x 128 activations and 128 x 128 weights, MXFP8, NVFP4.

All by `torch._scaled_mm`, which takes what a card has: FP8 blocks on Hopper with CUDA 12.9, MX and NVFP4 on Blackwell.
Source of the layouts: pytorch, test/test_scaled_matmul_cuda.py and aten/src/ATen/native/cuda/ScaledBlas.cpp (2.11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from capacity_validate.cases import Case
from capacity_validate.kernels.prepared import KernelBench, Unsupported, attempt

FP8_MAX = 448.0
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and their negatives: E2M1
FP4_MAX = 6.0
FP8_BLOCK, MX_BLOCK, NVFP4_BLOCK = 128, 32, 16
SCALE_ROWS, SCALE_COLUMNS = 128, 4  # of a tile of scales, as tensor cores of Blackwell read them
ROWS_AT_A_TIME = 1024
CORNER = 128  # rows that a check needs in full precision


class BlockScaled(NamedTuple):
    """Values as the product takes them, their scales in its layout, and the first rows in float32."""

    values: Any
    scales: Any
    corner: Any


Product = Callable[[], Any]


def block_scaled(case: Case, bench: KernelBench) -> tuple[Product, Any, Any]:
    """The call, and the corners of both inputs that a check multiplies. Raises Unsupported."""
    torch = bench.torch
    quantize: dict[str, Callable[..., BlockScaled]] = {
        "fp8_block": _fp8_block,
        "mxfp8": _mxfp8,
        "nvfp4": _nvfp4,
    }
    if case.kernel == "nvfp4" and not hasattr(torch, "float4_e2m1fn_x2"):
        raise Unsupported(f"torch {torch.__version__} has no FP4 type")
    if case.kernel != "fp8_block" and not hasattr(torch, "float8_e8m0fnu"):
        raise Unsupported(f"torch {torch.__version__} has no block scales of MX")
    a = quantize[case.kernel](bench, case["m"], case["k"], weights=False)
    w = quantize[case.kernel](bench, case["n"], case["k"], weights=True)
    scale_b = w.scales.T if case.kernel == "fp8_block" else w.scales

    def call() -> Any:
        return torch._scaled_mm(
            a.values, w.values.T, scale_a=a.scales, scale_b=scale_b, out_dtype=torch.bfloat16
        )

    attempt(call)
    return call, a.corner, w.corner


def _pieces(bench: KernelBench, rows: int, columns: int) -> Any:
    """Random values in float32, some rows at a time, with where they begin."""
    for start in range(0, rows, ROWS_AT_A_TIME):
        yield start, bench.random(min(ROWS_AT_A_TIME, rows - start), columns, dtype=bench.torch.float32)


def _fp8_block(bench: KernelBench, rows: int, columns: int, *, weights: bool) -> BlockScaled:
    """A scale for 1 x 128 of activations, stored column by column, or for 128 x 128 of weights, stored row by row."""
    torch, high = bench.torch, FP8_BLOCK if weights else 1
    if columns % FP8_BLOCK or rows % high:
        raise Unsupported(f"FP8 blocks need sizes in multiples of {FP8_BLOCK}, not {rows} x {columns}")
    values = torch.empty(rows, columns, device=bench.device, dtype=torch.float8_e4m3fn)
    shape = (rows // high, columns // FP8_BLOCK)
    scales = torch.empty(shape, device=bench.device, dtype=torch.float32)
    corner = None
    for start, part in _pieces(bench, rows, columns):
        blocks = part.view(part.shape[0] // high, high, shape[1], FP8_BLOCK)
        scale = blocks.abs().amax(dim=(1, 3), keepdim=True) / FP8_MAX
        quantized = (blocks / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        values[start : start + part.shape[0]] = quantized.view(part.shape)
        scales[start // high : (start + part.shape[0]) // high] = scale[:, 0, :, 0]
        if corner is None:
            corner = (quantized.float() * scale).view(part.shape)[:CORNER]
    return BlockScaled(values, scales if weights else scales.T.contiguous().T, corner)


def _mxfp8(bench: KernelBench, rows: int, columns: int, *, weights: bool) -> BlockScaled:  # noqa: ARG001
    """FP8 with a power of two for each 32 values."""
    torch = bench.torch
    values = torch.empty(rows, columns, device=bench.device, dtype=torch.float8_e4m3fn)

    def quantized(blocks: Any) -> tuple[Any, Any, Any]:
        exponent = torch.floor(torch.log2(blocks.abs().amax(dim=-1, keepdim=True) / FP8_MAX)) + 1
        scale = torch.exp2(exponent)
        codes = (blocks / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        return codes, scale.to(torch.float8_e8m0fnu), codes.float() * scale

    return _micro(bench, values, rows, columns, MX_BLOCK, quantized)


def _nvfp4(bench: KernelBench, rows: int, columns: int, *, weights: bool) -> BlockScaled:  # noqa: ARG001
    """FP4, two in a byte, the even one low, with an FP8 scale for each 16."""
    torch = bench.torch
    packed = torch.empty(rows, columns // 2, device=bench.device, dtype=torch.uint8)
    steps = torch.tensor(FP4_VALUES, device=bench.device)
    middles = (steps[1:] + steps[:-1]) / 2

    def quantized(blocks: Any) -> tuple[Any, Any, Any]:
        scale = (blocks.abs().amax(dim=-1, keepdim=True) / FP4_MAX).to(torch.float8_e4m3fn)
        scaled = blocks / scale.float()
        codes = torch.bucketize(scaled.abs(), middles)
        decoded = steps[codes] * scaled.sign() * scale.float()
        codes = codes.to(torch.uint8) | (scaled < 0).to(torch.uint8) << 3
        return codes[..., ::2] | codes[..., 1::2] << 4, scale, decoded

    made = _micro(bench, packed, rows, columns, NVFP4_BLOCK, quantized)
    return made._replace(values=made.values.view(torch.float4_e2m1fn_x2))


def _micro(
    bench: KernelBench,
    values: Any,
    rows: int,
    columns: int,
    block: int,
    quantized: Callable[[Any], tuple[Any, Any, Any]],
) -> BlockScaled:
    """Blocks along a row, quantized some rows at a time; scales in tiles."""
    if columns % block:
        raise Unsupported(f"blocks of {block} need a width in multiples of it, not {columns}")
    scales, corner = [], None
    for start, part in _pieces(bench, rows, columns):
        codes, scale, decoded = quantized(part.view(part.shape[0], columns // block, block))
        values[start : start + part.shape[0]] = codes.reshape(part.shape[0], -1)
        scales.append(scale[..., 0])
        if corner is None:
            corner = decoded.view(part.shape)[:CORNER]
    kind, as_bytes = scales[0].dtype, bench.torch.cat([part.view(bench.torch.uint8) for part in scales])
    return BlockScaled(values, tiled_scales(bench.torch, as_bytes).view(kind), corner)


def tiled_scales(torch: Any, scales: Any) -> Any:
    """[rows, blocks] in tiles of 128 x 4, each with its rows 32 apart side by side; padded with zeros."""
    rows, columns = scales.shape
    tall, wide = -(-rows // SCALE_ROWS), -(-columns // SCALE_COLUMNS)
    padded = torch.zeros(tall * SCALE_ROWS, wide * SCALE_COLUMNS, device=scales.device, dtype=scales.dtype)
    padded[:rows, :columns] = scales
    tiles = padded.view(tall, SCALE_ROWS, wide, SCALE_COLUMNS).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1)
