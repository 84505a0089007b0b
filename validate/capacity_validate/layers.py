"""The kernels between matrix products, shared by the transformer and the cases that time them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def add_norm(x: Any, residual: Any, weight: Any, epsilon: float) -> tuple[Any, Any]:
    """RMS norm of x + residual, and that sum, which is the next residual."""
    total = x + residual
    return functional.rms_norm(total, (total.shape[-1],), weight, epsilon), total


def rope_tables(head_dim: int, positions: int, *, base: float, device: str, dtype: Any) -> tuple[Any, Any]:
    """Cosines and sines of every position, [positions, 1, head_dim / 2]."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float64) / head_dim)
    angles = torch.arange(positions, device=device, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]


def rotate(x: Any, positions: Any, tables: tuple[Any, Any]) -> Any:
    """Rotary embedding of [rows, heads, d], halves paired as Llama does."""
    cos, sin = tables[0][positions], tables[1][positions]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def write_cache(keys: Any, values: Any, k: Any, v: Any, slots: Any) -> None:
    """Put [rows, KV heads, d] at `slots` of caches [blocks, block size, KV heads, d]."""
    keys.view(-1, *keys.shape[2:]).index_copy_(0, slots, k)
    values.view(-1, *values.shape[2:]).index_copy_(0, slots, v)
