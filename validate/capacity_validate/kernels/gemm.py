"""Matrix multiplications as in engines: bf16, fp16, fp32, TF32, FP8 (three kinds), INT8, W4A16, MXFP8, NVFP4.

FP8 has scales per tensor, row or block. Block scales: FP8 with one scale per 1 x 128 activations and 128 x 128
weights, MXFP8, and NVFP4, all by `torch._scaled_mm`. Support depends on the card: FP8 blocks on Hopper with CUDA 12.9,
MX and NVFP4 on Blackwell. Source of the layouts: pytorch, test/test_scaled_matmul_cuda.py and
aten/src/ATen/native/cuda/ScaledBlas.cpp (2.11).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from capacity_validate.cases import Case
from capacity_validate.kernels import KernelContext, PreparedCase, Unsupported, attempt, relative_error

CHECK_ROWS, CHECK_COLUMNS = 64, 128  # part of the product with a float64 reference
FP8_MAX = 448.0
FP8_REACH = 6.0  # standard deviations covered by a per-tensor scale
INT4_GROUP = 128
# power and heat need seconds to settle; a burst of a few ms runs at higher clocks than serving
SUSTAINED_S = 5.0

Product = Callable[[], Any]
CheckedProduct = tuple[Product, Callable[[], float]]
ProductBuilder = Callable[[Case, KernelContext], CheckedProduct]


def gemm(case: Case, bench: KernelContext) -> PreparedCase:
    """Prepare [m, k] x [k, n] in the case's format; weights are stored as [n, k], as in checkpoints."""
    builders: dict[str, ProductBuilder] = {
        "fp8": partial(_scaled_product, row_wise=False),
        "fp8_rowwise": partial(_scaled_product, row_wise=True),
        "fp8_block": block_scaled_product,
        "mxfp8": block_scaled_product,
        "nvfp4": block_scaled_product,
        "int8": _int8_product,
        "w4a16": _int4_product,
    }
    return prepare_products(case, bench, builders.get(case.kernel))


def prepare_products(case: Case, bench: KernelContext, build: ProductBuilder | None) -> PreparedCase:
    """Prepare the products that `build` makes; None: unquantized products."""
    m, n, k = case["m"], case["n"], case["k"]
    bits = case.of_format("bits", 16)
    weight_bytes = int(n * k * case.of_format("weight_bits", bits) / 8)
    activation_bytes = int(m * k * case.of_format("activation_bits", bits) / 8)
    copies = bench.copy_count(weight_bytes + activation_bytes)
    products = (
        _plain_products(case, bench, copies)
        if build is None
        else [build(case, bench) for _ in range(copies if bench.on_cuda else min(copies, 2))]
    )
    return PreparedCase(
        calls=[call for call, _ in products],
        check=lambda: products[0][1](),
        flops=2.0 * m * n * k,
        bytes=float(weight_bytes + activation_bytes + m * n * case.of_format("output_bytes", 2)),
        sustained_s=SUSTAINED_S if case.variant == "sustained" else None,
        capturable=case.variant != "sustained",
    )


def check_product(bench: KernelContext, call: Product, a: Any, w: Any) -> CheckedProduct:
    """Return `call`, and a function that compares the first rows and columns of the result of `call` with float64 and
    returns the relative error. `a` and `w` must contain at least the rows for that comparison."""
    a, w = a[:CHECK_ROWS], w[:CHECK_COLUMNS]

    def check() -> float:
        out = call()[:CHECK_ROWS, :CHECK_COLUMNS]
        return relative_error(bench.torch, out, a.double() @ w.double().T)

    return call, check


def _plain_products(case: Case, bench: KernelContext, copies: int = 1) -> list[CheckedProduct]:
    """Return unquantized multiplications with different weights and the same activations, which are in cache."""
    torch, dtype = bench.torch, bench.dtype(case.kernel)
    if case.kernel == "tf32" and not bench.on_cuda:
        raise Unsupported("a CPU has no TF32")
    a = bench.random(case["m"], case["k"], dtype=dtype)
    precision = {"tf32": "high", "fp32": "highest"}.get(case.kernel) if bench.on_cuda else None

    def product(w: Any) -> CheckedProduct:
        def call() -> Any:
            if precision is not None:
                torch.set_float32_matmul_precision(precision)
            return torch.nn.functional.linear(a, w)

        return check_product(bench, call, a, w)

    return [product(w) for w in bench.rotating_tensors(copies, case["n"], case["k"], dtype=dtype)]


def _scaled_product(case: Case, bench: KernelContext, *, row_wise: bool) -> CheckedProduct:
    """Return a multiplication of random FP8 values, with a scale per row (`row_wise`) or tensor, and its check."""
    torch = bench.torch
    if not hasattr(torch, "float8_e4m3fn") or not hasattr(torch, "_scaled_mm"):
        raise Unsupported(f"torch {torch.__version__} has no FP8 matrix multiplication")
    k = case["k"]
    a, w = (quantize_fp8(bench, rows, k, 1, k if row_wise else None) for rows in (case["m"], case["n"]))
    scale_b = w.scales.T.contiguous() if row_wise else w.scales

    def call() -> Any:
        return torch._scaled_mm(
            a.values,
            w.values.T,
            scale_a=a.scales,
            scale_b=scale_b,
            out_dtype=torch.bfloat16,
            use_fast_accum=bench.on_cuda,  # as in engines' kernels
        )

    attempt(call)
    return check_product(bench, call, a.corner, w.corner)


def _int8_product(case: Case, bench: KernelContext) -> CheckedProduct:
    torch = bench.torch
    if not hasattr(torch, "_int_mm"):
        raise Unsupported(f"torch {torch.__version__} has no INT8 matrix multiplication")
    if bench.on_cuda and case["m"] <= 16:
        raise Unsupported("torch._int_mm needs more than 16 rows on a GPU")

    def integers(*shape: int) -> Any:
        return torch.randint(
            -127, 128, shape, generator=bench.generator, device=bench.device, dtype=torch.int8
        )

    a, w = integers(case["m"], case["k"]), integers(case["n"], case["k"])

    def call() -> Any:
        return torch._int_mm(a, w.T)

    attempt(call)
    return check_product(bench, call, a, w)


def _int4_product(case: Case, bench: KernelContext) -> CheckedProduct:
    """Return torch's weight-only INT4 multiplication (one scale and zero point per 128 inputs), and its check."""
    torch, n, k = bench.torch, case["n"], case["k"]
    if k % INT4_GROUP or n % 64:
        raise Unsupported(f"W4A16 needs k in multiples of {INT4_GROUP} and n in multiples of 64")
    codes = torch.randint(0, 16, (n, k), generator=bench.generator, device=bench.device, dtype=torch.int32)
    scales = bench.random(n, k // INT4_GROUP, dtype=torch.bfloat16, scale=0.01).abs() + 0.01
    zeros = bench.random(n, k // INT4_GROUP, dtype=torch.bfloat16, scale=0.01)
    scales_zeros = torch.stack([scales, zeros], dim=-1).transpose(0, 1).contiguous()
    a = bench.random(case["m"], k, dtype=torch.bfloat16)
    try:
        if bench.on_cuda:
            packed = torch._convert_weight_to_int4pack(
                (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8), 8
            )
            product = torch._weight_int4pack_mm
        else:
            packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
            product = torch._weight_int4pack_mm_for_cpu
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        raise Unsupported(f"no W4A16 kernel in this build: {str(error).splitlines()[0]}") from None

    def call() -> Any:
        return product(a, packed, INT4_GROUP, scales_zeros)

    attempt(call)
    codes, scales, zeros = (part[:CHECK_COLUMNS].clone() for part in (codes, scales, zeros))
    groups = codes.view(-1, k // INT4_GROUP, INT4_GROUP).double() - 8
    w = (groups * scales.double().unsqueeze(-1) + zeros.double().unsqueeze(-1)).view(-1, k)
    return check_product(bench, call, a, w)


FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and their negatives: E2M1
FP4_MAX = 6.0
FP8_BLOCK, MX_BLOCK, NVFP4_BLOCK = 128, 32, 16
SCALE_ROWS, SCALE_COLUMNS = 128, 4  # size of a tile of scales for Blackwell's tensor cores
ROWS_AT_A_TIME = 1024  # a whole tensor in fp32 would take four times the weights
CORNER = 128  # rows that a check needs in full precision


class BlockScaled(NamedTuple):
    """A quantized matrix: its values and scales in the layout of the kernel, and its first rows in float32."""

    values: Any
    scales: Any
    corner: Any


def block_scaled_product(case: Case, bench: KernelContext) -> CheckedProduct:
    """Return a multiplication with block scales, and its check. Raises Unsupported."""
    torch = bench.torch
    formats: dict[str, Callable[..., BlockScaled]]
    formats = {"fp8_block": _quantize_fp8_blocks, "mxfp8": _quantize_mxfp8, "nvfp4": quantize_nvfp4}
    quantize = formats[case.kernel]
    if case.kernel == "nvfp4" and not hasattr(torch, "float4_e2m1fn_x2"):
        raise Unsupported(f"torch {torch.__version__} has no FP4 type")
    if case.kernel != "fp8_block" and not hasattr(torch, "float8_e8m0fnu"):
        raise Unsupported(f"torch {torch.__version__} has no MX block scales")
    a = quantize(bench, case["m"], case["k"], weights=False)
    w = quantize(bench, case["n"], case["k"], weights=True)
    scale_b = w.scales.T if case.kernel == "fp8_block" else w.scales

    def call() -> Any:
        return torch._scaled_mm(
            a.values, w.values.T, scale_a=a.scales, scale_b=scale_b, out_dtype=torch.bfloat16
        )

    attempt(call)
    return check_product(bench, call, a.corner, w.corner)


def _random_pieces(bench: KernelContext, rows: int, columns: int) -> Any:
    """Yield (index of first row, rows) for consecutive groups of rows of a random float32 matrix."""
    for start in range(0, rows, ROWS_AT_A_TIME):
        yield start, bench.random(min(ROWS_AT_A_TIME, rows - start), columns, dtype=bench.torch.float32)


def quantize_fp8(bench: KernelContext, rows: int, columns: int, high: int, wide: int | None) -> BlockScaled:
    """Return FP8 values with one scale per block of `high` x `wide`; if `wide` is None, one scale for all."""
    torch = bench.torch
    values = torch.empty(rows, columns, device=bench.device, dtype=torch.float8_e4m3fn)
    width = wide or columns
    scales = torch.full((rows // high, columns // width), FP8_REACH / FP8_MAX, device=bench.device)
    corner = None
    for start, part in _random_pieces(bench, rows, columns):
        stop = start + part.shape[0]
        blocks = part.view(part.shape[0] // high, high, columns // width, width)
        if wide is not None:
            scales[start // high : stop // high] = blocks.abs().amax(dim=(1, 3)) / FP8_MAX
        scale = scales[start // high : stop // high, None, :, None]
        quantized = blocks.div_(scale).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        values[start:stop] = quantized.view(part.shape)
        if corner is None:
            few = CORNER // high
            corner = (quantized[:few].float() * scale[:few]).view(-1, columns)
    return BlockScaled(values, scales if wide is not None else scales[0, 0], corner)


def _quantize_fp8_blocks(bench: KernelContext, rows: int, columns: int, *, weights: bool) -> BlockScaled:
    """Return FP8 with one scale per 1 x 128 activations (stored by column) or per 128 x 128 weights (stored by row)."""
    high = FP8_BLOCK if weights else 1
    if columns % FP8_BLOCK or rows % high:
        raise Unsupported(f"FP8 blocks need sizes in multiples of {FP8_BLOCK}, not {rows} x {columns}")
    made = quantize_fp8(bench, rows, columns, high, FP8_BLOCK)
    return made if weights else made._replace(scales=made.scales.T.contiguous().T)


def _quantize_mxfp8(bench: KernelContext, rows: int, columns: int, *, weights: bool) -> BlockScaled:  # noqa: ARG001
    """Return MXFP8 values: FP8 with one power-of-two scale per 32 values."""
    torch = bench.torch
    values = torch.empty(rows, columns, device=bench.device, dtype=torch.float8_e4m3fn)

    def quantize_blocks(blocks: Any) -> tuple[Any, Any, Any]:
        exponent = torch.floor(torch.log2(blocks.abs().amax(dim=-1, keepdim=True) / FP8_MAX)) + 1
        scale = torch.exp2(exponent)
        codes = (blocks / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        return codes, scale.to(torch.float8_e8m0fnu), codes.float() * scale

    return _quantize_micro_blocks(bench, values, rows, columns, MX_BLOCK, quantize_blocks)


def quantize_nvfp4(bench: KernelContext, rows: int, columns: int, *, weights: bool) -> BlockScaled:  # noqa: ARG001
    """Return NVFP4 values, two per byte (the even one in the low half), with one FP8 scale per 16 values."""
    torch = bench.torch
    packed = torch.empty(rows, columns // 2, device=bench.device, dtype=torch.uint8)
    steps = torch.tensor(FP4_VALUES, device=bench.device)
    middles = (steps[1:] + steps[:-1]) / 2

    def quantize_blocks(blocks: Any) -> tuple[Any, Any, Any]:
        scale = (blocks.abs().amax(dim=-1, keepdim=True) / FP4_MAX).to(torch.float8_e4m3fn)
        scaled = blocks / scale.float()
        codes = torch.bucketize(scaled.abs(), middles)
        decoded = steps[codes] * scaled.sign() * scale.float()
        codes = codes.to(torch.uint8) | (scaled < 0).to(torch.uint8) << 3
        return codes[..., ::2] | codes[..., 1::2] << 4, scale, decoded

    made = _quantize_micro_blocks(bench, packed, rows, columns, NVFP4_BLOCK, quantize_blocks)
    return made._replace(values=made.values.view(torch.float4_e2m1fn_x2))


def _quantize_micro_blocks(
    bench: KernelContext,
    values: Any,
    rows: int,
    columns: int,
    block: int,
    quantized: Callable[[Any], tuple[Any, Any, Any]],
) -> BlockScaled:
    """Quantize a random matrix into `values`, with one scale per block of a row; return scales in the tile layout."""
    if columns % block:
        raise Unsupported(f"blocks of {block} need a width that is a multiple of {block}, not {columns}")
    scales, corner = [], None
    for start, part in _random_pieces(bench, rows, columns):
        codes, scale, decoded = quantized(part.view(part.shape[0], columns // block, block))
        values[start : start + part.shape[0]] = codes.reshape(part.shape[0], -1)
        scales.append(scale[..., 0])
        if corner is None:
            corner = decoded.view(part.shape)[:CORNER]
    kind, as_bytes = scales[0].dtype, bench.torch.cat([part.view(bench.torch.uint8) for part in scales])
    return BlockScaled(values, tile_scales(bench.torch, as_bytes).view(kind), corner)


def tile_scales(torch: Any, scales: Any) -> Any:
    """Return scales [rows, blocks] in the kernel's layout: tiles of 128 x 4, padded with zeros; in a tile, rows r, r +
    32, r + 64 and r + 96 are adjacent."""
    rows, columns = scales.shape
    tall, wide = -(-rows // SCALE_ROWS), -(-columns // SCALE_COLUMNS)
    padded = torch.zeros(tall * SCALE_ROWS, wide * SCALE_COLUMNS, device=scales.device, dtype=scales.dtype)
    padded[:rows, :columns] = scales
    tiles = padded.view(tall, SCALE_ROWS, wide, SCALE_COLUMNS).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1)
