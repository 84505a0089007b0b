"""The kernels between matrix products as engines run them: one launch each on a GPU, plain torch on a CPU.

The step model counts four a layer: two norms with their residual sums, rope with the cache write, the activation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from capacity_validate import layers

ACTIVATION_BLOCK = 1024


def add_norm(x: Any, residual: Any, weight: Any, epsilon: float) -> tuple[Any, Any]:
    """RMS norm of x + residual, and that sum, which is the next residual."""
    return (
        fused_add_norm(x, residual, weight, epsilon)
        if x.is_cuda
        else layers.add_norm(x, residual, weight, epsilon)
    )


def rope_and_cache(
    q: Any, k: Any, v: Any, *, positions: Any, tables: tuple[Any, Any], keys: Any, values: Any, slots: Any
) -> Any:
    """Queries rotated; rotated keys, and values, written to `slots` of the caches. [rows, heads, d]."""
    if q.is_cuda:
        return fused_rope_and_cache(q, k, v, positions, tables, keys, values, slots)
    q, k = layers.rotate(q, positions, tables), layers.rotate(k, positions, tables)
    layers.write_cache(keys, values, k, v, slots)
    return q


def gated(gate_up: Any) -> Any:
    """SiLU(gate) · up, with both in one tensor."""
    if gate_up.is_cuda and gate_up.dim() == 2 and gate_up.is_contiguous():
        return fused_gated(gate_up)
    import torch

    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


# one launch each


def fused_add_norm(x: Any, residual: Any, weight: Any, epsilon: float) -> tuple[Any, Any]:
    import torch

    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x)
    hidden = x.shape[-1]
    width = _power_of_two(hidden)
    warps = min(16, max(4, width // 512))
    _kernels().add_norm[(x.numel() // hidden,)](
        x, residual, weight, out, total, epsilon, HIDDEN=hidden, WIDTH=width, num_warps=warps
    )
    return out, total


def fused_rope_and_cache(
    q: Any, k: Any, v: Any, positions: Any, tables: tuple[Any, Any], keys: Any, values: Any, slots: Any
) -> Any:
    import torch

    rows, heads, d = q.shape
    kv_heads = k.shape[1]
    q, k, v = (
        part if part.stride(2) == 1 and part.stride(1) == d else part.contiguous() for part in (q, k, v)
    )
    out = torch.empty(rows, heads, d, device=q.device, dtype=q.dtype)
    _kernels().rope_and_cache[(rows, heads + kv_heads)](
        q, k, v, out, keys, values, *tables, positions, slots, q.stride(0), k.stride(0), v.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, D=d, HALF=d // 2, WIDTH=_power_of_two(d // 2), num_warps=1,
    )  # fmt: skip
    return out


def fused_gated(gate_up: Any) -> Any:
    import torch

    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, columns, device=gate_up.device, dtype=gate_up.dtype)
    if rows:
        grid = (rows, -(-columns // ACTIVATION_BLOCK))
        _kernels().silu_and_multiply[grid](gate_up, out, COLUMNS=columns, BLOCK=ACTIVATION_BLOCK)
    return out


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


@lru_cache(maxsize=1)
def _kernels() -> Any:
    from capacity_validate.kernels import triton_fused

    return triton_fused
