"""Pools with every default filled in, each resolved once."""

from __future__ import annotations

from functools import lru_cache

from capacity.deployment import Pool
from capacity.pool.resolve import ResolvedPool, resolve


@lru_cache(maxsize=16)
def pool(
    model: str, gpu: str, engine: str = "vllm", tp: int = 1, quantization: str | None = None
) -> ResolvedPool:
    return resolve(model, Pool(gpu=gpu, engine=engine, tensor_parallel_size=tp, quantization=quantization))
