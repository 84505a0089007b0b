"""Matrix products with 16-bit activations, and those that quantize them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from capacity.hardware.calibration import Constants, Parameter
from capacity.hardware.coefficients import (
    GemmCoefficients,
)
from capacity.step.operators import gemm_seconds
from reference_tables.form import (
    FORMATS,
    Collected,
    Operator,
    fraction,
    latency,
    made,
    profile_of,
    read,
    sharpness,
)

MIN_WEIGHT_BYTES = 8e6
MIN_GEMM_DIMENSION = 512


class GemmRow(NamedTuple):
    m: float
    n: float
    k: float
    weight_bytes: float
    activation_bits: float
    flops_per_s: float
    hbm_bytes_per_s: float


GEMM_PARAMETERS = (
    fraction("compute_fraction", 0.7),
    fraction("bandwidth_fraction", 0.8),
    sharpness(3.0),
    latency("fixed_s", 4e-6),
    Parameter(name="per_k_s", start=2e-10, low=1e-13, high=1e-8),
)
QUANTIZE_PARAMETER = fraction("quantize_fraction", 0.3, low=0.005)


def predict_gemm(constants: Constants, row: GemmRow) -> float:
    """Seconds of one product."""
    return gemm_seconds(
        row.m,
        row.n,
        row.k,
        weight_bytes=row.weight_bytes,
        activation_bits=row.activation_bits,
        flops_per_s=row.flops_per_s,
        hbm_bytes_per_s=row.hbm_bytes_per_s,
        constants=made(GemmCoefficients, constants),
    )


def gemm(measured: Path, *, quantized: bool) -> Operator:
    """GEMMs with 16-bit activations, or those that quantize them (one constant more)."""
    collected = Collected()
    for gpu in ("a100", "h100", "h200", "b200", "l40s"):
        frame = read(measured, f"silicon_gemm_{gpu}")
        profile = profile_of(gpu)
        for r in frame.itertuples():
            table = FORMATS[r.quant]
            weights = r.n * r.k * table.weight_bits / 8
            if (table.activation_bits < 16) != quantized or min(r.n, r.k) < MIN_GEMM_DIMENSION:
                continue
            if weights < MIN_WEIGHT_BYTES:
                continue
            key = (gpu, r.engine, table.kernel)
            row = GemmRow(
                r.m,
                r.n,
                r.k,
                weights,
                table.activation_bits,
                profile.dense_flops_per_s[table.dtype],
                profile.hbm_bytes_per_s,
            )
            collected.add(key, r, row, table="gemm", group=(r.n, r.k))
    return Operator(
        name="gemm",
        parameters=(*GEMM_PARAMETERS, QUANTIZE_PARAMETER) if quantized else GEMM_PARAMETERS,
        predict=predict_gemm,
        tables=collected.tables,
        pools=lambda key: key,
        held_out_by="N, K",
        sources=collected.sources,
        lines=collected.lines,
    )
