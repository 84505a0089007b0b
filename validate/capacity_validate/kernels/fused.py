"""Fused kernels that engines run between matrix multiplications: one launch each on a GPU, plain torch on a CPU.

The step model counts four per layer: two norms with their residual sums, rope with the cache write, the activation.
"""

from typing import Any

import torch
from torch.nn import functional

ACTIVATION_BLOCK = 1024


def add_norm(x: Any, residual: Any, weight: Any, epsilon: float) -> tuple[Any, Any]:
    """Return the RMS norm of x + residual, and x + residual itself, which is the next residual."""
    return (fused_add_norm if x.is_cuda else plain_add_norm)(x, residual, weight, epsilon)


def plain_add_norm(x: Any, residual: Any, weight: Any, epsilon: float) -> tuple[Any, Any]:
    total = x + residual
    return functional.rms_norm(total, (total.shape[-1],), weight, epsilon), total


def rope_and_cache(
    q: Any, k: Any, v: Any, *, positions: Any, tables: tuple[Any, Any], keys: Any, values: Any, slots: Any
) -> Any:
    """Return rotated queries [tokens, heads, d]; write rotated keys, and values, to `slots` of the caches."""
    if q.is_cuda:
        return fused_rope_and_cache(q, k, v, positions, tables, keys, values, slots)
    q, k = rotate(q, positions, tables), rotate(k, positions, tables)
    write_cache(keys, values, k, v, slots)
    return q


def silu_and_mul(gate_up: Any) -> Any:
    """Return SiLU(gate) · up; `gate_up` contains both halves in its last dimension."""
    if gate_up.is_cuda and gate_up.dim() == 2 and gate_up.is_contiguous():
        return fused_gated(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def rope_tables(head_dim: int, positions: int, *, base: float, device: str, dtype: Any) -> tuple[Any, Any]:
    """Return cosines and sines of every position, [positions, 1, head_dim / 2]."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float64) / head_dim)
    angles = torch.arange(positions, device=device, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]


def rotate(x: Any, positions: Any, tables: tuple[Any, Any]) -> Any:
    """Return the rotary embedding of x [tokens, heads, d]; dimension i is paired with i + d / 2, as in Llama."""
    cos, sin = tables[0][positions], tables[1][positions]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def write_cache(keys: Any, values: Any, k: Any, v: Any, slots: Any) -> None:
    """Write keys and values [tokens, KV heads, d] to `slots` of caches [blocks, block size, KV heads, d]."""
    keys.view(-1, *keys.shape[2:]).index_copy_(0, slots, k)
    values.view(-1, *values.shape[2:]).index_copy_(0, slots, v)


def fused_add_norm(x: Any, residual: Any, weight: Any, epsilon: float) -> tuple[Any, Any]:
    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x)
    hidden = x.shape[-1]
    width = power_of_two(hidden)
    warps = min(16, max(4, width // 512))
    load_triton_kernels().add_norm[(x.numel() // hidden,)](
        x, residual, weight, out, total, epsilon, HIDDEN=hidden, WIDTH=width, num_warps=warps
    )
    return out, total


def fused_rope_and_cache(
    q: Any, k: Any, v: Any, positions: Any, tables: tuple[Any, Any], keys: Any, values: Any, slots: Any
) -> Any:
    rows, heads, d = q.shape
    kv_heads = k.shape[1]
    q, k, v = (
        part if part.stride(2) == 1 and part.stride(1) == d else part.contiguous() for part in (q, k, v)
    )
    out = torch.empty(rows, heads, d, device=q.device, dtype=q.dtype)
    load_triton_kernels().rope_and_cache[(rows, heads + kv_heads)](
        q, k, v, out, keys, values, *tables, positions, slots, q.stride(0), k.stride(0), v.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, D=d, HALF=d // 2, WIDTH=power_of_two(d // 2), num_warps=1,
    )  # fmt: skip
    return out


def fused_gated(gate_up: Any) -> Any:
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, columns, device=gate_up.device, dtype=gate_up.dtype)
    if rows:
        grid = (rows, -(-columns // ACTIVATION_BLOCK))
        load_triton_kernels().silu_and_multiply[grid](gate_up, out, COLUMNS=columns, BLOCK=ACTIVATION_BLOCK)
    return out


def power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def load_triton_kernels() -> Any:
    """Return the module of Triton kernels, which compile at their first launch."""
    from capacity_validate.kernels import triton_kernels

    return triton_kernels
