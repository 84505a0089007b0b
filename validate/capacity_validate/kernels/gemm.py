"""Matrix products as engines run them: bf16, fp16, fp32, TF32, FP8 per tensor and per row, INT8, W4A16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capacity_validate.cases import Case
from capacity_validate.kernels.prepared import (
    TOLERANCES,
    KernelBench,
    Prepared,
    Unsupported,
    attempt,
    relative_error,
)

CHECK_ROWS, CHECK_COLUMNS = 64, 128  # of the product that the reference computes in float64
# bits of a value, the scales of its block among them
WEIGHT_BITS = {
    "fp32": 32, "tf32": 32, "fp8": 8, "fp8_rowwise": 8, "fp8_block": 8, "int8": 8, "mxfp8": 8.25, "nvfp4": 4.5,
    "w4a16": 4.25,
}  # fmt: skip
ACTIVATION_BITS = {**WEIGHT_BITS, "fp8_block": 8.25, "w4a16": 16}
OUTPUT_BYTES = {"fp32": 4, "tf32": 4, "int8": 4}
FP8_MAX = 448.0
FP8_REACH = 6.0  # standard deviations that a scale for a whole tensor reaches
QUANTIZED_ROWS = 4096  # at a time: a whole tensor in fp32 would take four times the weights
INT4_GROUP = 128
SUSTAINED_S = (
    5.0  # power and heat need seconds to settle; a burst of a few ms runs at clocks that serving never sees
)

Product = Callable[[], Any]


def gemm(case: Case, bench: KernelBench) -> Prepared:
    """[m, k] x [k, n] with weights stored [n, k], as checkpoints do."""
    builders = {
        "fp8": _fp8_per_tensor,
        "fp8_rowwise": _fp8_row_wise,
        "fp8_block": _block_scaled,
        "mxfp8": _block_scaled,
        "nvfp4": _block_scaled,
        "int8": _int8,
        "w4a16": _int4,
    }
    build: Any = builders.get(case.kernel, _plain)
    m, n, k = case["m"], case["n"], case["k"]
    weight_bytes = int(n * k * WEIGHT_BITS.get(case.kernel, 16) / 8)
    activation_bytes = int(m * k * ACTIVATION_BITS.get(case.kernel, 16) / 8)
    copies = bench.copies(weight_bytes + activation_bytes)
    products = (
        _plain(case, bench, copies)
        if build is _plain
        else [build(case, bench) for _ in range(copies if bench.on_cuda else min(copies, 2))]
    )
    return Prepared(
        calls=[call for call, _ in products],
        check=lambda: products[0][1](),
        tolerance=TOLERANCES.get(case.kernel, 2e-2),
        flops=2.0 * m * n * k,
        bytes=float(weight_bytes + activation_bytes + m * n * OUTPUT_BYTES.get(case.kernel, 2)),
        sustained_s=SUSTAINED_S if case.variant == "sustained" else None,
        capturable=case.variant != "sustained",
    )


def _checked(bench: KernelBench, call: Product, a: Any, w: Any) -> tuple[Product, Callable[[], float]]:
    """`call` and its error on a corner of the product, against float64; `a` and `w` need be no larger than it."""
    a, w = a[:CHECK_ROWS], w[:CHECK_COLUMNS]

    def check() -> float:
        out = call()[:CHECK_ROWS, :CHECK_COLUMNS]
        return relative_error(bench.torch, out, a.double() @ w.double().T)

    return call, check


def _plain(case: Case, bench: KernelBench, copies: int = 1) -> list[tuple[Product, Callable[[], float]]]:
    """Weights rotate; activations stay, as the kernel before has just written them."""
    torch, dtype = bench.torch, bench.dtype(case.kernel)
    if case.kernel == "tf32" and not bench.on_cuda:
        raise Unsupported("a CPU has no TF32")
    a = bench.random(case["m"], case["k"], dtype=dtype)
    precision = {"tf32": "high", "fp32": "highest"}.get(case.kernel) if bench.on_cuda else None

    def product(w: Any) -> tuple[Product, Callable[[], float]]:
        def call() -> Any:
            if precision is not None:
                torch.set_float32_matmul_precision(precision)
            return torch.nn.functional.linear(a, w)

        return _checked(bench, call, a, w)

    return [product(w) for w in bench.rotating(copies, case["n"], case["k"], dtype=dtype)]


def _fp8(bench: KernelBench, rows: int, columns: int, *, row_wise: bool) -> tuple[Any, Any]:
    """Random FP8 values and their scales, of each row or of all; made piece by piece."""
    torch = bench.torch
    if not hasattr(torch, "float8_e4m3fn") or not hasattr(torch, "_scaled_mm"):
        raise Unsupported(f"torch {torch.__version__} has no FP8 product")
    values = torch.empty(rows, columns, device=bench.device, dtype=torch.float8_e4m3fn)
    scales = torch.full(
        (rows, 1) if row_wise else (), FP8_REACH / FP8_MAX, device=bench.device, dtype=torch.float32
    )
    for start in range(0, rows, QUANTIZED_ROWS):
        stop = min(rows, start + QUANTIZED_ROWS)
        part = bench.random(stop - start, columns, dtype=torch.float32)
        if row_wise:
            scales[start:stop] = part.abs().amax(dim=1, keepdim=True) / FP8_MAX
        part.div_(scales[start:stop] if row_wise else scales)
        values[start:stop].copy_(part.clamp_(-FP8_MAX, FP8_MAX))
    return values, scales


def _scaled(case: Case, bench: KernelBench, *, row_wise: bool) -> tuple[Product, Callable[[], float]]:
    torch = bench.torch
    a, scale_a = _fp8(bench, case["m"], case["k"], row_wise=row_wise)
    w, scale_w = _fp8(bench, case["n"], case["k"], row_wise=row_wise)
    column_scales = scale_w.T.contiguous() if row_wise else scale_w

    def call() -> Any:
        return torch._scaled_mm(
            a,
            w.T,
            scale_a=scale_a,
            scale_b=column_scales,
            out_dtype=torch.bfloat16,
            use_fast_accum=bench.on_cuda,  # as engines' kernels accumulate
        )

    def corner(values: Any, scales: Any, rows: int) -> Any:
        return values[:rows].float() * (scales[:rows] if row_wise else scales)

    attempt(call)
    return _checked(bench, call, corner(a, scale_a, CHECK_ROWS), corner(w, scale_w, CHECK_COLUMNS))


def _fp8_per_tensor(case: Case, bench: KernelBench) -> tuple[Product, Callable[[], float]]:
    return _scaled(case, bench, row_wise=False)


def _fp8_row_wise(case: Case, bench: KernelBench) -> tuple[Product, Callable[[], float]]:
    return _scaled(case, bench, row_wise=True)


def _block_scaled(case: Case, bench: KernelBench) -> tuple[Product, Callable[[], float]]:
    from capacity_validate.kernels.block_scaled import block_scaled

    return _checked(bench, *block_scaled(case, bench))


def _int8(case: Case, bench: KernelBench) -> tuple[Product, Callable[[], float]]:
    torch = bench.torch
    if not hasattr(torch, "_int_mm"):
        raise Unsupported(f"torch {torch.__version__} has no INT8 product")
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
    return _checked(bench, call, a, w)


def _int4(case: Case, bench: KernelBench) -> tuple[Product, Callable[[], float]]:
    """Weight-only INT4 with one scale and zero point for each 128 inputs: torch's own kernel."""
    torch, n, k = bench.torch, case["n"], case["k"]
    if k % INT4_GROUP or n % 64:
        raise Unsupported(f"W4A16 needs k in multiples of {INT4_GROUP} and n of 64")
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
    return _checked(bench, call, a, w)
