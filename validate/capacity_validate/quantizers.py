"""Reference quantizers that check each format: the error against a bound, and the bytes against the memory model.

Codes are packed as in checkpoints, so the sum of the parts' `nbytes` is the size of the matrix in a checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from capacity.model.quantization import find_format
from capacity_validate.cases import Finding

# Quantiles of a normal distribution, normalised to [-1, 1]. Source: Dettmers et al., arXiv 2305.14314, appendix E.
NF4_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip

CALIBRATED_GAIN = 0.9


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized matrix: its stored parts, its dequantized values, and the format's maximum error per element."""

    parts: tuple[Any, ...]
    values: Any
    bound: Any  # per element, broadcastable

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def absmax(x: Any, *, bits: int = 8, block: int | None = None) -> Quantized:
    """Quantize to symmetric integers, with one scale for the tensor, or one per `block` values of a row."""
    grouped = _group_values(x, block)
    top = 2 ** (bits - 1) - 1
    scale = _largest_magnitude(grouped) / top
    codes = torch.clamp(torch.round(grouped / scale), -top, top)
    return Quantized(
        (codes.to(torch.int8), scale.to(torch.float32)),
        (codes * scale).reshape(x.shape),
        (scale / 2).expand_as(grouped).reshape(x.shape),
    )


def zero_point(x: Any, *, bits: int = 8, block: int | None = None) -> Quantized:
    """Quantize to asymmetric integers; rounding of the integer zero point may clip extreme values by half a scale."""
    grouped, top = _group_values(x, block), 2**bits - 1
    scale = (_value_range(grouped) / top).clamp_min(1e-12)
    codes, zero, inside = _affine_codes(grouped, scale, top)
    bound = torch.where(inside, scale / 2, scale)
    parts: tuple[Any, ...] = (codes.to(torch.uint8), scale.to(torch.float32), zero.to(torch.uint8))
    return Quantized(parts, ((codes - zero) * scale).reshape(x.shape), bound.reshape(x.shape))


def grouped_int4(x: Any, *, group: int = 128) -> Quantized:
    """Quantize as GPTQ and AWQ store: two codes per byte, an FP16 scale and 4-bit zero point per `group` inputs."""
    grouped = x.reshape(x.shape[0], -1, group)
    scale = (_value_range(grouped) / 15).clamp_min(6.2e-5).half()
    wide = scale.to(x.dtype)
    codes, zero, inside = _affine_codes(grouped, wide, 15)
    bound = torch.where(inside, wide / 2, wide * 1.01)  # 1 % more, because the scale is rounded to FP16
    parts = (_pack_codes(codes.reshape(x.shape)), scale.squeeze(-1), _pack_codes(zero.squeeze(-1)))
    return Quantized(parts, ((codes - zero) * wide).reshape(x.shape), bound.reshape(x.shape))


def _value_range(grouped: Any) -> Any:
    """Return the width of each group's value range: max(largest value, 0) - min(smallest value, 0)."""
    return grouped.amax(-1, keepdim=True).clamp_min(0.0) - grouped.amin(-1, keepdim=True).clamp_max(0.0)


def _affine_codes(grouped: Any, scale: Any, top: int) -> tuple[Any, Any, Any]:
    """Return codes from 0 to `top`, each group's zero point, and a mask of the values that the codes can represent."""
    zero = torch.clamp(torch.round(-grouped.amin(-1, keepdim=True).clamp_max(0.0) / scale), 0, top)
    codes = torch.clamp(torch.round(grouped / scale) + zero, 0, top)
    return codes, zero, (grouped >= -zero * scale) & (grouped <= (top - zero) * scale)


def nf4(x: Any, *, block: int = 64) -> Quantized:
    """Quantize to NormalFloat 4: 16 levels, one FP32 scale per `block` values (no double quantization)."""
    levels = torch.tensor(NF4_LEVELS, dtype=x.dtype)
    blocks = x.reshape(-1, block)
    scale = _largest_magnitude(blocks)
    codes = torch.bucketize((blocks / scale).contiguous(), (levels[1:] + levels[:-1]) / 2)
    widest = float((levels[1:] - levels[:-1]).max())
    return Quantized(
        (_pack_codes(codes.reshape(x.shape)), scale.to(torch.float32)),
        (levels[codes] * scale).reshape(x.shape),
        (scale * widest / 2).expand_as(blocks).reshape(x.shape),
    )


def fp8(x: Any, *, kind: str = "e4m3") -> Quantized:
    """Quantize to FP8 with one scale; maximum error: half a unit of the last mantissa bit (E4M3 has 3, E5M2 2)."""
    dtype, top, mantissa, smallest = {
        "e4m3": (torch.float8_e4m3fn, 448.0, 3, 2.0**-9),
        "e5m2": (torch.float8_e5m2, 57344.0, 2, 2.0**-16),
    }[kind]
    scale = x.abs().max() / top
    codes = (x / scale).to(dtype)
    values = codes.to(x.dtype) * scale
    bound = torch.maximum(x.abs() * 2.0 ** -(mantissa + 1), scale * smallest / 2)
    return Quantized((codes, scale.to(torch.float32).reshape(1)), values, bound * (1 + 1e-5))


def _group_values(x: Any, block: int | None) -> Any:
    return x.reshape(1, -1) if block is None else x.reshape(-1, block)


def _largest_magnitude(x: Any) -> Any:
    return x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12)


def _pack_codes(codes: Any) -> Any:
    codes = codes.to(torch.uint8).reshape(codes.shape[0], -1)
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, ::2] << 4 | codes[:, 1::2]


def gptq(weights: Any, inputs: Any, *, bits: int = 4, damping: float = 0.01) -> Any:
    """Return weights [outputs, inputs] quantized with GPTQ: each column's error is compensated in later columns.

    One scale per row. Source: Frantar et al., arXiv 2210.17323, algorithm 1, without blocking.
    """
    columns = weights.shape[1]
    hessian = inputs.T @ inputs
    hessian += damping * hessian.diagonal().mean() * torch.eye(columns, dtype=hessian.dtype)
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    top = 2 ** (bits - 1) - 1
    scale = _largest_magnitude(weights).squeeze(-1) / top
    left, out = weights.clone(), torch.empty_like(weights)
    for j in range(columns):
        out[:, j] = torch.clamp(torch.round(left[:, j] / scale), -top, top) * scale
        error = (left[:, j] - out[:, j]) / inverse[j, j]
        left[:, j:] -= error[:, None] * inverse[j, j:][None, :]
    return out


def awq(weights: Any, inputs: Any, *, bits: int = 4, group: int = 128, steps: int = 20) -> Any:
    """Return weights quantized with AWQ: each input channel is scaled by its mean magnitude to the power that gives
    the smallest output error. Source: Lin et al., arXiv 2306.00978, 3.2."""
    size = inputs.abs().mean(dim=0).clamp_min(1e-6)
    wanted = inputs @ weights.T
    best, best_error = weights, float("inf")
    for step in range(steps + 1):
        scale = size ** (step / steps)
        scale = scale / (scale.max() * scale.min()).sqrt()
        candidate = zero_point(weights * scale, bits=bits, block=group).values / scale
        error = float((inputs @ candidate.T - wanted).square().mean())
        if error < best_error:
            best, best_error = candidate, error
    return best


def output_error(weights: Any, quantized: Any, inputs: Any) -> float:
    wanted = inputs @ weights.T
    return float((inputs @ quantized.T - wanted).norm() / wanted.norm())


def quantizer_findings(*, rows: int = 256, columns: int = 512, seed: int = 0) -> list[Finding]:
    """Check every quantizer against its bound on heavy-tailed weights, and packed formats against the memory model."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    x = x * torch.exp(0.5 * torch.randn(rows, 1, generator=generator, dtype=torch.float64))
    quantizers: dict[str, Callable[[], Quantized]] = {
        "INT8 absmax": lambda: absmax(x),
        "INT8 absmax, block 64": lambda: absmax(x, block=64),
        "INT8 zero point": lambda: zero_point(x),
        "INT4 zero point, group 128": lambda: grouped_int4(x),
        "NF4, block 64": lambda: nf4(x),
        "FP8 E4M3": lambda: fp8(x),
        "FP8 E5M2": lambda: fp8(x, kind="e5m2"),
    }
    findings = []
    for name, quantize in quantizers.items():
        quantized = quantize()
        worst = float(((quantized.values - x).abs() / quantized.bound.clamp_min(1e-30)).max())
        relative = float((quantized.values - x).norm() / x.norm())
        detail = f"largest error divided by its bound; relative error of the matrix {relative:.2%}"
        findings.append(Finding(name=f"{name}: error", value=worst, limit=1.0 + 1e-9, detail=detail))
    findings += _byte_findings(x)
    findings += _calibrated_findings(generator)
    return findings


def _byte_findings(x: Any) -> list[Finding]:
    rows, columns = x.shape
    stored = {"awq-int4": grouped_int4(x).nbytes, "fp8": fp8(x).nbytes}
    return [
        Finding(
            name=f"{name}: bytes",
            value=float(nbytes),
            limit=find_format(name).matrix_bytes(rows, columns),
            detail=f"packed tensors of a {rows} x {columns} matrix compared with the memory model, exact",
            exact=True,
        )
        for name, nbytes in stored.items()
    ]


def _calibrated_findings(generator: Any) -> list[Finding]:
    """Check that GPTQ and AWQ beat rounding to nearest on a layer with a few large input channels."""
    weights = torch.randn(128, 256, generator=generator, dtype=torch.float64)
    channels = torch.exp(1.2 * torch.randn(256, generator=generator, dtype=torch.float64))
    mixing = torch.randn(256, 256, generator=generator, dtype=torch.float64) / 16 + torch.eye(
        256, dtype=torch.float64
    )
    inputs = (torch.randn(1024, 256, generator=generator, dtype=torch.float64) @ mixing) * channels
    by_row = absmax(weights, bits=4, block=256).values
    by_group = zero_point(weights, bits=4, block=128).values
    rounded = output_error(weights, by_row, inputs), output_error(weights, by_group, inputs)
    calibrated = (
        output_error(weights, gptq(weights, inputs), inputs),
        output_error(weights, awq(weights, inputs), inputs),
    )
    return [
        Finding(
            name=f"{name}: output error",
            value=after,
            limit=CALIBRATED_GAIN * before,
            detail=f"relative, on calibration inputs; rounding to nearest has {before:.2%}, and the limit is "
            "10 % less",
        )
        for name, before, after in zip(("GPTQ INT4", "AWQ INT4"), rounded, calibrated, strict=True)
    ]
