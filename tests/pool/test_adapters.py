"""Bytes of LoRA adapters, and the KV cache that their slots take."""

from __future__ import annotations

import pytest

from capacity.deployment import Pool
from capacity.pool.memory import adapter_bytes
from capacity.pool.resolve import resolve

LLAMA = "llama-3.1-8b"
RANK_16_PARAMS = 41_943_040  # that PEFT prints as trainable for Llama-3-8B, rank 16, all linear layers


def test_an_adapter_of_all_linear_layers_is_what_peft_counts() -> None:
    of_rank = {rank: resolve(LLAMA, Pool(gpu="h100", max_loras=1, max_lora_rank=rank)) for rank in (16, 64)}
    assert adapter_bytes(of_rank[16]) == adapter_bytes(of_rank[16], 0) == 2 * RANK_16_PARAMS
    assert adapter_bytes(of_rank[64]) == 4 * adapter_bytes(of_rank[16])
    staged = resolve(LLAMA, Pool(gpu="h100", max_loras=1, pipeline_parallel_size=2))
    assert adapter_bytes(staged, 0) + adapter_bytes(staged, 1) == adapter_bytes(staged) == 2 * RANK_16_PARAMS


def test_tensor_parallel_gpus_divide_one_factor_of_each_matrix() -> None:
    """Of q 4096+4096, k and v 4096+1024, gate, up and down 4096+14336: the side that is divided, by two."""
    by_layer = 2 * (4096 + 2048) + 2 * (4096 + 512) + 3 * (4096 + 7168)
    pool = resolve(LLAMA, Pool(gpu="h100", max_loras=1, tensor_parallel_size=2))
    assert adapter_bytes(pool, 0) == by_layer * 16 * 32 * 2


def test_slots_take_memory_from_the_kv_cache() -> None:
    without, eight = (resolve(LLAMA, Pool(gpu="h100", max_loras=slots)).memory for slots in (None, 8))
    assert without.kv_cache_bytes - eight.kv_cache_bytes == pytest.approx(8 * 2 * RANK_16_PARAMS, abs=8)
