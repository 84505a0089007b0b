"""Parallel sizes that a model allows."""

from __future__ import annotations

from capacity.model import load_model
from capacity.pool.parallelism import tensor_parallel_sizes


def test_tensor_parallel_sizes_divide_heads() -> None:
    assert tensor_parallel_sizes(load_model("llama-3.1-70b"), 64) == (1, 2, 4, 8, 16, 32, 64)
    assert tensor_parallel_sizes(load_model("phi-4"), 8) == (1, 2, 5)
