"""Triton kernels between the products, fused as engines fuse them. Imported on GPUs only, as `triton_paged` is."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803
# Triton reads compile-time constants by their capitals.

import triton
import triton.language as tl


@triton.jit
def add_norm(x, residual, weight, out, total, epsilon, HIDDEN: tl.constexpr, WIDTH: tl.constexpr):
    """One row: x + residual, and its RMS norm. WIDTH is HIDDEN rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    columns = tl.arange(0, WIDTH)
    ok = columns < HIDDEN
    a = tl.load(x + row + columns, mask=ok, other=0.0)
    b = tl.load(residual + row + columns, mask=ok, other=0.0)
    summed = (a + b).to(total.dtype.element_ty)
    tl.store(total + row + columns, summed, mask=ok)
    wide = summed.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / HIDDEN + epsilon)
    scale = tl.load(weight + columns, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row + columns, (wide * inverse * scale).to(out.dtype.element_ty), mask=ok)


@triton.jit
def rope_and_cache(
    q, k, v, out, keys, values, cosines, sines, positions, slots,
    q_row, k_row, v_row, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """One head of one row: queries rotated to `out`, keys rotated to the cache, values copied to it.

    HALF is D / 2, WIDTH it rounded up to a power of two. Caches are [slots, KV heads, D].
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = tl.arange(0, WIDTH)
    ok = half < HALF
    place = tl.load(positions + row).to(tl.int64) * HALF
    cosine = tl.load(cosines + place + half, mask=ok, other=0.0).to(tl.float32)
    sine = tl.load(sines + place + half, mask=ok, other=0.0).to(tl.float32)
    if head < HEADS:
        source = q + row * q_row + head * D
        target = out + (row * HEADS + head) * D
    else:
        source = k + row * k_row + (head - HEADS) * D
        target = keys + (tl.load(slots + row).to(tl.int64) * KV_HEADS + head - HEADS) * D
    first = tl.load(source + half, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + half, mask=ok, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    tl.store(target + half, (first * cosine - second * sine).to(kind), mask=ok)
    tl.store(target + HALF + half, (second * cosine + first * sine).to(kind), mask=ok)
    if head >= HEADS:
        source = v + row * v_row + (head - HEADS) * D
        target = values + (tl.load(slots + row).to(tl.int64) * KV_HEADS + head - HEADS) * D
        tl.store(target + half, tl.load(source + half, mask=ok, other=0.0), mask=ok)
        tl.store(target + HALF + half, tl.load(source + HALF + half, mask=ok, other=0.0), mask=ok)


@triton.jit
def silu_and_multiply(gate_up, out, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """SiLU(gate) · up of one block of one row; [rows, 2·COLUMNS] -> [rows, COLUMNS]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = columns < COLUMNS
    gate = tl.load(gate_up + row * 2 * COLUMNS + columns, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * COLUMNS + COLUMNS + columns, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * COLUMNS + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=ok)
